"""Calls that only let time pass: a timer is set with the run's pause, and settles the call when it
has fired."""

from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac_storage import timers
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Next, SettledEffect, StepRecord

WAIT_FOR_TIMER = Next(RunStatus.PAUSED, Phase.WAITING_TIMER, resume_phase=Phase.WAITING_TOOL)
ASLEEP = StepRecord(WAIT_FOR_TIMER, StepKind.ACT, "asleep", advances=False)


def woken(database: Database, claim: Claim, effect: Effect) -> SettledEffect | None:
    """What came of the call: None while its time has not come."""
    with database.connect() as connection:
        timer = timers.read_timer(connection, claim.run_id, effect.call_id)
    if timer is None or not timer.has_fired:
        return None
    return SettledEffect(
        effect.call_id,
        effect.state,
        EffectState.COMMITTED,
        result=f"it is {timer.due_at:%Y-%m-%dT%H:%M:%SZ}, as you asked",
    )
