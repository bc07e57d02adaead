"""What a tool says must hold right before its call, and what happens if it does not.

Asked before each execution: of a transactional tool in the transaction that it will write in, so
that nobody can change in between what the check has read and locked; of an external one before its
attempt is recorded, with nothing held, so that there the world may change in between.
"""

from typing import Any

from sqlalchemy import Connection

from celeriac import companions
from celeriac.codec import JsonValue
from celeriac.errors import InvalidArguments, ToolError
from celeriac.states import EffectState, Phase
from celeriac.testpoints import reach
from celeriac.tools import Tool
from celeriac_storage.claims import Claim
from celeriac_storage.database import driver_of, ends_transaction
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Event, Next, SettledEffect
from celeriac_tasks.acting import Acting
from celeriac_tasks.calling import Raised, error_of, here, in_time, is_retried
from celeriac_tasks.transition import Transition


def obstacle(
    acting: Acting,
    claim: Claim,
    tool: Tool[..., Any],
    effect: Effect,
    connection: Connection | None = None,
) -> Transition | None:
    """Ask whether the call may be made. None if so, or where the step goes instead.

    With a `connection` the caller must roll back before it commits what is returned; an error that
    took the whole transaction with it is raised as it is.
    """
    if tool.precondition is None:
        return None
    try:
        arguments = tool.call_arguments(effect.arguments)
    except InvalidArguments:
        return None  # the call itself is refused for them, before anything is executed
    context = acting.contexts.of(effect, tool, connection)
    driver = None if connection is None else driver_of(connection)
    precondition = tool.precondition

    def ask() -> object:
        return companions.call(precondition, context, arguments)

    reach("act.before_precondition", claim.step)
    try:
        said = in_time(ask, tool) if connection is None else here(ask)
    except ToolError as error:
        return _not_held(acting, claim, effect, str(error))
    except Exception as error:  # it may raise anything, and none of it says yes
        if driver is not None and ends_transaction(error, driver):
            raise
        kind, message = type(error).__name__, str(error) or "no answer in the tool's time"
        raised = Raised(
            error_of(kind, message), is_definite=True, is_retried=is_retried(tool, error)
        )
        return unclear(acting, claim, tool, effect, raised)
    reach("act.after_precondition", claim.step)
    if said is None:
        return None
    message = f"it returned {said!r}; it must return None, or raise ToolError if it does not hold"
    answer = Raised(error_of("no_answer", message), is_definite=True)
    return unclear(acting, claim, tool, effect, answer)


def unclear(
    acting: Acting, claim: Claim, tool: Tool[..., Any], effect: Effect, raised: Raised
) -> Transition:
    """Nobody can say whether it holds: ask again later, as the tool's policy says, or a person."""
    checks = effect.checks + 1
    still = SettledEffect(effect.call_id, effect.state, effect.state, is_check=True)
    retry = tool.recovery.retry
    told: dict[str, JsonValue] = {
        "call_id": effect.call_id,
        "tool": effect.tool,
        "error": raised.error,
    }
    if raised.is_retried and retry is not None and not retry.backoff.is_exhausted(checks):
        seconds = retry.backoff.delay_seconds(checks)
        told["retry_in_seconds"] = round(seconds, 3)
        acting.note(Event("precondition.unclear", told))
        pause = Next.waiting_for_timer(seconds, Phase.WAITING_TOOL)
        return acting.stay(pause, "precondition_unclear", [still])
    acting.note(Event("precondition.unclear", told))
    message = (
        f"{effect.tool} (call {effect.call_id}) was not executed, because its precondition cannot "
        f"be read: {raised.error['message']}. Mend that and say `celeriac retry {claim.run_id}`, "
        f"or `celeriac cancel {claim.run_id}`"
    )
    return acting.attention({"kind": "precondition_unclear", "message": message}, [still])


def _not_held(acting: Acting, claim: Claim, effect: Effect, why: str) -> Transition:
    error = error_of("precondition_failed", f"not executed, its precondition does not hold: {why}")
    settled = SettledEffect(
        effect.call_id, effect.state, EffectState.PRECONDITION_FAILED, error=error
    )
    message = (
        f"{effect.tool} (call {effect.call_id}) was {error['message']}. `celeriac retry "
        f"{claim.run_id}` tells the model so and lets it go on, `celeriac cancel {claim.run_id}` "
        "ends the run"
    )
    return acting.attention({"kind": "precondition_failed", "message": message}, [settled])
