"""What of a contract is not met, by what the run's calls have left behind.

A pure function: the same contract and the same deeds give the same answer, in whichever process
and however often it is asked. The deeds are gone through in the order of the run's events, and what
came later counts: a change makes an earlier verification stale, a failure takes a success back, and
a file that is again what it was has not changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celeriac.codec import JsonValue
from celeriac.contract import Contract, matches
from celeriac.evidence import UNTOLD, Changes, Deed, Standing


@dataclass(frozen=True, slots=True)
class Unmet:
    """One requirement of the contract that is not met, and why not, for the model."""

    requirement: str
    why: str

    def to_json(self) -> dict[str, JsonValue]:
        return {"requirement": self.requirement, "why": self.why}


def unmet(contract: Contract, deeds: Iterable[Deed]) -> list[Unmet]:
    """What is missing, in the order of the contract's fields; nothing if it is met."""
    ledger = _Ledger(contract)
    for deed in sorted(deeds, key=lambda deed: (deed.ended, deed.begun, deed.call_id)):
        ledger.add(deed)
    return ledger.unmet()


class _Ledger:
    """What the deeds so far add up to."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._files = _Files()
        self._changed: Deed | None = None  # the latest that changed something
        self._effects: list[Deed] = []
        self._commands: dict[tuple[str, ...], Deed] = {}  # the latest of each
        self._verification: Deed | None = None  # the latest that has a say

    def add(self, deed: Deed) -> None:
        is_check = deed.verifies or self._is_wanted_command(deed)
        if self._has_changed_something(deed, is_check=is_check):
            self._changed = deed
        for changes in deed.changes:
            if not is_check or self._files.has_any(changes):
                self._files.add(changes)
        if deed.is_done and deed.is_observed and not deed.verifies:
            self._effects.append(deed)
        if deed.command is not None:
            self._commands[tuple(deed.command.command)] = deed
        if deed.verifies and (self._is_focused(deed) or _has_failed(deed)):
            self._verification = deed

    def unmet(self) -> list[Unmet]:
        contract = self._contract
        changed = self._files.changed()
        found: list[Unmet] = []

        def miss(requirement: str, why: str | None) -> None:
            if why is not None:
                found.append(Unmet(requirement, why))

        if contract.require_workspace_mutation and not changed:
            miss("require_workspace_mutation", "no file differs from what it was at the beginning")
        for pattern in contract.paths_changed:
            if not any(matches(pattern, path) for path in changed):
                miss(
                    "paths_changed",
                    f"no file of the pattern {pattern!r} differs from what it was at the beginning",
                )
        for tool in contract.tools:
            if not any(effect.tool == tool for effect in self._seen(changed)):
                miss("require_observed_effect", f"no effect of {tool} was seen where it belongs")
        if contract.require_observed_effect is True and not self._seen(changed):
            miss("require_observed_effect", "no effect was seen outside of the workspace")
        for command in contract.command_succeeded:
            words = " ".join(command)
            miss("command_succeeded", self._problem_of_command(tuple(command), words))
        if contract.require_focused_verification:
            miss("require_focused_verification", self._problem_of_verification())
        return found

    def _has_changed_something(self, deed: Deed, *, is_check: bool) -> bool:
        """Whether what was checked before the deed may be wrong after it. What a check leaves
        behind, such as caches and reports, is not what it checks; unless others have changed it."""
        if not deed.is_told:
            return True
        if is_check:
            return any(self._files.has_any(changes) for changes in deed.changes)
        return any(changes.is_change for changes in deed.changes)

    def _is_wanted_command(self, deed: Deed) -> bool:
        if deed.command is None:
            return False
        return any(
            [*deed.command.command] == [*wanted] for wanted in self._contract.command_succeeded
        )

    def _is_focused(self, deed: Deed) -> bool:
        words = [] if deed.command is None else deed.command.command
        # A check that never came to its end may have been the focused one: it counts against it.
        return deed.command is None or all(word in words for word in self._contract.focus)

    def _seen(self, changed: Sequence[str]) -> list[Deed]:
        wanted = [
            path
            for path in changed
            if any(matches(pattern, path) for pattern in self._contract.paths_changed)
        ]
        return [
            effect
            for effect in self._effects
            if not any(changes.is_change for changes in effect.changes)
            or any(path in changes.paths for changes in effect.changes for path in wanted)
        ]

    def _problem_of_command(self, command: tuple[str, ...], words: str) -> str | None:
        deed = self._commands.get(command)
        if deed is None:
            return f"`{words}` has not been run"
        assert deed.command is not None
        if deed.command.exit_code is None:
            return f"`{words}` (call {deed.call_id}) did not come to its end"
        if deed.command.exit_code != 0:
            return f"`{words}` (call {deed.call_id}) ended with {deed.command.exit_code}"
        return self._staleness(deed, f"`{words}`")

    def _problem_of_verification(self) -> str | None:
        deed, focus = self._verification, " ".join(self._contract.focus)
        of_focus = f" of {focus}" if focus else ""
        if deed is None:
            return f"the tests{of_focus} have not been run"
        problem = "nobody knows what came of it" if deed.command is None else deed.command.problem
        if problem is not None:
            return f"the last run of the tests (call {deed.call_id}) counts for nothing: {problem}"
        return self._staleness(deed, f"the tests{of_focus}")

    def _staleness(self, deed: Deed, what: str) -> str | None:
        # It must have begun after the change was over: what overlaps may have seen the old state.
        if self._changed is None or deed.begun > self._changed.ended:
            return None
        return (
            f"{what} ran (call {deed.call_id}) before the last change (call "
            f"{self._changed.call_id}); run them again"
        )


def _has_failed(deed: Deed) -> bool:
    return deed.command is not None and deed.command.outcome == "failed"


class _Files:
    """What stood at each path before the first change of it, and what stands there now."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Standing] = {}
        self._now: dict[tuple[str, str], Standing] = {}
        self._digests: dict[str, list[str | None]] = {}  # of each workspace: before, after, …

    def has_any(self, changes: Changes) -> bool:
        return not changes.is_complete or any(
            (changes.root, path) in self._first for path in changes.paths
        )

    def add(self, changes: Changes) -> None:
        digests = self._digests.setdefault(changes.root, [])
        digests += [changes.before_digest, changes.after_digest]
        for path, (before, after) in changes.paths.items():
            self._first.setdefault((changes.root, path), before)
            self._now[changes.root, path] = after

    def changed(self) -> list[str]:
        """The paths at which something else stands now."""
        return sorted(
            path
            for (root, path), first in self._first.items()
            if _differ(first, self._now[root, path]) and not self._is_as_before(root)
        )

    def _is_as_before(self, root: str) -> bool:
        digests = self._digests[root]
        return None not in digests and digests[0] == digests[-1]


def _differ(first: Standing, now: Standing) -> bool:
    return UNTOLD in (first, now) or first != now
