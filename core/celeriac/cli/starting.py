"""`celeriac run` and `wait`: start a run, and watch one."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from celeriac.cli import times
from celeriac.cli.environment import Environment, environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, RunArgument, print_json, printable
from celeriac.cli.runs import print_run
from celeriac.errors import InvalidInput
from celeriac.states import RunStatus

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.client import Client
    from celeriac.codec import JsonValue
    from celeriac.reports import Run


def run(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    input: Annotated[  # noqa: A002 - the option's name
        str, typer.Option("--input", metavar="JSON", help="The run's input; - reads it from stdin.")
    ],
    thread: Annotated[
        str | None, typer.Option(metavar="T", help="The conversation; without one a new one.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="U", help="Whose thread it is.")] = None,
    run_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="An id of your own: the run never starts twice."),
    ] = None,
    on_busy: Annotated[
        Literal["wait", "reject", "say"],
        typer.Option(
            help="While another run of the thread is active: wait for it, refuse, or say the "
            "input to that run."
        ),
    ] = "wait",
    start_at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="When it starts, as ISO 8601.")
    ] = None,
    start_in: Annotated[
        str | None, typer.Option("--in", metavar="SPAN", help="Or how long from now: 90s, 15m, 2h.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME|SPAN", help="When it fails at the latest, or how long it has."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Watch until it has ended or needs attention.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="With --wait: at most so long."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of an agent.

    With --wait the command ends when the run has ended, or when its status is needs_attention,
    prints the run as `celeriac show` does, and exits with 0 only if the run is completed. A pause
    is waited out, also one for a person's decision; what for is told on standard error.
    """
    value = parse_json(sys.stdin.read() if input == "-" else input, "--input")
    found = environment(context)
    with found.client() as client:
        started = client.start(
            _agent(found, agent),
            value,
            thread_id=thread,
            user_id=user,
            run_id=run_id,
            on_busy=on_busy,
            start_at=None if start_at is None else times.moment(start_at, "--at"),
            delay=None if start_in is None else times.span(start_in, "--in"),
            deadline=None if deadline is None else times.moment_or_span(deadline, "--deadline"),
        )
        if wait:
            watch_to_end(client, started.run_id, timeout=timeout, as_json=as_json)
    if as_json:
        print_json({"run_id": started.run_id})
    else:
        typer.echo(f"run {started.run_id} is {started.status}, {started.phase}")


def wait(
    context: typer.Context,
    run_id: RunArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="At most so long.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch a run until it has ended, or its status is needs_attention; print it as `show` does.

    Exits with 0 only if the run is completed. What a pause waits for is told on standard error.
    """
    with environment(context).client() as client:
        watch_to_end(client, run_id, timeout=timeout, as_json=as_json)


def watch_to_end(
    client: "Client", run_id: str, *, timeout: float | None = None, as_json: bool
) -> NoReturn:
    """Watch the run, print it, and exit with what its persisted status says."""
    ended = watched(client, run_id, timeout=timeout, as_json=as_json)
    print_run(client, ended, as_json=as_json)
    raise typer.Exit(0 if ended.status == "completed" else 1)


def parse_json(text: str, option: str) -> "JsonValue":
    """The value of `text`, which `option` gave. Raises `WrongUsage` that says where it is wrong."""
    from celeriac.codec import loads_strict

    try:
        return loads_strict(text)
    except InvalidInput as error:
        shown = printable(text if len(text) <= 60 else text[:60] + "…")
        raise WrongUsage(
            f"{option}: {error}; it was given as {shown!r} (a text needs its own quotes: '\"…\"')"
        ) from error


def _agent(found: Environment, name: str) -> "Agent | str":
    """The agent itself where its code is at hand, so that the input is checked by that."""
    modules = found.named_settings().agent_modules
    if not modules:
        return name
    from celeriac.registry import load_agents

    return load_agents(modules).get(name, name)


def watched(client: "Client", run_id: str, *, timeout: float | None = None, as_json: bool) -> "Run":
    """The run when it has ended or needs a person, with its timeline shown on a terminal; elsewhere
    only what it waits for. Raises `TimeoutError` after `timeout` seconds."""
    try:
        if as_json or not sys.stdout.isatty():
            return _telling_pauses(client, run_id, timeout)
        from celeriac.cli.timeline import follow

        return follow(client, run_id, timeout)
    except KeyboardInterrupt:
        typer.echo(f"run {run_id} goes on; `celeriac show {run_id}` tells how far it is", err=True)
        raise typer.Exit(130) from None


def _telling_pauses(client: "Client", run_id: str, timeout: float | None) -> "Run":
    """Say on standard error what the run waits for, each time that this is something else."""
    from celeriac.cli.words import waiting_for

    told: str | None = None
    last: Run | None = None
    for run in client.watch(run_id, timeout):
        last = run
        if run.status is RunStatus.PAUSED:
            waits = waiting_for(run, client.waits_for(run_id))
            if waits is not None and waits != told:
                typer.echo(f"run {run_id} waits {waits}", err=True)
            told = waits
    assert last is not None, "a run is watched at least once"
    return last
