"""`celeriac replay` and `celeriac diff`: what a model was sent, and where two runs part."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, RunArgument, brief, console, print_json, table, time_of_day

if TYPE_CHECKING:
    from rich.console import RenderableType

    from celeriac.replay import Difference, Question, Replay, ShownMessage, Stage

LONGEST_TEXT_CHARACTERS = 2000


def replay(
    context: typer.Context,
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(metavar="STEP", min=0, help="Only what was asked at this step.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run's model was sent at each step, and what it answered.

    It is made of the rows alone: no model, no tool and no code of the agent is asked. Without
    --step, each message is shown where it was sent first; with it, all that was sent at that step.
    Exits with 1 if something stored is not what was recorded.
    """
    with environment(context).client() as client:
        replayed = client.replay(run_id, step=step)
    if as_json:
        print_json(replayed)
    else:
        for part in _drawn(replayed, is_whole=step is not None):
            console().print(part)
    for what in replayed.broken:
        typer.echo(f"{what} is not what was recorded", err=True)
    if replayed.broken:
        raise typer.Exit(1)


def diff(
    context: typer.Context,
    left: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    right: Annotated[str, typer.Argument(metavar="RUN", help="The other run's.")],
    as_json: AsJson = False,
) -> None:
    """Show after which step two runs part, and what each did from there on."""
    with environment(context).client() as client:
        found = client.diff(left, right)
    if as_json:
        print_json(found)
    else:
        for part in _compared(found):
            console().print(part)


# Replay -----------------------------------------------------------------------------------------


def _drawn(replayed: "Replay", *, is_whole: bool) -> "Iterator[RenderableType]":
    from rich.rule import Rule
    from rich.text import Text

    outcome = "" if replayed.outcome is None else f" ({replayed.outcome})"
    yield f"run {replayed.run_id} of agent {replayed.agent}: {replayed.status}{outcome}"
    if not replayed.questions:
        yield "its model was not asked"
    told: set[int] = set()
    prompt = tools = None
    for question in replayed.questions:
        yield Rule(f"step {question.step}, {question.model}", align="left", style="dim")
        for what in question.missing:
            yield Text(f"not there any more: {what}", style="yellow")
        if is_whole or (question.prompt_hash, question.tools_hash) != (prompt, tools):
            prompt, tools = question.prompt_hash, question.tools_hash
            yield from _definition(replayed, question)
        numbers = [number for begin, end in question.shown for number in range(begin, end)]
        before = [] if is_whole else [number for number in numbers if number in told]
        if before:
            yield Text(f"{len(before)} messages as above", style="dim")
        for number in numbers:
            if number not in before:
                yield from _message(replayed.messages[number])
        told.update(numbers)
        yield from _answer(question)


def _definition(replayed: "Replay", question: "Question") -> "Iterator[RenderableType]":
    instructions = replayed.instructions.get(question.prompt_hash or "")
    if instructions:
        yield _line("instructions", instructions)
    tools: Any = replayed.tools.get(question.tools_hash or "", [])
    if tools:
        yield _line("tools", ", ".join(tool["name"] for tool in tools))


def _message(shown: "ShownMessage") -> "Iterator[RenderableType]":
    place = "memories" if shown.run_id is None else f"{shown.run_id} {shown.position}"
    yield from _parts(shown.message, place)


def _answer(question: "Question") -> "Iterator[RenderableType]":
    from rich.text import Text

    for attempt in question.attempts:
        price = "" if attempt.usd is None else f", ${attempt.usd.normalize():f}"
        seconds = (attempt.finished_at - attempt.started_at).total_seconds()
        error = "" if attempt.error is None else f": {brief(attempt.error, 200)}"
        yield Text(
            f"attempt {attempt.attempt} at {time_of_day(attempt.started_at)}: {attempt.outcome}"
            f"{error}; {seconds:.3f} s, {attempt.input_tokens:,} tokens in, "
            f"{attempt.output_tokens:,} out{price}",
            style="dim" if attempt.error is None else "red",
        )
    if question.answer is not None:
        yield from _parts(question.answer, "answer")


def _parts(message: Mapping[str, Any], place: str) -> "Iterator[RenderableType]":
    is_answer = message["kind"] == "response"
    for part in message["parts"]:
        kind = part.get("part_kind", "text" if is_answer else "user-prompt")
        if kind == "tool-call":
            yield _line(place, f"calls {part['tool_name']} {_brief(part.get('args'))}")
        elif kind == "tool-return":
            failed = " failed" if part.get("outcome") == "failed" else ""
            yield _line(place, f"{part['tool_name']}{failed} → {_brief(part.get('content'))}")
        else:
            yield _line(place, f"{kind}: {_brief(part.get('content'))}")


def _brief(value: object) -> str:
    return brief(value, LONGEST_TEXT_CHARACTERS)


def _line(name: str, text: str) -> "RenderableType":
    from rich.table import Table

    from celeriac.cli.output import cell

    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    drawn.add_row(name, cell(_brief(text)))
    return drawn


# Diff -------------------------------------------------------------------------------------------

_WAYS = {
    "said": "what was said",
    "asked": "the calls that the model asked for",
    "told": "what came of a call",
    "ends": "their ends",
}


def _compared(found: "Difference") -> "Iterator[RenderableType]":
    if found.parts_by is None:
        yield f"the runs are the same in all {found.same_stages} steps, and in how they ended"
    else:
        yield f"the same for {found.same_stages} steps; then they part by {_WAYS[found.parts_by]}"
    if not found.same_input:
        yield "they began with different inputs"
    sides = (found.left, found.right)
    names = ("agent", "agent_hash", "status", "outcome", "result", "error", "steps", "tool_calls")
    rows = [(name, *(brief(getattr(each, name) or "", 80) for each in sides)) for name in names]
    rows += [
        (f"{way} tokens", *(f"{getattr(each.use, f'{way}_tokens'):,}" for each in sides))
        for way in ("input", "output")
    ]
    rows.append(("usd", *(f"{each.use.usd.normalize():f}" for each in sides)))
    yield table(["", found.left.run_id, found.right.run_id], rows)
    for side in sides:
        if side.stages:
            yield table(
                [f"of {side.run_id}", "kind", "said", "asked for", "told"],
                [
                    (f"step {stage.step}", stage.kind, brief(" ".join(stage.said)), *_calls(stage))
                    for stage in side.stages
                ],
            )


def _calls(stage: "Stage") -> tuple[str, str]:
    asked = [f"{call.tool} {brief(call.arguments)}" for call in stage.asked]
    told = [
        f"{call.call_id} {call.state} {brief(call.result if call.error is None else call.error)}"
        for call in stage.told
    ]
    return "; ".join(asked), "; ".join(told)
