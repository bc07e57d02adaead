"""One run as people see it: `show`, and what `run --wait` ends with."""

from typing import TYPE_CHECKING

from celeriac.cli.output import STYLES, brief, cell, clock, table, time_of_day
from celeriac.cli.words import what_is_missing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from celeriac.reports import Contract, Effect, Run, Use

LONGEST_VALUE_CHARACTERS = 2000
LONGEST_CELL_CHARACTERS = 200


def draw_run(run: "Run", waiting: str | None) -> "RenderableType":
    """The run's facts, its steps and its effects, one under the other."""
    from rich.console import Group

    parts = [_facts(run, waiting)]
    if run.steps:
        parts.append(
            table(
                ["step", "kind", "worker", "started", "committed", "ms"],
                [
                    (
                        step.step,
                        step.kind,
                        step.worker_id,
                        time_of_day(step.started_at),
                        time_of_day(step.committed_at),
                        round((step.committed_at - step.started_at).total_seconds() * 1000),
                    )
                    for step in run.steps
                ],
            )
        )
    if run.effects:
        parts.append(
            table(
                ["call", "tool", "kind", "state", "attempt", "arguments", "result", "rolled back"],
                [
                    (effect.call_id, effect.tool, effect.kind, effect.state, effect.attempt,
                     brief(effect.arguments, LONGEST_CELL_CHARACTERS), _outcome(effect),
                     _link(effect))
                    for effect in run.effects
                ],
            )
        )  # fmt: skip
    if run.activities:
        parts.append(_log(run))
    if run.children:
        parts.append(_tree(run))
    return Group(*parts)


def _log(run: "Run") -> "RenderableType":
    """What a workflow's code has asked for."""
    return table(
        ["entry", "kind", "name", "state", "arguments", "result", "run"],
        [
            (each.number, each.kind, each.name, each.state,
             brief(each.arguments, LONGEST_CELL_CHARACTERS),
             None if each.state == "open"
             else brief(each.error or each.result, LONGEST_CELL_CHARACTERS),
             each.run_id)
            for each in run.activities
        ],
    )  # fmt: skip


def _tree(run: "Run") -> "RenderableType":
    """The run and those below it."""
    from rich.tree import Tree

    root = Tree(f"{run.run_id} {run.agent}")
    branches = {run.run_id: root}
    for child in run.children:
        ended = "" if child.outcome in (None, child.status) else f" ({child.outcome})"
        phase = "" if child.phase is None else f", {child.phase}"
        handed = ", handed over" if child.is_handoff else ""
        branches[child.run_id] = branches[child.parent.run_id].add(
            f"{child.run_id} {child.agent}: {child.status}{ended}{phase}"
            f" (call {child.parent.call_id}{handed})"
        )
    return root


def _outcome(effect: "Effect") -> str | None:
    if effect.error is not None:
        return brief(effect.error, LONGEST_CELL_CHARACTERS)
    if effect.result_artifact is not None:
        return f"artifact {effect.result_artifact[:12]}…"
    return None if effect.result is None else brief(effect.result, LONGEST_CELL_CHARACTERS)


def _link(effect: "Effect") -> str | None:
    if effect.rolls_back is not None:
        return f"{effect.rolls_back.call_id} of run {effect.rolls_back.run_id}"
    if effect.rolled_back_by is not None:
        return f"by {effect.rolled_back_by.call_id} of run {effect.rolled_back_by.run_id}"
    return None


def _contract(contract: "Contract") -> str:
    told = (
        f"{contract.enforcement}; {contract.corrections} of {contract.max_corrections} corrections"
    )
    if contract.is_met is None:
        return told
    if contract.is_met:
        return f"met; {told}"
    return f"not met: {what_is_missing(contract.unmet)} ({told})"


def _use(use: "Use") -> str:
    unpriced = f"; {use.unpriced_calls} calls of unknown price" if use.unpriced_calls else ""
    return (
        f"{use.input_tokens:,} tokens in, {use.output_tokens:,} out; "
        f"${use.usd.normalize():f}{unpriced}"
    )


def _status(run: "Run") -> "Text":
    from rich.text import Text

    status = Text(run.status, style=STYLES.get(run.status, ""))
    if run.outcome is not None and run.outcome != run.status:
        status.append(f" ({run.outcome})")
    if run.phase is not None:
        status.append(f", {run.phase}")
    return status


def _origins(run: "Run") -> "list[tuple[str, object]]":
    """Which other run this one is there for."""
    rows: list[tuple[str, object]] = []
    if run.forked_from is not None:
        rows.append(("goes on from", f"step {run.forked_step} of run {run.forked_from}"))
    if run.parent is not None:
        rows.append(("answers", f"call {run.parent.call_id} of run {run.parent.run_id}"))
    if run.rolls_back is not None:
        rows.append(("rolls back", f"run {run.rolls_back}"))
    return rows


def _facts(run: "Run", waiting: str | None) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    rows: list[tuple[str, object]] = [
        ("run", run.run_id),
        ("agent", run.agent),
        ("thread, user", f"{run.thread_id}, {run.user_id}"),
        ("status", _status(run)),
    ]
    rows[1:1] = _origins(run)
    if run.deadline_at is not None:
        rows.append(("deadline (UTC)", clock(run.deadline_at)))
    if run.rollbacks:
        rows.append(("rollbacks", ", ".join(run.rollbacks)))
    if run.forks:
        rows.append(("forks, retries", ", ".join(run.forks)))
    if waiting is not None:
        rows.append(("waits", waiting))
    for name, at in (("erased", run.erased_at), ("pruned", run.pruned_at)):
        if at is not None:
            rows.append((f"{name} (UTC)", clock(at)))
    rows.append(("steps", f"{run.step} committed; claims: {run.epoch}, deaths: {run.deaths}"))
    if run.worker_id is not None:
        rows.append(("worker", run.worker_id))
    ended = f" to {clock(run.finished_at)}" if run.finished_at is not None else ""
    rows.append(("time (UTC)", f"{clock(run.created_at)}{ended}"))
    if run.use.input_tokens or run.use.output_tokens:
        rows.append(("use", _use(run.use)))
    if run.family_use != run.use:
        rows.append(("use with children", _use(run.family_use)))
    for name in ("input", "result", "error"):
        value = getattr(run, name)
        if value is not None:
            rows.append((name, brief(value, LONGEST_VALUE_CHARACTERS)))
    if run.contract is not None:
        rows.append(("contract", _contract(run.contract)))
    for name, value in rows:
        drawn.add_row(name, value if isinstance(value, Text) else cell(value))
    return drawn
