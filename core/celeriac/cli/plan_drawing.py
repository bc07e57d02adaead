"""A plan as people see it: its steps by layer, each layer below those that it needs."""

from typing import TYPE_CHECKING

from celeriac.cli.output import brief, cell, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from celeriac.plan.report import PlanReport
    from celeriac.plan.standing import Node

LONGEST_ERROR_CHARACTERS = 200
MARKS = {
    "waiting": "○",
    "running": "◐",
    "completed": "●",
    "failed": "✗",
    "stopped": "◌",
    "skipped": "-",
}


def draw_plan(report: "PlanReport") -> "RenderableType":
    """What is told of the plan as a whole, and a table of its steps."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(_title(report)), _layers(report))


def _title(report: "PlanReport") -> str:
    told = f"Plan of run {report.run_id} ({report.status}), version {report.version}"
    told += f", {report.checkpoint_interval}"
    if report.continues is not None:
        told += f"; goes on from run {report.continues}"
    if report.continued_by is not None:
        told += f"; run {report.continued_by} does what is left"
    return told + (f"\n{printable(report.goal)}" if report.goal else "")


def _layers(report: "PlanReport") -> "RenderableType":
    from rich import box
    from rich.table import Table

    drawn = Table("layer", "", "step", "does", "state", "needs", "run", "error",
                  box=box.SIMPLE_HEAD, header_style="bold")  # fmt: skip
    layer = None
    for node in report.steps:
        if layer is not None and node.layer != layer:
            drawn.add_section()
        drawn.add_row(
            cell("" if node.layer == layer else node.layer + 1),
            cell(MARKS[node.state]),
            cell(node.id),
            cell(node.does),
            _state(node),
            cell(", ".join(node.needs)),
            cell(node.run_id),
            cell(None if node.error is None else _error(node.error)),
        )
        layer = node.layer
    return drawn


def _state(node: "Node") -> "RenderableType":
    told = cell(node.state.value)
    if node.is_kept:
        told.append(" before")
    if node.attempts > 1:
        told.append(f", attempt {node.attempts}")
    return told


def _error(error: dict[str, object]) -> str:
    return brief(error.get("message") or error.get("kind") or error, LONGEST_ERROR_CHARACTERS)
