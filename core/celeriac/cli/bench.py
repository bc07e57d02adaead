"""`celeriac bench`: measurements of this installation, in `celeriac.bench`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import database_url, environment, require_servers
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, print_json, print_table
from celeriac.cli.processes import export_servers

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.settings import Settings
    from celeriac_storage.database import Database

bench = typer.Typer(no_args_is_help=True, help="Measure this installation.")


@bench.command()
def failover(
    context: typer.Context,
    kills: Annotated[int, typer.Option(min=1, help="How many workers are killed.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Kill workers in the middle of a step, and time the next claim of the same step."""
    from celeriac.bench.failover import measure_failover

    with _servers(context) as (client, database, _):
        figures = measure_failover(client, database, kills)
    names = ["kills", "median_seconds", "p99_seconds", "doubled_effects", "lost_runs"]
    if as_json:
        print_json({name: getattr(figures, name) for name in names})
    else:
        print_table(names, [[getattr(figures, name) for name in names]], empty="")


@bench.command()
def throughput(
    context: typer.Context,
    steps_per_task: Annotated[
        str, typer.Option(metavar="N,…", help="Settings to measure: numbers and auto.")
    ] = "1,10,auto",
    as_json: AsJson = False,
) -> None:
    """Count transitions per second, beside a plain Celery chain with the same pool."""
    from celeriac.bench.throughput import measure_throughput

    names = [
        "steps_per_task",
        "task_events",
        "transitions_per_second",
        "celery_chain_per_second",
        "ratio",
    ]
    cases = _steps_per_task(steps_per_task)
    with _servers(context) as (client, database, settings):
        rows = []
        for figures in measure_throughput(client, database, settings, cases):
            rows.append([getattr(figures, name) for name in names])
            if as_json:
                print_json(dict(zip(names, rows[-1], strict=True)))
    if not as_json:
        print_table(names, rows, empty="nothing was measured")


@bench.command()
def growth(
    context: typer.Context,
    steps: Annotated[int, typer.Option(min=20, help="How long the run gets.")] = 2000,
    effects: Annotated[
        bool, typer.Option("--effects", help="Every other step calls a tool.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow time and bytes per step while one run gets long."""
    from celeriac.bench.growth import measure_growth

    with _servers(context) as (client, database, _):
        points = list(measure_growth(client, database, steps=steps, with_effects=effects))
    if as_json:
        print_json({"points": points})
    else:
        print_table(
            ["step", "milliseconds", "bytes", "bytes of log"],
            [(each.step, each.milliseconds, each.bytes, each.wal_bytes) for each in points],
            empty="nothing was measured",
        )


@bench.command()
def recall(
    context: typer.Context,
    users: Annotated[int, typer.Option(min=1, help="Who have memories.")] = 1000,
    memories: Annotated[int, typer.Option(min=1, help="Of each user.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Time what is chosen for a model: memories, with and without vectors, and what of a long
    conversation fits. Nothing of what it fills the database with is left."""
    from celeriac.bench.recall import measure_recall
    from celeriac_storage.database import Database

    rows = []
    database = Database(database_url(environment(context).settings()), connections=1)
    try:
        for figures in measure_recall(database, users, memories, samples):
            if as_json:
                print_json(figures)
            times = [figures.pop(name, None) for name in ("median_ms", "p99_ms")]
            of_what = ", ".join(f"{name} {value}" for name, value in figures.items())
            rows.append([of_what.removeprefix("measure "), *times])
    finally:
        database.close()
    if not as_json:
        print_table(["measure", "median ms", "p99 ms"], rows, empty="nothing was measured")


@contextmanager
def _servers(context: typer.Context) -> "Iterator[tuple[Client, Database, Settings]]":
    from celeriac.client import Client
    from celeriac_storage.database import Database

    settings = environment(context).settings()
    require_servers(settings)
    assert settings.broker_url is not None
    url, broker_url = database_url(settings), settings.broker_url.get_secret_value()
    export_servers(settings)
    database = Database(url)
    try:
        with Client(url, broker_url) as client:
            yield client, database, settings
    finally:
        database.close()


def _steps_per_task(text: str) -> list[int | str]:
    cases: list[int | str] = []
    for name in text.split(","):
        if name != "auto" and not name.isdecimal():
            raise WrongUsage(f"--steps-per-task: {name!r} is neither a number nor auto")
        cases.append(name if name == "auto" else int(name))
    return cases
