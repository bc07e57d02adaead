"""A runner of plans, whose tools are counted and break when they are told to."""

from celeriac import Agent, InBand, ToolContext, ToolError, tool
from celeriac.plan import PlanStep, result_of
from celeriac.plan.runner import PlanRunner
from celeriac.scripted import ScriptedModel, say

LARGE = 300_000  # characters, more than a row should hold
calls: list[str] = []
broken: set[str] = set()


@tool(effect="none")
def look(what: str) -> dict[str, str]:
    """Look something up."""
    _note(what)
    return {"found": f"{what} is there"}


@tool(effect="external")
def send(text: str) -> str:
    """Send something."""
    _note(text)
    return f"sent: {text}"


@tool(effect="none")
def fill(count: int) -> str:
    """Write so many characters."""
    return "x" * count


@tool(effect="none")
def measure(text: str) -> int:
    """Count characters."""
    return len(text)


def cancel(ctx: ToolContext) -> None:
    """Take a booking back."""
    calls.append(f"{ctx.tool} is cancelled")


@tool(effect="external", rollback=InBand(cancel))
def book(what: str) -> str:
    """Book something."""
    _note(what)
    return f"{what} is booked"


def _note(what: str) -> None:
    calls.append(what)
    if what in broken:
        raise ToolError(f"{what} is broken")


writer = Agent("writer", ScriptedModel([say("a text")]), input=str)
runner = PlanRunner("plans", [look, send, book, fill, measure], [writer])

LAYERS = [
    PlanStep("a", tool="look", arguments={"what": "a"}),
    PlanStep("b", tool="look", arguments={"what": "b"}),
    PlanStep("c", tool="send", arguments={"text": result_of("a", "found")}, needs=["a", "b"]),
    PlanStep("d", agent="writer", arguments=result_of("c"), needs=["c"]),
]


def made() -> list[str]:
    """What was called for; siblings are in no order."""
    return sorted(calls)
