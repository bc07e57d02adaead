"""Drives a workflow's code, without a clock, an event loop or a server: the same input and the same
log give the same questions, in whichever process and wherever its turns are cut.

The code is run until all of it waits for something. Then it is told of one end of its log, in the
order in which these became known, and runs until all of it waits again, and so on.
"""

from collections import deque
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, stored_form
from celeriac.errors import ActivityFailed, CeleriacError, InvalidInput, LogFull, StaleFlow
from celeriac.workflows.context import WorkflowContext
from celeriac.workflows.entry import Asked, End, EndKind, Entry, EntryKind, Turn
from celeriac.workflows.promise import Branch, EntryPromise, Promise

if TYPE_CHECKING:
    from celeriac.workflows.definition import Workflow

MAX_ENTRIES = 10_000  # of one generation: a cold replay of so many takes about a second


class Flow:
    """One run of a workflow's code, from its start to where it waits now.

    `now` is the time of the claim, by the database's clock: what `ctx.now()` says in this turn.
    """

    def __init__(self, workflow: "Workflow[Any]", input: JsonValue, now: datetime) -> None:  # noqa: A002 - the word of the interface
        self._workflow = workflow
        self._input = input
        self.now = now
        self._log: dict[int, Entry] = {}
        self._next_number = 0
        self._told = 0  # ends that the code knows of
        self._unconfirmed: dict[int, Asked] = {}
        self._open: dict[int, EntryPromise[Any]] = {}
        self._ready: deque[Branch[Any]] = deque()
        self._waits: dict[Branch[Any], Promise[Any]] = {}
        self._versions: dict[str, bool] = {}
        self._main: Branch[Any] | None = None
        self._end: End | None = None

    def advance(self, entries: Sequence[Entry] = (), now: datetime | None = None) -> Turn:
        """Take what is new in the log, and go on until all of the code waits, or it has ended.

        `entries` are those that the flow does not know yet and those whose end it does not know, in
        any order; what it knows already does no harm. May be called again before `committed`: the
        turn then holds all that is not in the log yet.

        Raises `StaleFlow` if the log has gone on without this flow: make a new one, from the start.
        """
        self.now = now or self.now
        ends = self._take(entries)
        if self._main is None:
            self._begin()
        self._run()
        for entry in ends:
            if self._end is not None:
                break
            self._tell(entry)
            self._run()
        if self._is_behind() and (self._end is None or self._end.kind is not EndKind.DIVERGED):
            self._diverge(self._log[self._next_number].asked, None)
        if self._end is not None:
            return Turn(tuple(self._unconfirmed.values()), {}, self._end)
        return Turn(tuple(self._unconfirmed.values()), self._groups())

    def committed(self) -> None:
        """The last turn is in the log now."""
        self._log.update((number, Entry(asked)) for number, asked in self._unconfirmed.items())
        self._unconfirmed.clear()

    # ------------------------------------------------------------------ what the context asks for

    def ask(self, kind: EntryKind, name: str, arguments: JsonValue, terms: JsonValue = None) -> int:
        """The number of the entry, which is new or in the log already."""
        return self._entered(kind, name, arguments, None, terms).number

    def answered(self, kind: EntryKind, name: str, value: JsonValue) -> JsonValue:
        """What the log says, or else `value`, which it will say from now on."""
        return self._entered(kind, name, None, value, None).value

    def version(self, change_id: str) -> bool:
        if change_id not in self._versions:
            found = self._log.get(self._next_number)
            is_old = found is not None and (found.asked.kind, found.asked.name) != (
                EntryKind.VERSION,
                change_id,
            )
            if not is_old:
                self.answered(EntryKind.VERSION, change_id, value=True)
            self._versions[change_id] = not is_old
        return self._versions[change_id]

    def open(self, promise: EntryPromise[Any]) -> None:
        """The promise that is kept by the end of its entry."""
        self._open[promise.number] = promise

    def branch(self, coroutine: Coroutine[Any, Any, Any]) -> Branch[Any]:
        """Begins when the code that runs now waits."""
        branch = Branch(coroutine)
        self._ready.append(branch)
        return branch

    def _entered(
        self, kind: EntryKind, name: str, arguments: JsonValue, value: JsonValue, terms: JsonValue
    ) -> Asked:
        if self._end is not None:
            raise _Ended
        number = self._next_number
        if number >= MAX_ENTRIES:
            raise LogFull(
                f"workflow {self._workflow.name} has asked for {MAX_ENTRIES} things, which is all "
                "that one log can hold: let it go on with ctx.continue_as_new(input) before that"
            )
        asked = Asked(number, kind, name, stored_form(arguments), stored_form(value), terms)
        if (found := self._log.get(number)) is None:
            self._unconfirmed[number] = asked
        elif found.asked.fingerprint == asked.fingerprint:
            asked = found.asked
        else:
            self._diverge(found.asked, asked)
            raise _Ended
        self._next_number += 1
        return asked

    # -------------------------------------------------------------------------------- driving

    def _take(self, entries: Sequence[Entry]) -> list[Entry]:
        """Enter what is new, and return the ends that the code is to be told of, in their order."""
        ends: dict[int, Entry] = {}
        for entry in entries:
            number = entry.asked.number
            if (ours := self._unconfirmed.get(number)) is not None:
                if (ours.fingerprint, ours.value) != (entry.asked.fingerprint, entry.asked.value):
                    raise StaleFlow(
                        f"entry {number} of workflow {self._workflow.name} was written by another "
                        "process, and is not what this one asked for"
                    )
                del self._unconfirmed[number]
            self._log[number] = entry
            if entry.told is not None and entry.told >= self._told:
                ends[entry.told] = entry
        if ends and sorted(ends) != list(range(self._told, self._told + len(ends))):
            raise StaleFlow(
                f"workflow {self._workflow.name} knows {self._told} ends of its log and was told "
                f"of numbers {min(ends)} to {max(ends)}, of which some are missing"
            )
        return [ends[told] for told in sorted(ends)]

    def _begin(self) -> None:
        try:
            coroutine = self._workflow.begin(WorkflowContext(self, self._workflow), self._input)
        except InvalidInput as error:
            self._main = Branch(_nothing())
            self._end = End(EndKind.DIVERGED, error={"kind": "diverged", "message": f"{error}"})
            return
        self._main = self.branch(coroutine)

    def _tell(self, entry: Entry) -> None:
        self._told += 1
        number = entry.asked.number
        if number >= self._next_number:
            self._diverge(self._log[self._next_number].asked, None)
            return
        if (promise := self._open.pop(number, None)) is not None:
            error = None if entry.error is None else _failure(entry)
            promise.end(entry.result, error)

    def _run(self) -> None:
        while self._ready and self._end is None:
            branch = self._ready.popleft()
            if not branch.is_dropped:
                self._step(branch)

    def _step(self, branch: Branch[Any]) -> None:
        problem: Exception | None = None
        while True:
            try:
                if problem is None:
                    waits = branch.coroutine.send(None)
                else:
                    waits = branch.coroutine.throw(problem)
            except StopIteration as returned:
                self._ended(branch, returned.value, None)
                return
            except _Ended:
                return
            except ContinueAsNew as continued:
                self._end = End(EndKind.CONTINUED, continued.input)
                return
            except Exception as error:  # noqa: BLE001 - whatever the code raises fails the run
                self._ended(branch, None, error)
                return
            if isinstance(waits, Promise):
                break
            problem = TypeError(
                f"workflow {self._workflow.name} awaits {waits!r}, which is not of its context: a "
                "workflow can await what ctx gives it, and nothing else. Do the rest in a tool, "
                "and call it with ctx.activity"
            )
        self._waits[branch] = waits
        waits.listen(lambda: self._wake(branch))

    def _wake(self, branch: Branch[Any]) -> None:
        del self._waits[branch]
        self._ready.append(branch)

    def _ended(self, branch: Branch[Any], value: Any, error: Exception | None) -> None:
        branch.end(value, error)
        if branch is not self._main or self._end is not None:
            return
        if error is None:
            self._end = End(EndKind.COMPLETED, stored_form(value))
        else:
            self._end = End(EndKind.FAILED, error=_report(error))

    def _is_behind(self) -> bool:
        return self._next_number in self._log

    def _diverge(self, logged: Asked, asked: Asked | None) -> None:
        told = "waits or ends here" if asked is None else f"asks for {_named(asked)}"
        message = (
            f"the code of workflow {self._workflow.name} does not do what its log says: entry "
            f"{logged.number} of the log is {_named(logged)}, and the code {told}. Deploy code "
            "that does the same up to here, with ctx.version where it differs, and retry the run"
        )
        self._end = End(EndKind.DIVERGED, error={"kind": "diverged", "message": message})

    def _groups(self) -> dict[int, int]:
        found = {group for waits in self._waits.values() for group in waits.groups()}
        groups: dict[int, int] = {}
        several: set[int] = set()
        for number in (number for group in found for number in group):
            if number in groups:
                several.add(number)
            groups[number] = number
        for group in found:
            if several.isdisjoint(group):
                groups.update(dict.fromkeys(group, min(group)))
        return dict(sorted(groups.items()))


class ContinueAsNew(BaseException):
    """Ends the code where it is. No `Exception`, which the code may catch."""

    def __init__(self, input: JsonValue) -> None:  # noqa: A002 - the word of the interface
        self.input = input


class _Ended(BaseException):
    """The code has diverged, or goes on asking while it is being closed."""


async def _nothing() -> None:
    pass


def _failure(entry: Entry) -> ActivityFailed:
    assert entry.error is not None
    return ActivityFailed(_named(entry.asked), entry.error)


def _report(error: Exception) -> dict[str, JsonValue]:
    """What the run's error says."""
    if isinstance(error, ActivityFailed):
        return {"kind": "activity_failed", "message": str(error), "cause": error.error}
    if isinstance(error, CeleriacError):
        return {"kind": "workflow_failed", "message": str(error)}
    return {"kind": "workflow_failed", "message": f"{type(error).__name__}: {error}"}


def _named(asked: Asked) -> str:
    return f"{asked.kind} {asked.name}"
