"""Writing to the terminal: results to standard output, all else to standard error."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, or one line for each thing listed.")
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
By = Annotated[
    str | None, typer.Option("--as", metavar="USER", help="Who says so.", show_default="local")
]

LONGEST_BRIEF_CHARACTERS = 80
PIPED_WIDTH = 200  # columns, where no terminal says how many it has
STYLES = {
    "running": "cyan",
    "paused": "yellow",
    "in_flight": "cyan",
    "completed": "green",
    "committed": "green",
    "ok": "green",
    "warn": "yellow",
    "cancelled": "dim",
    "failed": "red",
    "fail": "bold red",
    "unknown": "bold red",
    "needs_attention": "bold red",
}
"""The colour of a status, of an effect's state, and of a finding."""


def print_json(value: object) -> None:
    """Print a report or plain JSON as one document in one line."""
    from celeriac.reports import to_json

    text = json.dumps(to_json(value), ensure_ascii=False)
    # A lone surrogate, which JSON allows, is no UTF-8: Python's escape of it is JSON's as well.
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.flush()  # whoever reads the other end of a pipe follows line by line


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or the sentence `empty` if it has no rows."""
    listed = list(rows)
    console().print(table(columns, listed) if listed else empty)


def console(*, to_stderr: bool = False) -> "Console":
    """A console on standard output that takes what it prints as it is: data is no markup."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(
        stderr=to_stderr,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if stream.isatty() else PIPED_WIDTH,
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    from rich import box
    from rich.table import Table

    drawn = Table(*columns, box=box.SIMPLE_HEAD, header_style="bold")
    for row in rows:
        drawn.add_row(*map(cell, row))
    return drawn


def cell(value: object) -> "Text":
    """A value as a table shows it."""
    from rich.text import Text

    if value is None:
        return Text()
    if isinstance(value, datetime):
        return Text(clock(value))
    text = printable(str(value))
    return Text(text, style=STYLES.get(text, ""))


def clock(at: datetime) -> str:
    """A time in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")


def time_of_day(at: datetime) -> str:
    """The same without its date, where another time beside it has that."""
    return clock(at).partition(" ")[2]


def brief(value: object, longest: int = LONGEST_BRIEF_CHARACTERS) -> str:
    """A text, or a value as JSON, in one line of at most `longest` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = printable(text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def printable(text: str) -> str:
    """`text` without what a terminal would obey: a result may come from anywhere."""
    return "".join(
        " " if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") else character
        for character in text
    )
