"""What was asked of a run while its step was taken, and how the step's commit heeds it."""

from collections.abc import Sequence
from dataclasses import replace

from celeriac.limits import Limits
from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac_storage.claims import Claim
from celeriac_storage.deadlines import passed_error
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Next, StepRecord
from celeriac_tasks import delegating, requesting
from celeriac_tasks.approving import WAIT_FOR_PEOPLE
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.requesting import WAIT_FOR_CHILDREN, WAIT_FOR_RESULTS
from celeriac_tasks.sleeping import WAIT_FOR_TIMER

_WAITS = (WAIT_FOR_PEOPLE, WAIT_FOR_RESULTS, WAIT_FOR_CHILDREN, WAIT_FOR_TIMER)


def ended_before_it_begins(claim: Claim) -> StepRecord | None:
    """What is committed instead of the step, if the run is to end or to stop before it."""
    kind = StepKind.of(claim.phase)
    if claim.is_cancel_requested:
        return StepRecord(Next.cancelled(), kind, "cancelled", advances=False)
    if claim.is_interrupt_requested and not claim.is_interrupt_answered:
        wait = Next.waiting_for_user(claim.phase)
        return StepRecord(
            wait, kind, "interrupted", advances=False, failed_thinks=claim.failed_thinks
        )
    if claim.is_overdue:
        passed = Next.failed("limit_exceeded", passed_error(claim.deadline_at))
        return StepRecord(passed, kind, "limit_exceeded", advances=False)
    exceeded = Limits.from_json(claim.limits).exceeded(delegating.use_of(claim))
    if exceeded is None:
        return None
    error = {"kind": "limit_exceeded", "message": exceeded}
    return StepRecord(
        Next.failed("limit_exceeded", dict(error)), kind, "limit_exceeded", advances=False
    )


def heeding(
    record: StepRecord,
    claim: Claim,
    loaded: LoadedAgent,
    requested: Sequence[Effect],
    *,
    was_asked: bool,
) -> StepRecord:
    """`record` as the run's row allows it now: versions pinned once, words heard, an interrupt or a
    cancel heeded.

    What was done is recorded all the same; only where the run goes next changes. `requested` are
    the calls whose results another process is to submit; `was_asked` says that something was asked
    for after the record was made.
    """
    if claim.agent_hash is None:
        record = replace(
            record,
            agent_hash=loaded.agent_hash,
            tools_hash=loaded.tools_hash,
            prompt_hash=loaded.prompt_hash,
        )
    if record.next in _WAITS and was_asked:
        # Perhaps it was what is waited for, a decision, a result or a timer: look again.
        record = replace(record, next=Next.queued(Phase.WAITING_TOOL))
    if claim.said and record.advances and record.next.asks_model_next:
        # Before any call is asked for, or after all results: providers refuse words between.
        record = replace(
            record,
            next=Next.queued(Phase.WAITING_MODEL),
            reason="said" if record.next.status is RunStatus.COMPLETED else record.reason,
            hears=True,
            ends_interrupt=claim.is_interrupt_answered,
        )
    # What came of a call is still being found out, and that is seen to its end first.
    finds_out = record.next.status is RunStatus.PAUSED and any(
        effect.state is EffectState.UNKNOWN for effect in record.settled
    )
    goes_on = record.next.status in (RunStatus.QUEUED, RunStatus.PAUSED) and not finds_out
    # Nobody needs to look at a run before it can end: a call that is unknown then stays so.
    if claim.is_cancel_requested and (goes_on or record.next.status is RunStatus.NEEDS_ATTENTION):
        settled, events = requesting.abandoned(requested)
        return replace(
            record,
            next=Next.cancelled(),
            reason="cancelled",
            settled=[*record.settled, *settled],
            events=[*record.events, *events],
        )
    if claim.is_overdue and goes_on:
        settled, events = requesting.abandoned(requested)
        return replace(
            record,
            next=Next.failed("limit_exceeded", passed_error(claim.deadline_at)),
            reason="limit_exceeded",
            settled=[*record.settled, *settled],
            events=[*record.events, *events],
        )
    is_interrupted = claim.is_interrupt_requested and not claim.is_interrupt_answered
    if is_interrupted and goes_on:
        resume_phase = record.next.resume_phase or record.next.phase
        assert resume_phase is not None
        return replace(record, next=Next.waiting_for_user(resume_phase))
    return record
