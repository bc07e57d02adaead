"""`celeriac schedules`: runs at the times of cron expressions."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, By, brief, clock, print_json, print_table
from celeriac.cli.starting import parse_json

if TYPE_CHECKING:
    from celeriac.reports import Schedule

schedules = typer.Typer(no_args_is_help=True, help="Start runs at the times of cron expressions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@schedules.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of your choice.")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    cron: Annotated[
        str,
        typer.Option(metavar="EXPRESSION", help="Minute, hour, day, month, weekday; or @daily …"),
    ],
    input: Annotated[str, typer.Option("--input", metavar="JSON", help="Each run's input.")],  # noqa: A002
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Such as Europe/Berlin.")] = "UTC",
    overlap: Annotated[
        Literal["skip", "queue", "cancel_running", "allow"],
        typer.Option(help="When the run of an earlier time has not ended."),
    ] = "skip",
    catch_up: Annotated[
        Literal["none", "last", "all"],
        typer.Option(help="Of the times that passed while no scheduler was there."),
    ] = "last",
    catch_up_limit: Annotated[int, typer.Option(min=1, max=1000, help="With all: so many.")] = 10,
    jitter: Annotated[
        float, typer.Option(min=0, max=86_400, metavar="SECONDS", help="At most so much later.")
    ] = 0.0,
    user: Annotated[str | None, typer.Option(metavar="U", help="Whose runs they are.")] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start runs of an agent at the times of a cron expression in a time zone."""
    from celeriac.schedule import NewSchedule

    new = NewSchedule(
        agent,
        cron,
        parse_json(input, "--input"),
        time_zone=time_zone,
        overlap=overlap,
        catch_up=catch_up,
        catch_up_limit=catch_up_limit,
        jitter_seconds=jitter,
    )
    with environment(context).client() as client:
        _print(client.add_schedule(name, new, user_id=user, by=by), as_json=as_json)


@schedules.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the schedules, by name."""
    with environment(context).client() as client:
        found = client.schedules()
    if as_json:
        for each in found:
            print_json(each)
        return
    print_table(
        ["schedule", "agent", "cron", "time zone", "next (UTC)", "last", "run"],
        [
            (
                each.schedule_id,
                each.agent,
                each.cron,
                each.time_zone,
                "paused" if each.paused else each.next_fire_at,
                each.fires[0].outcome if each.fires else None,
                each.fires[0].run_id if each.fires else None,
            )
            for each in found
        ],
        empty="no schedules",
    )


@schedules.command()
def show(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """Show a schedule, its next times, and what came of the latest."""
    with environment(context).client() as client:
        _print(client.schedule(name), as_json=as_json)


@schedules.command()
def pause(context: typer.Context, name: Name, by: By = None, as_json: AsJson = False) -> None:
    """Let no time count until it is resumed."""
    with environment(context).client() as client:
        _print(client.pause_schedule(name, by=by), as_json=as_json)


@schedules.command()
def resume(context: typer.Context, name: Name, by: By = None, as_json: AsJson = False) -> None:
    """Go on with its next time; those that have passed are not caught up."""
    with environment(context).client() as client:
        _print(client.resume_schedule(name, by=by), as_json=as_json)


@schedules.command()
def remove(context: typer.Context, name: Name, by: By = None, as_json: AsJson = False) -> None:
    """End a schedule. The runs that it has started go on."""
    with environment(context).client() as client:
        removed = client.remove_schedule(name, by=by)
    if as_json:
        print_json(removed)
    else:
        typer.echo(f"schedule {name} is removed")


@schedules.command()
def trigger(context: typer.Context, name: Name, by: By = None, as_json: AsJson = False) -> None:
    """Do now what it does at its times, as its overlap policy says."""
    with environment(context).client() as client:
        fire = client.trigger_schedule(name, by=by)
    if as_json:
        print_json(fire)
    else:
        run = "" if fire.run_id is None else f": run {fire.run_id}"
        typer.echo(f"schedule {name}: {fire.outcome}{run}")


def _print(schedule: "Schedule", *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    state = "paused" if schedule.paused else "next"
    times = ", ".join(map(clock, schedule.next_times))
    typer.echo(
        f"schedule {schedule.schedule_id}: {schedule.agent} with {brief(schedule.input)} at "
        f"{schedule.cron!r} in {schedule.time_zone}, overlap {schedule.overlap}, catch-up "
        f"{schedule.catch_up}; {state} {times + ' UTC' if times else ''}".rstrip()
    )
    if schedule.fires:
        print_table(
            ["time (UTC)", "came", "outcome", "run", "by", "error"],
            [
                (each.scheduled_at, each.fired_at, each.outcome, each.run_id, each.triggered_by,
                 None if each.error is None else brief(each.error, 200))
                for each in schedule.fires
            ],
            empty="",
        )  # fmt: skip
