"""One turn of a workflow's code: it runs to where all of it waits, and what it asked for on its way
is begun by the turn's commit.

    load       the entries and ends that the code in this process does not know
    flow       the code goes on. No transaction, no lock held
    commit     one transaction, which begins as any step's: the run's row, fenced. With it the log,
               the runs that make its entries, timers, and what the run waits for from now on

An end that comes in meanwhile is found by the commit, which misses (`RequestsChanged`): the code
is told of it and goes on, and the turn is committed then. If the limits turn out there not to allow
what the code asks for, nothing of that is written, and a second commit ends the run.
"""

from collections.abc import Sequence
from dataclasses import replace

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent, StaleFlow
from celeriac.states import Phase, RunStatus, StepKind
from celeriac.testpoints import reach
from celeriac.workflows.definition import Workflow
from celeriac.workflows.entry import End, EndKind, Turn
from celeriac_storage import budgets, entries, mailbox, requests
from celeriac_storage.claims import Claim, RequestsChanged
from celeriac_storage.dispatch import Due
from celeriac_storage.entries import NewEntry
from celeriac_storage.step_record import Committed, Event, Next, StepRecord
from celeriac_storage.steps import commit
from celeriac_tasks import beginning
from celeriac_tasks.allotment import Allotment
from celeriac_tasks.beginning import BeyondLimits
from celeriac_tasks.committing import patiently
from celeriac_tasks.heeding import ended_before_it_begins
from celeriac_tasks.live_flow import LiveFlow
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.worker_process import WorkerProcess

WAIT_FOR_ACTIVITIES = Next(
    RunStatus.PAUSED, Phase.WAITING_ACTIVITY, resume_phase=Phase.WAITING_CODE
)


class TurnStep:
    """The turn of a claimed workflow."""

    def __init__(self, worker: WorkerProcess, loaded: LoadedAgent, claim: Claim) -> None:
        if not isinstance(loaded.agent, Workflow):
            raise InvalidAgent(
                f"{claim.agent} was a workflow when the run began, and is none in this worker's "
                f"code: deploy code in which it is, then `celeriac retry {claim.run_id}`"
            )
        self._worker = worker
        self._loaded = loaded
        self._workflow = loaded.agent
        self._claim = claim
        self._allotment = Allotment(worker, loaded)
        self.due: Sequence[Due] = ()  # steps of other runs, to be published after the commit

    def take(self) -> Committed:
        """Let the code go on, and commit what it asked for. Raises `Fenced` or
        `DatabaseUnavailable`."""
        worker = self._worker
        flow = worker.flows.take(self._claim)
        while True:
            try:
                if (ended := ended_before_it_begins(self._claim)) is not None:
                    return self._commit(LiveFlow(self._claim.generation), Turn(), ended)
                if (refused := self._allotment.reserve_calls(self._claim, ())) is not None:
                    return self._commit(LiveFlow(self._claim.generation), Turn(), refused)
                try:
                    turn = self._go_on(flow)
                except StaleFlow:
                    flow = LiveFlow(self._claim.generation)
                    turn = self._go_on(flow)
                following = _following(turn)
                is_stuck = following.status is RunStatus.NEEDS_ATTENTION
                record = self._record(flow, turn, following, advances=not is_stuck)
                # Else nothing is begun of what the code asks for.
                turn = turn if record.advances else Turn()
                try:
                    committed = self._commit(flow, turn, record)
                except BeyondLimits as beyond:
                    record = self._record(flow, turn, _failed(beyond), advances=False)
                    turn = Turn()
                    committed = self._commit(flow, turn, record)
                break
            except RequestsChanged as changed:
                self._claim = changed.claim
        if committed.status is RunStatus.PAUSED:
            flow.committed(turn, committed.step)
            worker.flows.put(self._claim.run_id, flow)
        return committed

    def _go_on(self, flow: LiveFlow) -> Turn:
        claim = self._claim
        with self._worker.active, self._worker.database.connect() as connection:
            new = flow.catch_up(connection, self._workflow, claim)
        reach("step.after_load", claim.step)
        turn = flow.advance(new, claim)
        reach("turn.after_code", claim.step)
        return turn

    def _record(self, flow: LiveFlow, turn: Turn, following: Next, *, advances: bool) -> StepRecord:
        is_new = self._claim.agent_hash is None
        return StepRecord(
            next=following,
            kind=StepKind.FLOW,
            reason=_reason(turn),
            advances=advances,
            state=_state(flow, turn),
            agent_hash=self._loaded.agent_hash if is_new else None,
            tools_hash=self._loaded.tools_hash if is_new else None,
            prompt_hash=self._loaded.prompt_hash if is_new else None,
        )

    def _commit(self, flow: LiveFlow, turn: Turn, record: StepRecord) -> Committed:
        new = [
            beginning.new_entry(self._loaded, self._claim, asked, turn.groups.get(asked.number))
            for asked in turn.asked
        ]
        record = replace(record, events=_events(self._claim, turn, new))
        return patiently(
            self._worker,
            self._claim,
            self._loaded.agent.step_deadline_seconds,
            lambda: self._commit_once(flow, turn, record, new),
        )

    def _commit_once(
        self, flow: LiveFlow, turn: Turn, record: StepRecord, new: list[NewEntry]
    ) -> Committed:
        claim = self._claim
        record = self._allotment.charge(claim, record, ())
        with self._worker.active, self._worker.database.begin() as connection:
            reach("step.before_commit", claim.step)
            done = commit(connection, claim, replace(record, budget_use=None))
            due: list[Due] = []
            if record.advances:
                due += beginning.begin(connection, self._loaded, claim, new)
                entries.regroup(connection, claim, flow.regrouped(turn))
                if flow.awaits_events(turn):
                    woken = mailbox.deliver(connection, claim.run_id, is_published=True)
                    due += [] if woken is None else [woken]
            if turn.end is not None and turn.end.kind is EndKind.CONTINUED:
                entries.continue_as_new(connection, claim, turn.end.value)
            if done.status.is_terminal or _continues(turn.end):
                requests.cancel_children(connection, claim.run_id)
            if record.budget_use is not None:  # last: the rest locks other runs
                budgets.settle(connection, claim, record.budget_use)
            reach("turn.before_commit", claim.step)
        self.due = due
        reach("step.after_commit", claim.step)
        return done


def _failed(beyond: BeyondLimits) -> Next:
    return Next.failed("limit_exceeded", {"kind": "limit_exceeded", "message": str(beyond)})


def _continues(end: End | None) -> bool:
    return end is not None and end.kind is EndKind.CONTINUED


def _following(turn: Turn) -> Next:
    if turn.end is None:
        return WAIT_FOR_ACTIVITIES
    match turn.end.kind:
        case EndKind.COMPLETED:
            return Next(RunStatus.COMPLETED, outcome="completed", result=turn.end.value)
        case EndKind.FAILED:
            assert turn.end.error is not None
            return Next.failed("workflow_failed", turn.end.error)
        case EndKind.CONTINUED:
            return Next.queued(Phase.WAITING_CODE)
        case EndKind.DIVERGED:
            assert turn.end.error is not None
            return Next.needs_attention(Phase.WAITING_CODE, turn.end.error)


def _state(flow: LiveFlow, turn: Turn) -> dict[str, JsonValue]:
    state: dict[str, JsonValue] = {
        "entries": flow.entries_with(turn),
        "ends": flow.known_ends,
    }
    if turn.end is not None and turn.end.because_of:
        state["because_of"] = list(turn.end.because_of)
    return state


def _reason(turn: Turn) -> str:
    return "waits" if turn.end is None else turn.end.kind.value


def _events(claim: Claim, turn: Turn, new: Sequence[NewEntry]) -> list[Event]:
    events = [_started(entry) for entry in new if not entry.asked.kind.is_answered_at_once]
    if _continues(turn.end):
        events.append(Event("run.continued", {"generation": claim.generation + 1}))
    return events


def _started(entry: NewEntry) -> Event:
    data: dict[str, JsonValue] = {
        "number": entry.asked.number,
        "kind": entry.asked.kind.value,
        "name": entry.asked.name,
    }
    if entry.made_by is not None:
        data["made_by"] = entry.made_by
    return Event("activity.started", data)
