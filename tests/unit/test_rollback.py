"""How a tool says that its calls are taken back, and what of that is refused."""

# features: 004-42
from collections.abc import Callable
from typing import Any

import pytest

from celeriac import Compensate, InBand, ToolContext, tool
from celeriac.errors import InvalidAgent
from celeriac.recovery import Done, Retry
from celeriac.rollback import Rollback, Undo
from celeriac.states import EffectKind
from celeriac.undo_tool import undo_tool


def take(ctx: ToolContext, sku: str, quantity: int) -> int:  # noqa: ARG001 - a tool's shape
    """Take from the stock."""
    return quantity


def put_back(ctx: ToolContext, quantity: int, result: int) -> str:
    return f"{ctx.tool} {quantity} {result} {ctx.undoes_key}"


async def put_back_later(ctx: ToolContext) -> None:
    """Never asked."""


def wants_more(ctx: ToolContext, colour: str) -> None:
    """Asks for what the tool is not given."""


def found(ctx: ToolContext, result: int) -> Done:  # noqa: ARG001 - a verify's shape
    return Done(result)


def tells_result(ctx: ToolContext, result: int) -> None:
    """Is called with what an undo calls the call's own result."""


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (take, {"rollback": "in_band"}, r"does not say how: give rollback=InBand\(undo\)"),
        (take, {"rollback": "compensate"}, r"does not say how: give rollback=Compensate\(undo\)"),
        (take, {"rollback": "undo"}, r"none of InBand\(undo\), Compensate\(undo\), 'out_of_band'"),
        (take, {"rollback": Undo(put_back)}, "give InBand or Compensate"),
        (take, {"rollback": InBand(put_back_later)}, "undo is an async function"),
        (take, {"rollback": InBand(wants_more)}, "colour does not fit"),
        (take, {"rollback": InBand(lambda: None)}, "the ToolContext does not fit"),
        (take, {"effect": "none", "rollback": InBand(put_back)}, 'effect="none" has none'),
        (
            take,
            {"effect": "transactional", "rollback": InBand(put_back, verify=found)},
            "verify, on_unknown and visibility_seconds are about effects elsewhere",
        ),
        (take, {"rollback": InBand(put_back, on_unknown="verify")}, "there is none; give verify="),
        (take, {"rollback": InBand(put_back, timeout_seconds=0)}, "is not a number of seconds"),
        (tells_result, {"rollback": InBand(put_back)}, "a parameter is called result"),
    ],
)
def test_a_rollback_that_could_not_be_done_is_refused_when_the_tool_is_made(
    function: Callable[..., object], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidAgent, match=reason):
        tool(**options)(function)


def test_a_tool_that_says_nothing_is_for_people_to_undo() -> None:
    made = tool(take)

    assert (made.rollback, made.undo, undo_tool(made)) == (Rollback.OUT_OF_BAND, None, None)


def test_an_undo_is_executed_like_its_tool_with_the_calls_own_arguments() -> None:
    retry = Retry(attempts=2)
    declared = Compensate(put_back, verify=found, retry=retry, timeout_seconds=3.0)
    made = tool(rollback=declared, timeout_seconds=9.0)(take)

    undo = undo_tool(made)

    assert undo is not None
    assert (undo.name, undo.effect, undo.timeout_seconds) == ("take.undo", EffectKind.EXTERNAL, 3.0)
    assert undo.recovery == declared.recovery
    assert made.registration()["rollback"] == "compensate"
    context: Any = _context(undo.name)
    arguments = undo.call_arguments({"sku": "lamp", "quantity": 2}, context)
    assert undo.function(**arguments) == "take.undo 2 7 key"
    assert undo.recovery.look(context, {"sku": "lamp", "quantity": 2}) == Done(7)


def test_an_undo_has_its_tools_time_unless_it_says_otherwise() -> None:
    undo = undo_tool(tool(rollback=InBand(put_back), timeout_seconds=9.0)(take))

    assert undo is not None
    assert undo.timeout_seconds == 9.0


def _context(name: str) -> ToolContext:
    values: dict[str, Any] = dict.fromkeys(
        ["run_id", "thread_id", "user_id", "tenant_id", "call_id", "idempotency_key"], "x"
    )
    return ToolContext(tool=name, step=1, undoes_key="key", _undone_result=7, **values)
