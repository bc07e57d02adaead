"""The live timeline of `run --wait`: each step as it commits, and what happened in between."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from celeriac.cli.output import STYLES, brief, clock, console, time_of_day
from celeriac.cli.words import what_is_missing

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.reports import Event, Run, Step

Line = tuple[datetime, Text]


def follow(client: "Client", run_id: str, timeout_seconds: float | None = None) -> "Run":
    """Print the run's timeline as it grows, until it has ended or needs attention."""
    steps_told = events_told = 0
    last: Run | None = None
    with Live(console=console(), refresh_per_second=8, transient=True) as live:
        for run in client.watch(run_id, timeout_seconds):
            events = list(client.events(run_id, events_told))
            for _, line in in_order(run.steps[steps_told:], events):
                live.console.print(line)
            steps_told = len(run.steps)
            events_told = events[-1].seq if events else events_told
            live.update(_state(run))
            last = run
    assert last is not None, "a run is watched at least once"
    return last


def follow_events(client: "Client", run_id: str, after: int) -> None:
    """Print the run's events after `after` as they come, up to the last, and where it stands."""
    with Live(console=console(), refresh_per_second=8, transient=True) as live:
        for event in client.events(run_id, after, follow=True):
            live.console.print(event_line(event))
            live.update(_state(client.get(run_id)))


def event_line(event: "Event") -> Text:
    """An event with its number, time, type and data."""
    style = "bold red" if event.type in _TROUBLE else STYLES.get(_state_of(event), "")
    return Text.assemble(
        f"{event.seq:>5}  ",
        (clock(event.at), "dim"),
        "  ",
        (f"{event.type:<20}", style),
        f" {brief(dict(event.data), 140)}",
    )


def in_order(steps: "Sequence[Step]", events: "Sequence[Event]") -> list[Line]:
    """Steps and events as lines of text, each with its moment, oldest first."""
    lines = [(step.committed_at, _step_line(step)) for step in steps]
    for event in events:
        words = event_words(event)
        if words is not None:
            style = "bold red" if event.type in _TROUBLE else STYLES.get(_state_of(event), "")
            lines.append((event.at, _line(event.at, "", Text(words, style=style))))
    return sorted(lines, key=lambda line: line[0])


def _step_line(step: "Step") -> Text:
    milliseconds = (step.committed_at - step.started_at).total_seconds() * 1000
    return _line(
        step.committed_at,
        f"step {step.step}",
        Text(f"{step.kind:<6} on {step.worker_id}, {milliseconds:.0f} ms"),
    )


def _line(at: datetime, label: str, words: Text) -> Text:
    return Text.assemble((time_of_day(at), "dim"), f"  {label:<9} ", words)


def _state(run: "Run") -> Spinner:
    where = f" on {run.worker_id}" if run.status == "running" else ""
    phase = f", {run.phase}" if run.phase is not None else ""
    return Spinner("dots", Text(f"{run.status}{where}: step {run.step}{phase}", style="cyan"))


_TROUBLE = frozenset({"run.recovered", "run.stumbled", "run.needs_attention", "effect.unknown"})


def _state_of(event: "Event") -> str:
    return event.type.partition(".")[2]


def event_words(event: "Event") -> str | None:
    """What an event says to a person who watches; None if the steps tell it already."""
    data = event.data
    match event.type.split("."):
        case ["run", "recovered"]:
            return (
                f"worker {data.get('worker_id')} was lost ({data.get('reason')}): step "
                f"{data.get('step')} goes to another"
            )
        case ["run", "paused"]:
            return f"paused, {data.get('phase')}"
        case ["run", "woken"]:
            return f"woken: the {data.get('waited_for')} is there"
        case ["run", "cancel_requested"]:
            return f"{data.get('by')} asked it to end"
        case ["run", "retried"]:
            return f"{data.get('by')} let it try again"
        case ["run", "stumbled" | "needs_attention" | "failed" as what]:
            return f"{what}: {_message(event)}"
        case ["model", "failed"]:
            wait = data.get("retry_in_seconds")
            again = "" if wait is None else f", asked again in {wait} s"
            return f"the model failed ({data.get('kind')}){again}"
        case ["model", "questioned"]:
            return f"the model is asked back: {data.get('why')}"
        case ["contract", "refused" | "unmet"]:
            yet = " yet" if "correction" in data else ""
            return f"not done{yet}: {what_is_missing(data.get('unmet'))}"
        case ["activity", state]:
            error = f": {_message(event)}" if data.get("error") else ""
            return f"{data.get('kind')} {data.get('name')} ({data.get('number')}) {state}{error}"
        case ["run", "told"]:
            return f"{data.get('by')} told it of {data.get('name')}"
        case ["run", "continued"]:
            return "begins again with another input"
        case ["tool", "progress"]:
            return f"{data.get('call_id')}: {brief(data.get('text'))}"
        case ["effect", state]:
            error = f": {_message(event)}" if data.get("error") else ""
            return f"{data.get('tool')} ({data.get('call_id')}) {state}{error}"
        case _:
            return None


def _message(event: "Event") -> str:
    error = event.data.get("error")
    return brief(error.get("message") if isinstance(error, dict) else error, 200)
