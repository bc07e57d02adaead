"""Cron expressions in a time zone: which instants they mean, with daylight saving.

An expression has five fields (minute, hour, day of month, month, day of week), as Debian's cron
reads them, or is one of `MACROS`.

- With a time of day (neither minute nor hour begins with `*`), each local time counts once: one
  that the clocks skip comes at the first instant after the gap, one that they repeat at the first
  of the two.
- With a `*` in minute or hour it is an interval, and that goes by what passes, not by what clocks
  show: `*/15 * * * *` comes every fifteen minutes, also in the hour that is repeated.

`cronsim` reads the expressions and walks the calendar; time zones are those of `zoneinfo`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from celeriac.errors import InvalidInput

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MAX_EXPRESSION_CHARACTERS = 200
FIELDS = 5

_FIRST_LOOK_BACK = timedelta(hours=1)
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_LONGEST_OFFSET = timedelta(days=2)  # more than any clock was ever put back


@dataclass(frozen=True)
class Cron:
    """An expression in a time zone, such as `Cron("30 2 * * MON-FRI", "Europe/Berlin")`.

    Raises `InvalidInput` for an expression or a zone that cannot be used.
    """

    expression: str
    time_zone: str = "UTC"
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", _read_fields(self.expression))
        object.__setattr__(self, "_zone", _read_zone(self.time_zone))
        try:
            CronSim(self._fields, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise InvalidInput(
                f"the cron expression {self.expression!r} cannot be used: {error}. It has five "
                "fields: minute, hour, day of month, month, day of week, as in '30 2 * * MON-FRI'"
            ) from error

    def times_after(self, moment: datetime) -> Iterator[datetime]:
        """The instants after `moment`, in UTC and in order; none if there is none for 50 years."""
        last = moment.astimezone(UTC)
        for instant in self._times_of_day(last) if self._is_time_of_day else self._intervals(last):
            if instant > last:
                last = instant
                yield instant

    def _times_of_day(self, start: datetime) -> Iterator[datetime]:
        # From a little before: a local time that the clocks skipped is found as it stands on the
        # calendar, which may be before `start`, and means an instant after it.
        begin = start - _LONGEST_OFFSET
        for local in CronSim(self._fields, begin.astimezone(self._zone)):
            yield local.astimezone(UTC)

    def _intervals(self, start: datetime) -> Iterator[datetime]:
        # From one change of the clocks to the next the zone has one offset. Over a change by half
        # an hour, as there is on Lord Howe Island, cronsim would look at the half of each hour.
        offset = self._offset(start)
        while True:
            last = start
            for local in CronSim(self._fields, start.astimezone(timezone(offset))):
                instant = local.astimezone(UTC)
                change = self._change(last, instant, offset)
                if change is not None:
                    start, offset = change - _MINUTE, self._offset(change)
                    break
                yield instant
                last = instant
            else:
                return

    def _change(self, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
        """The first minute after `after` and up to `until` that has another offset."""
        while after < until:
            later = min(after + _DAY, until)
            if self._offset(later) != offset:
                while later - after > _MINUTE:
                    middle = after + (later - after) / 2
                    if self._offset(middle) == offset:
                        after = middle
                    else:
                        later = middle
                return later.replace(second=0, microsecond=0)
            after = later
        return None

    def _offset(self, instant: datetime) -> timedelta:
        offset = instant.astimezone(self._zone).utcoffset()
        assert offset is not None, "it has a zone"
        return offset

    def next_after(self, moment: datetime) -> datetime | None:
        """The first instant after `moment`, in UTC."""
        return next(self.times_after(moment), None)

    def next_times(self, moment: datetime, count: int) -> list[datetime]:
        """The next few instants after `moment`, in UTC."""
        return list(islice(self.times_after(moment), count))

    def latest(self, since: datetime, until: datetime, limit: int) -> list[datetime]:
        """The last instants from `since` up to `until`, at most `limit`, in order.

        It looks back in growing pieces, so that the time it takes goes by what it returns and not
        by how long ago `since` is: years of minutes cost no more than an hour of them.
        """
        just_before = since - timedelta(microseconds=1)
        back = _FIRST_LOOK_BACK
        while True:
            begin = max(just_before, until - back)
            found: list[datetime] = []
            for instant in self.times_after(begin):
                if instant > until:
                    break
                found.append(instant)
            if len(found) >= limit or begin == just_before:
                return found[-limit:]
            back *= 4

    @property
    def _is_time_of_day(self) -> bool:
        minute, hour, *_ = self._fields.split()
        return not (minute.startswith("*") or hour.startswith("*"))


def _read_fields(expression: str) -> str:
    known = MACROS.get(expression.strip().lower())
    if known is not None:
        return known
    count = len(expression.split())
    if count != FIELDS or len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise InvalidInput(
            f"the cron expression {expression[:MAX_EXPRESSION_CHARACTERS]!r} has {count} fields "
            f"and {len(expression)} characters; it must have five fields (minute, hour, day of "
            f"month, month, day of week) in at most {MAX_EXPRESSION_CHARACTERS} characters, or be "
            f"one of {', '.join(MACROS)}"
        )
    return expression


def _read_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        raise InvalidInput(
            f"there is no time zone {name!r}; give one of the IANA database, such as "
            "'Europe/Berlin' or 'UTC'"
        ) from error
