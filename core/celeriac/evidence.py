"""What calls have left behind, as facts: what became of files, and how commands ended.

Kept with the attempts at a call, in the transaction that settles it, and never changed:

    changes   of each path that the call changed, what stood there before and what stands there now
    command   how the command ended that the call ran

Calls of workers and of other processes leave the same. It is evidence and no truth: it says what
the tool, or the process that executed it, saw.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from celeriac.codec import JsonValue
from celeriac.ids import CallId

Standing: TypeAlias = str | None
"""What stands at a path: a sha256 (64 hex digits), None for nothing, or `UNTOLD`."""
UNTOLD: Final = "untold"
"""What stands there was not said; it equals nothing, itself included."""

Outcome = Literal["passed", "failed", "unavailable"]
"""Of a verification. `unavailable`: it has ended, and still nobody can rely on what it says."""

MAX_READ_CHARACTERS = 200_000  # of a command's output, from its end, that are searched for tests
_TESTS_PASSED = (
    re.compile(r"\b(\d{1,9}) pass(?:ed|ing)\b"),  # pytest, cargo, jest, vitest, mocha, playwright
    re.compile(r"^Ran (\d{1,9}) tests? in ", re.MULTILINE),  # unittest
    re.compile(r"^(?:#|\u2139) pass (\d{1,9})$", re.MULTILINE),  # node --test
    re.compile(r"\bTests run: (\d{1,9}),"),  # JUnit
    re.compile(r"^OK \((\d{1,9}) tests?,", re.MULTILINE),  # PHPUnit
    re.compile(r"^(\d{1,9}) examples?, ", re.MULTILINE),  # RSpec
)
_GO_PACKAGE = re.compile(r"^ok\s+\S+\s+(?:\(cached\)|[\d.]+s)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Changes:
    """What one call did to one workspace."""

    root: str
    """Which workspace, as the paths are below it."""
    paths: Mapping[str, tuple[Standing, Standing]]
    """Of each path, what stood there before the call and after it."""
    before_digest: str | None = None
    after_digest: str | None = None
    """Of the whole workspace, if they are known."""
    is_complete: bool = True
    """Whether all paths are listed."""

    @property
    def is_change(self) -> bool:
        return bool(self.paths) or not self.is_complete

    def to_json(self) -> dict[str, JsonValue]:
        told: dict[str, JsonValue] = {
            "root": self.root,
            "paths": {path: [*standing] for path, standing in self.paths.items()},
        }
        if self.before_digest is not None:
            told |= {"before_digest": self.before_digest, "after_digest": self.after_digest}
        if not self.is_complete:
            told["is_complete"] = False
        return told

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Changes":
        return cls(
            stored["root"],
            {path: (before, after) for path, (before, after) in stored["paths"].items()},
            stored.get("before_digest"),
            stored.get("after_digest"),
            stored.get("is_complete", True),
        )


@dataclass(frozen=True, slots=True)
class CommandRun:
    """How a command ended."""

    command: Sequence[str]
    exit_code: int | None  # None: it was killed, or nobody knows
    is_whole: bool = True  # its output was kept to the last byte
    tests: int | None = None
    """Tests that have passed, by what it wrote; None if that does not say."""

    @property
    def outcome(self) -> Outcome:
        """What it says as a verification. An exit code of 0 alone says nothing: no test may have
        been found."""
        return "passed" if self.problem is None else "failed" if self._has_failed else "unavailable"

    @property
    def problem(self) -> str | None:
        """Why it has not passed, for the model; None if it has."""
        if self.exit_code is None:
            return "it did not come to its end in its time"
        if self._has_failed:
            return f"it failed with exit code {self.exit_code}"
        if not self.is_whole:
            return "its output is too long to be kept whole"
        if self.tests is None:
            return "its output does not say how many tests it ran"
        return "it ran no test" if self.tests == 0 else None

    @property
    def _has_failed(self) -> bool:
        return self.exit_code not in (0, None)

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "command": list(self.command),
            "exit_code": self.exit_code,
            "is_whole": self.is_whole,
            "tests": self.tests,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CommandRun":
        return cls(**stored)

    @classmethod
    def of_result(cls, result: JsonValue) -> "CommandRun | None":
        """What a tool's result says of the command that it ran; None if it says of none.

        Read are `exit_code`, `command` (a list of words), `output`, `timed_out`, `is_truncated` and
        `tests_passed`, where `output` need not be searched for that.
        """
        if not isinstance(result, dict) or "exit_code" not in result:
            return None
        exit_code = result["exit_code"]
        is_number = isinstance(exit_code, int) and not isinstance(exit_code, bool)
        words, output = result.get("command"), result.get("output")
        tests = result.get("tests_passed", output)
        return cls(
            [str(word) for word in words] if isinstance(words, list) else [],
            exit_code if is_number and not result.get("timed_out") else None,  # type: ignore[arg-type]  # an int by then
            is_whole=not result.get("is_truncated"),
            tests=_tests_passed(tests),
        )


def command_evidence(result: JsonValue) -> dict[str, JsonValue]:
    """What a call's result is evidence of, as to a command; perhaps nothing."""
    command = CommandRun.of_result(result)
    return {} if command is None else {"command": command.to_json()}


@dataclass(frozen=True, slots=True)
class Deed:
    """One call that has changed something, or looked whether all is well, as its rows tell."""

    call_id: CallId
    tool: str
    begun: int
    ended: int
    """The numbers of the run's events that say so: an order that no clock decides."""
    is_done: bool = True
    """False: it failed, or nobody knows what came of it."""
    mutates_workspace: bool = False
    verifies: bool = False
    is_observed: bool = False
    """Somebody has seen its effect where it was to take place, besides whoever made the call."""
    changes: Sequence[Changes] = field(default=())  # of each attempt that has told
    is_told: bool = True
    """False: it may have changed files, and nothing says which."""
    command: CommandRun | None = None


def _tests_passed(told: JsonValue) -> int | None:
    if isinstance(told, int) and not isinstance(told, bool):
        return max(0, told)
    if not isinstance(told, str):
        return None
    text = told[-MAX_READ_CHARACTERS:]
    counts = [int(count) for pattern in _TESTS_PASSED for count in pattern.findall(text)]
    counts += [1 for _ in _GO_PACKAGE.findall(text)]
    return sum(counts) if counts else None
