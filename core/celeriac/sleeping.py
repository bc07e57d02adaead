"""Tools with which a model lets time pass: its run holds no worker meanwhile (docs/time.md)."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from celeriac.tools import Tool, tool

MAX_SLEEP_SECONDS = 366 * 86_400


def _pauses(declared: Tool[..., Any]) -> Tool[..., Any]:
    return replace(declared, flags=replace(declared.flags, sleeps=True))


@tool(effect="none", name="sleep", exclusive=True)
def _sleep(
    seconds: Annotated[float, Field(gt=0, le=MAX_SLEEP_SECONDS, allow_inf_nan=False)],
) -> str:
    """Wait for so many seconds before anything else is done, up to a year."""
    raise AssertionError(f"nobody is called: a timer lets {seconds} s pass")


@tool(effect="none", name="wake_at", exclusive=True)
def _wake_at(time: AwareDatetime) -> str:
    """Wait until a time, given as ISO 8601 with its offset, before anything else is done."""
    raise AssertionError(f"nobody is called: a timer waits until {time}")


sleep = _pauses(_sleep)
wake_at = _pauses(_wake_at)


def wait_of(arguments: Mapping[str, Any]) -> tuple[datetime | None, float | None]:
    """The time that a call of one of the two waits for, or how many seconds."""
    if "seconds" in arguments:
        return None, float(arguments["seconds"])
    return datetime.fromisoformat(str(arguments["time"])), None
