"""Times as people write them on the command line: `2027-01-31T08:00+01:00`, `90s`, `15m`."""

import re
from datetime import UTC, datetime, timedelta

from celeriac.cli.group import WrongUsage

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")


def moment(text: str, option: str) -> datetime:
    """A time; without an offset, one of UTC. Raises `WrongUsage`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongUsage(
            f"{option}: {text!r} is no time; write it as 2027-01-31T08:00+01:00"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def span(text: str, option: str) -> timedelta:
    """How long. Raises `WrongUsage`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise WrongUsage(f"{option}: {text!r} is no span of time; write it as 90s, 15m, 2h or 1d")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def moment_or_span(text: str, option: str) -> datetime | timedelta:
    """Either of both. Raises `WrongUsage`."""
    return span(text, option) if _SPAN.fullmatch(text) else moment(text, option)
