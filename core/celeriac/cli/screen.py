"""What `celeriac demo` shows: its timeline as it grows, the verdict, and what to try next."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from celeriac.cli.output import console, table, time_of_day
from celeriac.cli.timeline import in_order
from celeriac.cli.up import News
from celeriac.demo.holds import ABOUT_TO_NOTIFY, HOLD_SECONDS
from celeriac.demo.record import Record
from celeriac.demo.shop import AGENT, SKU
from celeriac.demo.stage import Stage
from celeriac.demo.verdict import Verdict
from celeriac.reports import Event, Step
from celeriac.stack.service import Line

LABEL_CHARACTERS = 12  # the longest run id of the play


class Screen:
    """The demo's `Narrator`. In a terminal its last line tells what it waits for; piped, it is
    plain lines."""

    def __init__(self, *, to_stderr: bool) -> None:
        self.verdict: Verdict | None = None  # the one that was shown
        self._news = _ServiceNews(self.say)
        self._console = console(to_stderr=to_stderr)
        self._spinner = Spinner("dots")
        self._waits_for = ""
        self._since = time.monotonic()
        self._live = Live(
            console=self._console,
            get_renderable=self._draw_wait,
            refresh_per_second=8,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def begin_act(self, title: str) -> None:
        self._console.print(Text(f"\n{title}", style="bold"))

    def say(self, text: str) -> None:
        self._print("", Text(f"{time_of_day(datetime.now(UTC))}  {text}", style="cyan"))

    def wait_for(self, what: str) -> None:
        self._waits_for, self._since = what, time.monotonic()

    def tell(self, run_id: str, steps: Sequence[Step], events: Sequence[Event]) -> None:
        for _, line in in_order(steps, events):
            self._print(run_id, line)

    def tell_services(self, lines: Sequence[Line]) -> None:
        """Called in the supervisor's thread."""
        self._news.tell(lines)

    def show(self, verdict: Verdict, seconds: float) -> None:
        self.verdict = verdict
        self._console.print(
            table(
                ["", "what", "had to be", "is", "read from"],
                [
                    ("ok" if each.is_right else "fail", each.what, each.expected, each.found,
                     each.source)
                    for each in verdict.findings
                ],
            )
        )  # fmt: skip
        wrong = sum(not finding.is_right for finding in verdict.findings)
        total = len(verdict.findings)
        told = f"{wrong} of {total} rows are wrong" if wrong else f"all {total} rows are right"
        style = "bold red" if wrong else "bold green"
        self._console.print(Text(f"{told}, after {seconds:.1f} s", style=style))

    def invite(self, stage: Stage, record: Record) -> None:
        """Tell what there is to try on the stage that stays open."""
        command = f"{_celeriac()} --data {shlex.quote(str(stage.stack.data))}"
        order = f'{{"order_id": "O-2001", "sku": "{SKU}", "quantity": 1}}'
        killed = record.kills[0].order.run_id
        point = shlex.quote(str(stage.holds.file(ABOUT_TO_NOTIFY)))
        self._console.print(
            Text(
                f"""
Everything runs until Ctrl-C. Look at it, in another terminal or in a browser:

  Flower        {stage.stack.description.flower_url}
  the ledger    curl {stage.notifications.address}/ledger
  the runs      {command} runs
  one of them   {command} show {killed}
  its history   {command} events {killed}

Kill a worker yourself. The first line arms a test point, where the worker of the next order is held
for {HOLD_SECONDS:g} seconds between deduction and notification:

  rm {point}
  {command} run {AGENT} --run-id mine --input '{order}'
  {command} workers
  kill -9 PID          (of the worker that runs it)
  {command} show mine
  {command} audit
"""
            )
        )

    def _print(self, label: str, text: Text) -> None:
        line = Table.grid(padding=(0, 2))
        line.add_column(width=LABEL_CHARACTERS)
        line.add_column(overflow="fold")
        line.add_row(label, text)
        self._console.print(line)

    def _draw_wait(self) -> Spinner:
        seconds = time.monotonic() - self._since
        self._spinner.update(text=Text(f"{self._waits_for}, {seconds:.0f} s", style="dim"))
        return self._spinner


class _ServiceNews(News):
    """The same news as those of `celeriac up`, told among the rest."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(is_wanted=True)
        self._say = say

    def say(self, text: str) -> None:
        self._say(text)


def _celeriac() -> str:
    """The command as this shell finds it."""
    if shutil.which("celeriac"):
        return "celeriac"
    return shlex.quote(str(Path(sys.executable).with_name("celeriac")))
