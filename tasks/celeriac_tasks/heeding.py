"""What was asked of a run while its step was taken, and how the step's commit heeds it."""

from collections.abc import Sequence
from dataclasses import replace

from celeriac.states import EffectState, Phase, RunStatus
from celeriac_storage.claims import Claim
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Next, StepRecord
from celeriac_tasks import requesting
from celeriac_tasks.approving import WAIT_FOR_PEOPLE
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.requesting import WAIT_FOR_RESULTS


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
    if record.next in (WAIT_FOR_PEOPLE, WAIT_FOR_RESULTS) and was_asked:
        # Perhaps it was what is waited for, a decision or a result: look again.
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
    states = {effect.state for effect in record.settled}
    goes_on = record.next.status in (RunStatus.QUEUED, RunStatus.PAUSED)
    is_clear = EffectState.UNKNOWN not in states
    # Nothing was done, so there is nothing that a person must look at before the run can end.
    was_not_done = EffectState.PRECONDITION_FAILED in states
    if claim.is_cancel_requested and is_clear and (goes_on or was_not_done):
        settled, events = requesting.abandoned(requested)
        return replace(
            record,
            next=Next.cancelled(),
            reason="cancelled",
            settled=[*record.settled, *settled],
            events=[*record.events, *events],
        )
    is_interrupted = claim.is_interrupt_requested and not claim.is_interrupt_answered
    if is_interrupted and goes_on and is_clear:
        resume_phase = record.next.resume_phase or record.next.phase
        assert resume_phase is not None
        return replace(record, next=Next.waiting_for_user(resume_phase))
    return record
