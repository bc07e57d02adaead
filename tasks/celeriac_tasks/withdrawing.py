"""Calls that nobody makes any more, because the user interrupted the run and said something else.

The model has asked for them, so it is told of each: providers refuse a conversation with an
unanswered call. What somebody has begun is never withdrawn but seen to its end.
"""

from collections.abc import Sequence

from celeriac.codec import JsonValue
from celeriac.states import EffectState
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import SettledEffect

_INTERRUPTED: dict[str, JsonValue] = {
    "kind": "interrupted",
    "message": "this call was not made: the user interrupted the run",
}
_GIVEN_UP: dict[str, JsonValue] = {
    "kind": "interrupted",
    "message": "this call changed nothing so far and is not made again: the user interrupted the "
    "run",
}


def withdrawn(
    pending: Sequence[Effect], known: Sequence[SettledEffect] = ()
) -> list[SettledEffect]:
    """What becomes of those of the calls that are not settled, beside `known`, of which that is
    known already; none of them is in flight."""
    settled = [*known]
    names = {each.call_id for each in known}
    for effect in pending:
        if effect.call_id in names:
            continue
        if effect.state is EffectState.NOT_DONE:
            settled.append(
                SettledEffect(
                    effect.call_id,
                    effect.state,
                    EffectState.FAILED,
                    error=_GIVEN_UP,
                    is_attempt=True,
                    evidence=_GIVEN_UP,
                )
            )
        elif not effect.state.is_settled:
            settled.append(
                SettledEffect(
                    effect.call_id, effect.state, EffectState.REJECTED, error=_INTERRUPTED
                )
            )
    return settled
