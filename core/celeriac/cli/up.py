"""`celeriac up`: a whole Celeriac on this machine, until Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.loading import loading
from celeriac.cli.output import AsJson, print_json
from celeriac.stack.description import API_TOKEN

if TYPE_CHECKING:
    from pydantic import SecretStr

    from celeriac.settings import Settings
    from celeriac.stack.service import Line
    from celeriac.stack.stack import Stack


def up(
    context: typer.Context,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes.")] = 2,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Flower's; else a free one, remembered.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole Celeriac on this machine until Ctrl-C or SIGTERM: PostgreSQL, a broker,
    scheduler, workers, the HTTP API with the console, Flower.

    Its data are kept in the folder that --data names, and other commands find it there. A server
    that is named (--database-url, --broker-url, or by its variable) is used, and none started for
    it. A second Ctrl-C ends the steps in progress as well.
    """
    settings = environment(context).named_settings()
    ending = Ending()
    news = News(is_wanted=not as_json)
    with loading():
        from celeriac.stack.stack import Stack

    stack = Stack(
        Path(settings.data),
        workers=workers,
        agents=settings.agents,
        flower_port=port,
        database_url=_url(settings.database_url),
        broker_url=_url(settings.broker_url),
        on_change=news.tell,
    )
    stack.start(give_up=ending.asked, hurry=ending.hurried)
    try:
        if as_json:
            print_json(stack.description.to_json())
            ending.asked.wait()
        else:
            _say_what_to_do(stack, settings, workers)
            _watch(stack, settings, news, ending)
    finally:
        news.say("stopping")
        stack.stop(hurry=ending.hurried)
    news.say("stopped")


class Ending:
    """Asked for by a first signal, hurried by a second one."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.hurried = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` has it ignored: the end of the terminal is not to be the end of us.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()


class News:
    """One line on standard error for each service that comes up or goes down."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        self._told: dict[str, Line] = {}

    def say(self, text: str) -> None:
        if self.is_wanted:
            typer.echo(text, err=True)

    def tell(self, lines: Sequence["Line"]) -> None:
        """Called in the supervisor's thread with all services, whenever one has changed."""
        for line in lines:
            before = self._told.get(line.name)
            self._told[line.name] = line
            if before is None or before.state is not line.state or before.pid != line.pid:
                self._tell_one(line)

    def _tell_one(self, line: "Line") -> None:
        match line.state:
            case "ready":
                where = line.address or "-"
                self.say(f"{line.name:<10} ready     {where:<26} pid {line.pid}")
            case "waiting" if line.problem is not None:
                self.say(f"{line.name:<10} restarts  it {line.problem}")


def _say_what_to_do(stack: "Stack", settings: "Settings", workers: int) -> None:
    if not settings.agents and workers:
        typer.echo(
            "No agents were named, so no worker runs: stop this and give --agents MODULE (or "
            "CELERIAC_AGENTS), or start `celeriac worker --agents MODULE` beside it.",
            err=True,
        )
    if stack.new_api_token is not None:
        typer.echo(
            f"Your token of the API, shown this once and kept in {stack.data / API_TOKEN}: "
            f"{stack.new_api_token}",
            err=True,
        )
    typer.echo(
        f"The console is at {stack.description.api_url}; sign in there with this one-time token: "
        f"{stack.one_time_token}",
        err=True,
    )
    typer.echo(f"Ready; Ctrl-C stops it. Data and logs are in {stack.data}", err=True)


def _watch(stack: "Stack", settings: "Settings", news: News, ending: Ending) -> None:
    """Show how it goes until the end is asked for: in a terminal a live table, else the news."""
    if not sys.stdout.isatty():
        ending.asked.wait()
        return
    from rich.live import Live

    from celeriac.cli.dashboard import PAUSE_SECONDS, Dashboard
    from celeriac.cli.output import console

    news.is_wanted = False
    try:
        with (
            Dashboard(stack, settings) as dashboard,
            Live(dashboard.draw(), console=console(), auto_refresh=False) as live,
        ):
            while not ending.asked.wait(PAUSE_SECONDS):
                live.update(dashboard.draw(), refresh=True)
    finally:
        news.is_wanted = True


def _url(value: "SecretStr | None") -> str | None:
    return value.get_secret_value() if value is not None else None
