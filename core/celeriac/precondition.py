"""What must still hold right before a call is made, read again each time.

def is_covered(ctx: ToolContext, account: str, cents: int) -> None:
    if balance_for_update(ctx.connection, account) < cents:
        raise ToolError(f"account {account} does not hold {cents} cents any more")

@tool(effect="transactional", precondition=is_covered)
def pay(ctx: ToolContext, account: str, cents: int) -> str: ...
"""

from collections.abc import Callable, Sequence

from celeriac import companions
from celeriac.recovery import OnUnknown
from celeriac.states import EffectKind

Precondition = Callable[..., None]
"""Takes the `ToolContext` and any of the tool's parameters by name. It returns None if the
condition holds, and raises `ToolError` if it certainly does not. Anything else says neither."""


def contradiction(
    precondition: Precondition,
    effect: EffectKind,
    parameters: Sequence[str],
    on_unknown: OnUnknown,
) -> str | None:
    """What of it cannot be true of a tool of this kind with these parameters; else None."""
    if effect is EffectKind.NONE:
        return (
            'precondition guards an effect, and effect="none" has none; let the tool itself look, '
            "and raise ToolError"
        )
    if on_unknown == "resend":
        return (
            'on_unknown="resend" may send again what was done already, and the precondition would '
            "then judge the call by its own effect; give verify= instead, or drop one of the two"
        )
    return companions.contradiction("precondition", precondition, parameters)
