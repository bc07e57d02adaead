"""What workers have told, after they had lost their claims, about calls that others took for not
done."""

from collections.abc import Sequence

from celeriac.states import EffectState
from celeriac_storage import lost_calls
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import SettledEffect
from celeriac_tasks.acting import Acting

_TAKEN_FOR_NOT_DONE = (EffectState.NOT_DONE, EffectState.PRECONDITION_FAILED)


def committed_after_all(
    database: Database, claim: Claim, acting: Acting, effects: Sequence[Effect]
) -> list[SettledEffect]:
    """Those of the calls, none of which the model has been told of, that did take effect: the
    worker of the latest attempt has told so since.

    One that tells after this look changes the request version: a commit that counts on the call
    not being made must begin again then, and not only heed what was asked.
    """
    settled: list[SettledEffect] = []
    for effect in effects:
        if effect.state not in _TAKEN_FOR_NOT_DONE or effect.attempt == 0:
            continue
        with database.connect() as connection:
            lost = lost_calls.find(
                connection, claim.run_id, effect.call_id, effect.attempt, visibility_seconds=0
            )
        if lost.reported is not EffectState.COMMITTED:
            continue
        message = f"the worker of attempt {effect.attempt} has told that it took effect"
        settled.append(
            SettledEffect(
                effect.call_id,
                effect.state,
                EffectState.COMMITTED,
                lost.report,
                acting.artifact(lost.report),
                is_attempt=True,
                evidence={"recovered": {"kind": "reported", "message": message}},
            )
        )
    return settled
