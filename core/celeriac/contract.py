"""What must be so before a run may say that its work is done.

coder = Agent("coder", model, tools=workspace_tools(tests=["pytest"]), contract=Contract(
    paths_changed=["src/**"], require_focused_verification=True,
))
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent

Enforcement = Literal["strict", "advisory"]
MOST_CORRECTIONS = 20


@dataclass(frozen=True, slots=True)
class Contract:
    """Held against what the run's calls have left behind (`celeriac.evidence`), in their order,
    each time that the model answers without calls. A run keeps the contract that it was started
    with: a deploy changes no running run.

    Raises `InvalidAgent` if it contradicts itself, or requires nothing.
    """

    require_workspace_mutation: bool = False
    """Some file is not what it was when the run began, by its content."""
    paths_changed: Sequence[str] = ()
    """So is some file of each of these patterns: `*` stands for any characters but `/`, `?` for
    one, and `**` between two `/` for any folders."""
    require_observed_effect: bool | Sequence[str] = False
    """Some call, or some call of each of these tools, took effect outside of the workspace and was
    seen there: by its `verify`, in this database, or by a receipt. A change of files counts only
    where `paths_changed` names them."""
    command_succeeded: Sequence[Sequence[str]] = ()
    """Each of these commands, word by word, has ended with 0 after the last change."""
    require_focused_verification: bool | Sequence[str] = False
    """The tests (of a tool that `verifies`) have passed after the last change, and no test has
    failed since. If words are given, by a command that has them all, such as a test file's name."""
    enforcement: Enforcement = "strict"
    """`strict`: the model is told what is missing, and if it still is in the end, the run fails
    (`contract_unmet`). `advisory`: the run completes, and what is missing is on record."""
    max_corrections: int = 3
    """How often the model may be told in one run."""

    def __post_init__(self) -> None:
        for name in ("paths_changed", "command_succeeded"):
            if isinstance(getattr(self, name), str):
                raise InvalidAgent(f"{name} is a text; give a list")
        if not self.is_required:
            raise InvalidAgent("the contract requires nothing; leave it out")
        for pattern in self.paths_changed:
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                raise InvalidAgent(f"paths_changed: {pattern!r} names no path inside a workspace")
            if any("**" in part and part != "**" for part in pattern.split("/")):
                raise InvalidAgent(
                    f"paths_changed: in {pattern!r} ** stands beside something else; it is for "
                    "whole folders, as in src/**/*.py"
                )
        for command in self.command_succeeded:
            if isinstance(command, str) or not command:
                raise InvalidAgent(f"command_succeeded: {command!r} is no list of words")
        if self.enforcement not in ("strict", "advisory"):
            raise InvalidAgent(f"enforcement={self.enforcement!r} is neither strict nor advisory")
        if (
            isinstance(self.max_corrections, bool)
            or not 0 <= self.max_corrections <= MOST_CORRECTIONS
        ):
            raise InvalidAgent(
                f"max_corrections={self.max_corrections!r} is no number from 0 to "
                f"{MOST_CORRECTIONS}"
            )

    @property
    def is_required(self) -> bool:
        """Whether it requires anything at all."""
        return bool(
            self.require_workspace_mutation
            or self.paths_changed
            or self.require_observed_effect
            or self.command_succeeded
            or self.require_focused_verification
        )

    @property
    def tools(self) -> Sequence[str]:
        """The tools that must have taken effect, by name."""
        return (
            () if isinstance(self.require_observed_effect, bool) else self.require_observed_effect
        )

    @property
    def focus(self) -> Sequence[str]:
        """The words that the verification's command must have."""
        required = self.require_focused_verification
        return () if isinstance(required, bool) else required

    def to_json(self) -> dict[str, JsonValue]:
        return _listed(asdict(self))  # type: ignore[return-value]  # a dict stays one

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Contract":
        """The contract as a run stored it. Raises `InvalidAgent` for what this version does not
        know: to leave a requirement out would be to say that it is met."""
        if unknown := stored.keys() - {field.name for field in fields(cls)}:
            raise InvalidAgent(
                f"the run was started with a contract that requires {', '.join(sorted(unknown))}, "
                "which this version does not know: let workers of the newer one take it, then "
                "`celeriac retry` it"
            )
        return cls(**stored)


def matches(pattern: str, path: str) -> bool:
    """Whether a path is one of a pattern, however their letters are composed: a name that was typed
    on one machine reads the same on another, which writes its accents apart."""
    segments = _composed(path).split("/")
    places = {0}  # in the path, up to which the pattern's segments so far may reach
    *those_before, last = _composed(pattern).split("/")
    for wanted in those_before:
        if wanted == "**":
            places = set(range(min(places, default=len(segments)), len(segments)))
        else:
            places = {place + 1 for place in places if _fits(wanted, segments[place:])}
    if last == "**":
        return any(place < len(segments) for place in places)
    return len(segments) - 1 in places and _fits(last, segments[-1:])


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _fits(wanted: str, segments: Sequence[str]) -> bool:
    """Whether the first of the segments is one of the pattern's segment `wanted`."""
    if not segments:
        return False
    first, *middle = ("".join(_fixed(each)) for each in wanted.split("*"))
    if not middle:
        return re.fullmatch(first, segments[0], re.DOTALL) is not None
    # What stands between two stars is looked for once, where it comes first, and never again: time
    # is linear in the segment, which another process may have made up.
    *middle, end = middle
    expression = first + "".join(f"(?>.*?{each})" for each in middle) + f".*{end}"
    return re.fullmatch(expression, segments[0], re.DOTALL) is not None


def _fixed(piece: str) -> Iterator[str]:
    return ("." if each == "?" else re.escape(each) for each in piece)


def _listed(value: Any) -> JsonValue:
    """The same with lists for tuples, as it is stored."""
    if isinstance(value, dict):
        return {name: _listed(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return value  # type: ignore[no-any-return]  # what is left is a scalar
