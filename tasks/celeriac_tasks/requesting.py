"""Calls that another process or another run answers: requested, and waited for with nothing held.

The request and the pause are one transaction, so that nobody can answer a call before the run
waits for it, and a crash leaves either both or neither.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac_storage import effects
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.settling import UNANSWERED
from celeriac_storage.step_record import Event, Next, SettledEffect, StepRecord
from celeriac_tasks.approving import authorized
from celeriac_tasks.batch import Batch
from celeriac_tasks.loaded_agent import LoadedAgent

WAIT_FOR_RESULTS = Next(RunStatus.PAUSED, Phase.WAITING_EXTERNAL, resume_phase=Phase.WAITING_TOOL)
WAIT_FOR_CHILDREN = Next(RunStatus.PAUSED, Phase.WAITING_CHILD, resume_phase=Phase.WAITING_TOOL)


def is_requested(effect: Effect) -> bool:
    """Whether another process or another run is to tell the result of this call."""
    return (effect.is_elsewhere or effect.is_child) and effect.state is EffectState.IN_FLIGHT


def wait_for(requested: Sequence[Effect]) -> Next:
    """The pause until the results of these calls are in."""
    is_delegated = any(effect.is_child for effect in requested)
    return WAIT_FOR_CHILDREN if is_delegated else WAIT_FOR_RESULTS


def drifted(pending: Sequence[Effect]) -> StepRecord | None:
    """The run goes to a person, if another process has found its files changed by somebody else."""
    for effect in pending:
        if effect.is_elsewhere and effect.state is EffectState.UNKNOWN:
            assert effect.error is not None
            following = Next.needs_attention(Phase.WAITING_TOOL, effect.error)
            return StepRecord(following, StepKind.ACT, "needs_attention", advances=False)
    return None


@contextmanager
def requested(
    database: Database, loaded: LoadedAgent, claim: Claim, batch: Batch
) -> Iterator[Connection]:
    """The transaction in which the calls are requested, to commit the pause in.

    Raises `Fenced`, `RequestsChanged` or `ApprovalLost`, and then nothing is requested.
    """
    first = batch.effects[0]
    event = "call.delegated" if first.is_child else "call.requested"
    if first.requirement is None:
        with database.begin() as connection:
            for effect in batch.effects:
                effects.begin_attempt(connection, claim, effect.call_id, None, event=event)
            yield connection
        return
    with authorized(database, claim, loaded.tools[first.tool], first) as (connection, decision):
        assert decision is not None
        approval = (decision.approval_id, decision.version)
        effects.begin_attempt(connection, claim, first.call_id, None, approval, event=event)
        yield connection


def handed_out(pause: Next, reason: str, batch: Batch) -> StepRecord:
    """The record of a step that hands these calls to other processes or runs, and waits."""
    calls = len(batch.effects)
    return StepRecord(pause, StepKind.ACT, reason, advances=False, handed_out=calls)


def abandoned(requested: Sequence[Effect]) -> tuple[list[SettledEffect], list[Event]]:
    """What becomes of requested calls whose run ends before their results come in."""
    settled = [
        SettledEffect(
            effect.call_id,
            effect.state,
            EffectState.UNKNOWN,
            error=UNANSWERED,
            is_attempt=True,
            evidence=UNANSWERED,
        )
        for effect in requested
    ]
    events = [
        Event("effect.unknown", {"call_id": each.call_id, "tool": each.tool, "error": UNANSWERED})
        for each in requested
    ]
    return settled, events
