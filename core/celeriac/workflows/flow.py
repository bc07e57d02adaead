"""Drives a workflow's code, without a clock, an event loop or a server: the same input and the same
log give the same questions, in whichever process and wherever its turns are cut.

The code is run until all of it waits for something. Then it is told of one end of its log, in the
order in which these became known, and runs until all of it waits again, and so on.
"""

from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from inspect import CORO_CLOSED, getcoroutinestate
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from celeriac.codec import JsonValue, stored_form
from celeriac.errors import ActivityFailed, InvalidInput, LogFull, StaleFlow
from celeriac.workflows.context import WorkflowContext
from celeriac.workflows.divergence import diverged, named
from celeriac.workflows.entry import Asked, End, EndKind, Entry, EntryKind, Turn
from celeriac.workflows.events import Events
from celeriac.workflows.failure import Failures, report
from celeriac.workflows.guard import guarded
from celeriac.workflows.promise import Branch, EntryPromise, Promise

if TYPE_CHECKING:
    from celeriac.workflows.definition import Workflow

T = TypeVar("T")
MAX_ENTRIES = 10_000
"""Of one generation. A cold replay of so many must stay a matter of seconds."""


class Flow:
    """One run of a workflow's code, from its start to where it waits now. For one thread at a time.

    `now` is the time of the claim, by the database's clock: what `ctx.now()` says in this turn.
    `run_id` is what `ctx.run_id` says.
    """

    def __init__(
        self,
        workflow: "Workflow[Any]",
        input: JsonValue,  # noqa: A002 - the word of the interface
        now: datetime,
        *,
        run_id: str = "",
    ) -> None:
        self._workflow = workflow
        self._input = input
        self.now = now
        self.run_id = run_id
        self._ahead: dict[int, Entry] = {}  # of the log, what the code has not asked for yet
        self._holes: set[int] | None = None  # numbers that the log of a retry lacks; None: unknown
        self._is_retry = False  # whether there were any
        self.failures = Failures()
        self._next_number = 0
        self._told = 0  # ends that the code knows of
        self._unconfirmed: dict[int, Asked] = {}
        self._open: dict[int, EntryPromise[Any]] = {}
        self.events = Events(lambda name: self.ask(EntryKind.EVENT, name).number)
        self._versions: dict[str, bool] = {}
        self._main: Branch[Any] | None = None
        self._current: Branch[Any] | None = None
        self._ready: deque[Branch[Any]] = deque()
        self._waits: dict[Branch[Any], Promise[Any]] = {}
        self._end: End | None = None
        self._is_broken = False

    def advance(self, entries: Sequence[Entry] = (), now: datetime | None = None) -> Turn:
        """Take what is new in the log, and go on until all of the code waits, or it has ended.

        `entries` are those that the flow does not know yet and those whose end it does not know, in
        any order; what it knows already does no harm. May be called again before `committed`: the
        turn then holds all that is not in the log yet.

        Raises `StaleFlow` if the log has gone on without this flow, or an exception that is not the
        code's came between: make a new flow then, which begins at the start.
        """
        self.now = now or self.now
        with self._unless_broken(), guarded():
            ends = self._take(entries)
            if self._holes is None:
                self._holes = {*range(max(self._ahead, default=0))} - self._ahead.keys()
                self._is_retry = bool(self._holes)
            if self._main is None:
                self._begin()
            self._run()
            for entry in ends:
                if self._end is None:
                    self._tell(entry)
                    self._run()
            self._look_back()
            groups = self._groups() if self._end is None else {}
            if self._end is None and not groups:
                self._end = End(EndKind.FAILED, error=report(_stuck(self._workflow.name)))
            if self._end is not None and self._main is not None:
                self.drop(self._main)
        has_diverged = self._end is not None and self._end.kind is EndKind.DIVERGED
        return Turn(() if has_diverged else tuple(self._unconfirmed.values()), groups, self._end)

    def committed(self) -> None:
        """The last turn is in the log now."""
        self._unconfirmed.clear()

    def close(self) -> None:
        """Let go of the code, which goes on elsewhere, if at all. Its `finally` is run, and can ask
        for nothing; else that would happen whenever the garbage is collected."""
        self._end = self._end or End(EndKind.FAILED)
        if self._main is not None:
            with guarded():
                self.drop(self._main)

    # ------------------------------------------------------------------ what the context asks for

    def ask(
        self,
        kind: EntryKind,
        name: str,
        arguments: JsonValue = None,
        *,
        value: JsonValue = None,
        terms: JsonValue = None,
        label: str | None = None,
    ) -> Asked:
        """The next entry, which is new or in the log already. What is answered at once has the
        log's value, or else this one."""
        if self._end is not None:
            raise Stopped
        number = self._next_number
        assert self._holes is not None, "the code runs"
        asked = Asked(number, kind, name, stored_form(arguments), stored_form(value), terms, label)
        found = self._ahead.pop(number, None)
        while found is not None and found.asked.fingerprint != asked.fingerprint:
            if found.asked.kind is not EntryKind.VERSION:
                does = f"asks for {named(asked)}"
                self.stop(self._diverged(found.asked, does))
            # The code does not ask for that version any more: it does what was new then.
            self._next_number = number = number + 1
            asked = replace(asked, number=number)
            found = self._ahead.pop(number, None)
        if found is not None:
            asked = found.asked
        elif number >= MAX_ENTRIES:
            raise LogFull(
                f"workflow {self._workflow.name} has asked for {MAX_ENTRIES} things, which is all "
                "that one log can hold: let it go on with ctx.continue_as_new(input) before that"
            )
        else:
            self._unconfirmed[number] = asked
            self._holes.discard(number)
        self._next_number += 1
        return asked

    def promise(self, asked: Asked, read: Callable[[Any], T]) -> EntryPromise[T]:
        """What the end of the entry keeps."""
        promise = EntryPromise(asked.number, read)
        self._open[asked.number] = promise
        return promise

    def version(self, change_id: str) -> bool:
        """Whether the run does what was changed; see `WorkflowContext.version`."""
        if change_id not in self._versions:
            self._versions[change_id] = self._is_new(change_id)
            if self._versions[change_id]:
                self.ask(EntryKind.VERSION, change_id, value=True)
        return self._versions[change_id]

    def branch(self, coroutine: Coroutine[Any, Any, Any]) -> Branch[Any]:
        """Begins when the code that runs now waits, and ends with it at the latest."""
        branch = Branch(coroutine)
        if self._current is not None:
            self._current.begun[branch] = None
            branch.parent = self._current
        self._ready.append(branch)
        return branch

    def drop(self, branch: Branch[Any]) -> None:
        """It ends where it is, and with it all that it has begun."""
        # What one that has ended had begun goes on with its parent; the code itself has none.
        if branch.is_dropped or (branch.is_kept and branch is not self._main):
            return
        branch.is_dropped = True
        for begun in list(branch.begun):
            self.drop(begun)
        self._waits.pop(branch, None)
        before, self._current = self._current, branch
        try:
            branch.coroutine.close()
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the code's, in a `finally`
            told = report(error)
            if getcoroutinestate(branch.coroutine) is not CORO_CLOSED:
                # "coroutine ignored GeneratorExit" says less.
                told["message"] = (
                    f"a coroutine of workflow {self._workflow.name} was to end, and awaits "
                    "something in its `finally`, or after it has caught GeneratorExit"
                )
            self._end = self._end or End(EndKind.FAILED, error=told)
        finally:
            self._current = before

    def stop(self, end: End) -> NoReturn:
        """The code goes on no further."""
        self._end = self._end or end
        raise Stopped

    # -------------------------------------------------------------------------------- the log

    def _take(self, entries: Sequence[Entry]) -> list[Entry]:
        """Enter what is new, and return the ends that the code is to be told of, in their order."""
        ends: dict[int, Entry] = {}
        for entry in entries:
            number = entry.asked.number
            ours = self._unconfirmed.pop(number, None)
            if ours is not None and (ours.fingerprint, ours.value) != (
                entry.asked.fingerprint,
                entry.asked.value,
            ):
                raise StaleFlow(
                    f"entry {number} of workflow {self._workflow.name} was written by another "
                    "process, and is not what this one asked for"
                )
            if number >= self._next_number:
                self._ahead[number] = entry
            if entry.told is not None and entry.told >= self._told:
                ends[entry.told] = entry
        if ends and sorted(ends) != list(range(self._told, self._told + len(ends))):
            raise StaleFlow(
                f"workflow {self._workflow.name} knows the first {self._told} ends of its log, and "
                f"is told of {len(ends)} from {min(ends)} to {max(ends)}: some are missing"
            )
        return [ends[told] for told in sorted(ends)]

    def _tell(self, entry: Entry) -> None:
        asked = entry.asked
        if asked.number >= self._next_number:
            self._look_back()  # the code does not ask for it any more
            return
        self._told += 1
        if asked.kind is EntryKind.EVENT:
            self.events.tell(asked.number, asked.name, entry.result, self._waits.values())
        elif (promise := self._open.pop(asked.number, None)) is not None:
            error = entry.error
            failed = None if error is None else ActivityFailed(f"{asked.kind} {asked.name}", error)
            if failed is not None:
                self.failures.note(asked.number, failed)
            promise.settle(entry.result, failed)

    def _look_back(self) -> None:
        """Whether the code has asked for all that its log says. So a turn that fills one hole in
        the log of a retry fills all of them."""
        left = [
            entry.asked
            for entry in self._ahead.values()
            if entry.asked.kind is not EntryKind.VERSION or self._holes
        ]
        if not left or (self._end is not None and self._end.kind is EndKind.DIVERGED):
            return
        match self._end:
            case None:
                does = "waits, without asking for anything more"
            case End(kind=EndKind.FAILED, error=error):
                does = f"fails: {(error or {}).get('message')}"
            case _:
                does = "ends"
        first = min(left, key=lambda asked: asked.number)
        self._end = self._diverged(first, does)

    def _diverged(self, logged: Asked, does: str) -> End:
        return diverged(self._workflow.name, logged, does, is_retry=self._is_retry)

    def _is_new(self, change_id: str) -> bool:
        number = self._next_number
        while (found := self._ahead.get(number)) and found.asked.kind is EntryKind.VERSION:
            if found.asked.name == change_id:
                return True
            number += 1  # of one that the code does not ask for any more
        return found is None and number not in (self._holes or ())

    # -------------------------------------------------------------------------------- the code

    def _begin(self) -> None:
        try:
            coroutine = self._workflow.begin(WorkflowContext(self, self._workflow), self._input)
        except InvalidInput as error:
            message = f"workflow {self._workflow.name} does not take its input any more: {error}"
            self._end = End(EndKind.DIVERGED, error={"kind": "diverged", "message": message})
            return
        self._main = self.branch(coroutine)

    def _run(self) -> None:
        while self._ready and self._end is None:
            branch = self._ready.popleft()
            if not branch.is_dropped:
                self._go_on(branch)

    def _go_on(self, branch: Branch[Any]) -> None:
        """Run a branch to where it waits, or to its end."""
        problem: Exception | None = None
        self._current = branch
        while not branch.is_kept and branch not in self._waits:
            try:
                waits = branch.coroutine.throw(problem) if problem else branch.coroutine.send(None)
                if self._end is not None:  # the code has caught `Stopped`
                    return
                problem = self._wait(branch, waits)
            except StopIteration as returned:
                self._finish(branch, returned.value, None)
            except Stopped:
                return
            except (KeyboardInterrupt, MemoryError):  # of this process, not of the code
                raise
            except Exception as error:  # noqa: BLE001 - the code's; it fails what awaits it
                self._finish(branch, None, error)
            except BaseException as error:  # noqa: BLE001 - sys.exit() ends the workflow only
                self._finish(branch, None, RuntimeError(f"the code raised {error!r}"))

    def _wait(self, branch: Branch[Any], waits: object) -> Exception | None:
        """What is to be raised in the code, at its await, if it cannot wait for that."""
        if not isinstance(waits, Promise):
            return TypeError(
                f"workflow {self._workflow.name} awaits something that is not of its context: it "
                "can await what ctx gives it, and nothing else. Do the rest in a tool, called by "
                "ctx.activity"
            )
        self._waits[branch] = waits
        try:
            self.events.await_all(waits, self._waits.values())
        except LogFull as error:
            del self._waits[branch]
            return error
        waits.listen(lambda: self._wake(branch))
        return None

    def _wake(self, branch: Branch[Any]) -> None:
        # A branch that was dropped does not wait any more.
        if self._waits.pop(branch, None) is not None:
            self._ready.append(branch)

    def _finish(self, branch: Branch[Any], value: Any, error: Exception | None) -> None:
        if (parent := branch.parent) is not None:
            parent.begun.pop(branch, None)
            for begun in branch.begun:
                begun.parent = parent
                parent.begun[begun] = None
        branch.settle(value, error)
        if branch is not self._main or self._end is not None:
            return
        if error is None:
            self._end = End(EndKind.COMPLETED, stored_form(value))
        else:
            because_of = self.failures.behind(error)
            self._end = End(EndKind.FAILED, error=report(error), because_of=because_of)

    def _groups(self) -> dict[int, int]:
        """Each group is named by its first entry. Those that overlap are split, so that an entry
        is in one group: to wake the code too early does no harm, to wake it too late would."""
        found = {group for waits in self._waits.values() for group in waits.groups()}
        count = Counter(number for group in found for number in group)
        groups: dict[int, int] = {}
        for group in found:
            is_shared = any(count[number] > 1 for number in group)
            groups.update({number: number if is_shared else min(group) for number in group})
        return dict(sorted(groups.items()))

    @contextmanager
    def _unless_broken(self) -> Iterator[None]:
        if self._is_broken:
            raise StaleFlow(
                f"the code of workflow {self._workflow.name} was interrupted in this process"
            )
        self._is_broken = True
        yield
        self._is_broken = False


def _stuck(name: str) -> InvalidInput:
    return InvalidInput(
        f"workflow {name} waits for nothing that could still end, so it would wait for ever: parts "
        "of its code await one another"
    )


class Stopped(BaseException):
    """The code goes on no further. No `Exception`, which the code might catch."""
