"""Cron expressions against a calendar that is read minute by minute, and the days clocks change."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celeriac.cron import Cron
from celeriac.errors import InvalidInput

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
YEAR = 2027
MINUTE = timedelta(minutes=1)


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def utc(*texts: str) -> list[datetime]:
    return [at(text) for text in texts]


# The oracle ---------------------------------------------------------------------------------------
class Clockface:
    """The local minutes that a simple expression (numbers, lists, `*` and `*/n`) names."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, weekday = expression.split()
        self.is_interval = minute.startswith("*") or hour.startswith("*")
        self._minutes, self._hours = named(minute, range(60)), named(hour, range(24))
        self._days, self._months = named(day, range(1, 32)), named(month, range(1, 13))
        self._weekdays = named(weekday, range(7))
        self._needs_both = day.startswith("*") or weekday.startswith("*")

    def shows(self, local: datetime) -> bool:
        if local.minute not in self._minutes or local.hour not in self._hours:
            return False
        is_day, is_weekday = local.day in self._days, local.isoweekday() % 7 in self._weekdays
        is_right_day = is_day and is_weekday if self._needs_both else is_day or is_weekday
        return is_right_day and local.month in self._months


def named(field: str, values: range) -> set[int]:
    if field.startswith("*"):
        return set(values[:: int(field.partition("/")[2] or 1)])
    return set(map(int, field.split(",")))


def naive_times(expression: str, zone: str) -> Iterator[datetime]:
    """Every instant of the year, found by looking at each of its minutes."""
    place, clock = ZoneInfo(zone), Clockface(expression)
    start, end = datetime(YEAR, 1, 1), datetime(YEAR + 1, 1, 1)
    if clock.is_interval:
        instant = start.replace(tzinfo=place).astimezone(UTC)
        last = end.replace(tzinfo=place).astimezone(UTC)
        while instant < last:
            if clock.shows(instant.astimezone(place)):
                yield instant
            instant += MINUTE
        return
    seen: set[datetime] = set()
    local = start
    while local < end:
        if clock.shows(local):
            shown = local
            while not exists(shown, place):
                shown += MINUTE
            instant = shown.replace(tzinfo=place, fold=0).astimezone(UTC)
            if instant not in seen:
                seen.add(instant)
                yield instant
        local += MINUTE


def exists(local: datetime, place: ZoneInfo) -> bool:
    there = local.replace(tzinfo=place).astimezone(UTC).astimezone(place)
    return there.replace(tzinfo=None) == local


numbers = {
    "minute": st.integers(0, 59),
    "hour": st.integers(0, 4),  # where clocks are changed
    "day": st.integers(1, 31),
    "month": st.integers(1, 12),
    "weekday": st.integers(0, 6),
}


def fields(name: str) -> st.SearchStrategy[str]:
    listed = st.lists(numbers[name], min_size=1, max_size=3).map(
        lambda values: ",".join(map(str, values))
    )
    stepped = st.sampled_from(["*", "*/2", "*/7", "*/20"]) if name == "minute" else st.just("*")
    return st.one_of(listed, stepped)


expressions = st.tuples(*map(fields, numbers)).map(" ".join)


@settings(max_examples=8)
@example("* 0 * * *", "Australia/Lord_Howe")  # whose clocks change by half an hour
@example("30 * * * *", "Australia/Lord_Howe")
@given(expressions, st.sampled_from([BERLIN, NEW_YORK, "Australia/Lord_Howe", "UTC"]))
def test_a_year_of_an_expression_is_what_its_minutes_say(expression: str, zone: str) -> None:
    begin, end = at(f"{YEAR}-01-01", zone), at(f"{YEAR + 1}-01-01", zone)
    found = []
    for instant in Cron(expression, zone).times_after(begin - MINUTE):
        if instant >= end:
            break
        found.append(instant)

    assert found == list(naive_times(expression, zone))


# The days clocks change ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        (BERLIN, "2027-03-28", "2027-03-28T01:00"),  # 02:00 becomes 03:00
        (NEW_YORK, "2027-03-14", "2027-03-14T07:00"),
    ],
)
def test_a_time_that_clocks_skip_comes_once_when_they_go_on(
    zone: str, day: str, expected: str
) -> None:
    times = Cron("0,30 2 * * *", zone).next_times(at(f"{day}T00:00", zone), 2)

    assert times[0] == at(expected)
    assert times[1] > times[0] + timedelta(hours=20), "both skipped times are one instant"


@pytest.mark.parametrize(
    ("zone", "clock", "first"),
    [
        (BERLIN, "30 2", "2027-10-31T00:30"),
        (NEW_YORK, "30 1", "2027-11-07T05:30"),
    ],
)
def test_a_time_that_clocks_repeat_comes_once(zone: str, clock: str, first: str) -> None:
    day = at(first) - timedelta(hours=2)

    times = Cron(f"{clock} * * *", zone).next_times(day, 2)

    assert times[0] == at(first)
    assert times[1] == at(first) + timedelta(hours=25)


def test_after_the_first_of_a_repeated_time_comes_the_next_day() -> None:
    first = at("2027-10-31T00:30")

    assert Cron("30 2 * * *", BERLIN).next_after(first) == at("2027-11-01T01:30")


def test_an_interval_goes_by_the_time_that_passes() -> None:
    times = Cron("*/30 * * * *", BERLIN).next_times(at("2027-10-31T00:00"), 4)

    assert times == utc(
        "2027-10-31T00:30", "2027-10-31T01:00", "2027-10-31T01:30", "2027-10-31T02:00"
    )


def test_the_instant_after_a_gap_is_found_from_within_the_gap_s_own_minute() -> None:
    gap = at("2027-03-28T01:00")

    assert Cron("30 2 * * *", BERLIN).next_after(gap - timedelta(seconds=1)) == gap
    assert Cron("30 2 * * *", BERLIN).next_after(gap) == at("2027-03-29T00:30")


# What was missed ----------------------------------------------------------------------------------
@pytest.mark.parametrize("expression", ["* * * * *", "0 3 * * *", "30 2 1 * *", "0 0 29 2 *"])
@pytest.mark.parametrize("limit", [1, 5, 100])
def test_the_latest_are_the_end_of_all(expression: str, limit: int) -> None:
    cron = Cron(expression, NEW_YORK)
    since, until = at("2027-03-01T00:00"), at("2027-03-20T12:00")
    every = list(takewhile(lambda each: each <= until, cron.times_after(since - MINUTE)))

    assert cron.latest(since, until, limit) == every[-limit:]


def test_ten_years_of_minutes_are_not_walked_through() -> None:
    latest = Cron("* * * * *").latest(at("2017-01-01"), at("2027-01-01"), 3)

    assert latest == utc("2026-12-31T23:58", "2026-12-31T23:59", "2027-01-01T00:00")


# What cannot be used ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "0 0 0 * * *", "61 * * * *", "* 24 * * *", "0 0 31 2 *", "often", "*/0 * * * *",
     "0 0 * * MOON", "1," * 200 + "1 * * * *"],
)  # fmt: skip
def test_an_expression_that_cannot_be_used_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput, match="cron expression"):
        Cron(expression)


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "Europe/", "a\0b", "Berlin"])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="no time zone"):
        Cron("@daily", zone)


def test_macros_are_their_expressions() -> None:
    assert Cron("@daily", BERLIN).next_after(at("2027-01-01T12:00")) == at("2027-01-01T23:00")
