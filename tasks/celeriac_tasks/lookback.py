"""Reading a conversation back from its end, no further than a model can be shown.

The cost is that of what is shown: a thread of ten thousand messages is not read through, nor
counted. What a model is shown all the same, however long ago it was said, is looked up by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pydantic_ai.messages import ModelMessage
from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.messages import CallResult, load_message, results_message
from celeriac.selection import Place
from celeriac.token_count import message_tokens
from celeriac_storage.history import (
    Giver,
    StoredMessage,
    StoredResult,
    earlier_runs,
    givers,
    latest_prompt,
    load_ranges,
)

PAGE_MESSAGES = 256

Range = tuple[RunId, int, int]
"""Messages of a run: the first position, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Log:
    """The messages of a run as they stood at one of its steps."""

    run_id: RunId
    message_count: int
    has_givers: bool  # it goes on with the conversation of others


def load_end(connection: Connection, log: Log, room: int | None) -> list[Place]:
    """The end of the conversation up to here: more than `room` tokens of it, if there are so many,
    else all; and of the run's own, the prompts that are kept."""
    chain = givers(connection, log.run_id) if log.has_givers else []
    places: list[Place] = []
    tokens = 0
    for page in _pages_back(connection, log, chain):
        found = placed(load_ranges(connection, page))
        places[:0] = found
        tokens += sum(place.tokens for place in found)
        if room is not None and tokens > room:
            return _with_prompts(connection, log, chain, places)
    return places


def placed(messages: Sequence[StoredMessage]) -> list[Place]:
    """The messages as they are sent, each with its place."""
    places = []
    for stored in messages:
        message = _parsed(stored)
        places.append(Place(stored.run_id, stored.position, message, message_tokens(message)))
    return places


def load_places(connection: Connection, ranges: Sequence[Range]) -> list[Place]:
    return placed(load_ranges(connection, ranges))


def call_result(stored: StoredResult) -> CallResult:
    """What the model reads of a settled call: its result, or the error in words."""
    if stored.error is None:
        return CallResult(stored.provider_call_id, stored.tool, stored.result, is_error=False)
    return CallResult(
        stored.provider_call_id, stored.tool, stored.error.get("message"), is_error=True
    )


def _pages_back(connection: Connection, log: Log, chain: Sequence[Giver]) -> Iterator[list[Range]]:
    """Ranges of about `PAGE_MESSAGES` messages, from the last ones back to the thread's first."""
    page: list[Range] = []
    size = 0
    for run_id, count in _runs_back(connection, log, chain):
        end = count
        while end:
            begin = max(0, end - (PAGE_MESSAGES - size))
            page.insert(0, (run_id, begin, end))
            size += end - begin
            end = begin
            if size == PAGE_MESSAGES:
                yield page
                page, size = [], 0
    if page:
        yield page


def _runs_back(
    connection: Connection, log: Log, chain: Sequence[Giver]
) -> Iterator[tuple[RunId, int]]:
    """Each run whose messages come before, and how many of them."""
    yield log.run_id, log.message_count
    for giver in chain:
        yield giver.run_id, giver.until
    yield from _thread_back(connection, chain[-1].run_id if chain else log.run_id)


def _thread_back(connection: Connection, run_id: RunId) -> Iterator[tuple[RunId, int]]:
    before: int | None = None
    while True:
        earlier = earlier_runs(connection, run_id, before, PAGE_MESSAGES)
        for run in earlier:
            yield run.run_id, run.message_count
            origins = givers(connection, run.run_id) if run.is_fork else []
            for giver in origins:
                yield giver.run_id, giver.until
            if run.begins_thread:
                yield from _thread_back(connection, origins[-1].run_id)
                return
        if len(earlier) < PAGE_MESSAGES:
            return
        before = earlier[-1].thread_position


def _with_prompts(
    connection: Connection, log: Log, chain: Sequence[Giver], places: list[Place]
) -> list[Place]:
    """`places`, which begin somewhere within, and before them the prompts of the run itself that
    are kept: what opened it, and what its user said last. A fork's own begins with its origin's."""
    first = places[0]
    places[0] = replace(first, follows=False)
    own = [(log.run_id, log.message_count)]
    own += [(giver.run_id, giver.until) for giver in takewhile(lambda each: each.is_origin, chain)]
    own.reverse()
    order = {run_id: number for number, (run_id, _) in enumerate(own)}
    if first.run_id not in order:
        return places
    latest = (
        (run_id, position)
        for run_id, until in reversed(own)
        if (position := latest_prompt(connection, run_id, until)) is not None
    )
    opening = (own[0][0], 0)
    begin = (order[first.run_id], first.position)
    wanted = sorted(
        (order[run_id], position, run_id)
        for run_id, position in {opening, next(latest, opening)}
        if (order[run_id], position) < begin
    )
    if not wanted:
        return places
    kept = placed(load_ranges(connection, [(run, at, at + 1) for _, at, run in wanted]))
    return [replace(place, follows=False) for place in kept] + places


def _parsed(stored: StoredMessage) -> ModelMessage:
    if stored.role == "results":
        return results_message([call_result(result) for result in stored.results])
    return load_message(stored.body)
