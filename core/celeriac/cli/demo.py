"""`celeriac demo`: the main job on a real stack, with everything killed that can be killed."""

import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, print_json
from celeriac.cli.up import Ending
from celeriac.errors import CeleriacError
from celeriac.stack.description import is_running

if TYPE_CHECKING:
    from celeriac.cli.screen import Screen

KEPT_DATA = Path(".celeriac-demo")
PREFIXES = ("CELERIAC_", "ORDER_DESK_")


def demo(
    context: typer.Context,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C, to be tried out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show on real servers that an agent's work outlives workers and broker; exit 0 if it did.

    Orders are taken while workers are killed, the broker loses its data, and an answer gets lost.
    Then it is counted what came of them, in the database and in the ledger of the service that told
    the customers. The demo brings its own servers and heeds no CELERIAC_ variable. Its data are in
    a new temporary folder, with --keep in .celeriac-demo, and are removed unless something was
    wrong; in a folder that --data names they are left.
    """
    began_at = time.monotonic()
    given = environment(context)
    if given.database_url or given.broker_url:
        raise WrongUsage("the demo kills its servers, so it brings its own: name none")
    data = _fresh_folder(given.data, keep=keep)
    # What this shell was set up for must not change the play.
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        del os.environ[name]
    ending = Ending()
    from celeriac.cli.screen import Screen

    screen = Screen(to_stderr=as_json)
    try:
        with screen:
            _perform(data, screen, ending, began_at, keep=keep, as_json=as_json)
    finally:
        # With --keep it always ends by a signal: that must not remove what shows what was wrong.
        is_wanted = not screen.verdict.is_right if screen.verdict else not ending.asked.is_set()
        if given.data is None and not is_wanted:
            _remove(data)
        elif data.exists():
            typer.echo(f"Its data and logs are left in {data}", err=True)
    if screen.verdict is None or not screen.verdict.is_right:
        raise typer.Exit(1)


def _fresh_folder(named: str | None, *, keep: bool) -> Path:
    if named is None and not keep:
        return Path(tempfile.gettempdir()) / f"celeriac-demo-{secrets.token_hex(4)}"
    data = KEPT_DATA if named is None else Path(named)
    if is_running(data):
        raise CeleriacError(
            f"a stack runs in {data} already: stop it first, or name another --data"
        )
    if data.exists() and not (data.is_dir() and not any(data.iterdir())):
        raise CeleriacError(
            f"the demo needs a new folder, but {data} has something in it: remove that if you need "
            "it no more, or name another --data"
        )
    return data


def _perform(
    data: Path, screen: "Screen", ending: Ending, began_at: float, *, keep: bool, as_json: bool
) -> None:
    screen.begin_act("Servers of its own, and a shop")
    screen.wait_for("PostgreSQL, a broker, a scheduler, two workers and Flower")
    from celeriac.demo.play import Play
    from celeriac.demo.stage import set_up
    from celeriac.demo.timeline import Timeline
    from celeriac.demo.verdict import judge
    from celeriac_storage.audit import audit

    with set_up(data, give_up=ending.asked, on_change=screen.tell_services) as stage:
        screen.say(f"everything runs; Flower is at {stage.stack.description.flower_url}")
        timeline = Timeline(stage.client, screen, ending.asked)
        record = Play(stage, timeline, screen).perform()
        screen.begin_act("The verdict, from what is left in the rows")
        ledger = stage.notifications.read_ledger()
        verdict = judge(record, stage.client, stage.shop, ledger, audit(stage.database))
        seconds = time.monotonic() - began_at
        screen.show(verdict, seconds)
        if as_json:
            print_json(
                {
                    "ok": verdict.is_right,
                    "seconds": round(seconds, 1),
                    "findings": verdict.findings,
                    "failovers": verdict.failovers,
                }
            )
        if keep:
            screen.invite(stage, record)
            screen.wait_for("Ctrl-C")
            ending.asked.wait()
        screen.wait_for("everything to end")


def _remove(data: Path) -> None:
    from celeriac.stack.folder import remove

    try:
        remove(data)
    except OSError as error:
        typer.echo(f"{data} cannot be removed: {error}", err=True)
