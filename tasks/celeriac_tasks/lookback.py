"""Reading a conversation back from its end, no further than a model can be shown.

The cost is that of what is shown: a thread of ten thousand messages is not read through, nor
counted. What a model is shown all the same, however long ago it was said, is looked up by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage
from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.messages import CallResult, load_message, results_message
from celeriac.selection import Place
from celeriac.token_count import message_tokens
from celeriac_storage.claims import Claim
from celeriac_storage.history import (
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


def load_end(connection: Connection, claim: Claim, room: int | None) -> list[Place]:
    """The end of the conversation before this claim's step: more than `room` tokens of it, if there
    are so many, else all; and of the run's own, the prompts that are kept."""
    places: list[Place] = []
    tokens = 0
    for page in _pages_back(connection, claim):
        found = placed(load_ranges(connection, page))
        places[:0] = found
        tokens += sum(place.tokens for place in found)
        if room is not None and tokens > room:
            return _with_prompts(connection, claim, places)
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


def _pages_back(connection: Connection, claim: Claim) -> Iterator[list[Range]]:
    """Ranges of about `PAGE_MESSAGES` messages, from the last ones back to the thread's first."""
    page: list[Range] = []
    size = 0
    for run_id, count in _runs_back(connection, claim):
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


def _runs_back(connection: Connection, claim: Claim) -> Iterator[tuple[RunId, int]]:
    yield claim.run_id, claim.message_count
    before = claim.thread_position or 0
    if claim.history_until is not None:
        chain, before = givers(connection, claim)
        yield from chain
    while before:
        earlier = earlier_runs(connection, claim, before, PAGE_MESSAGES)
        for run in earlier:
            yield run.run_id, run.message_count
        before = earlier[-1].thread_position if len(earlier) == PAGE_MESSAGES else 0


def _with_prompts(connection: Connection, claim: Claim, places: list[Place]) -> list[Place]:
    """`places`, which begin somewhere within, and before them the prompts of the run itself that
    are kept: what opened it, and what its user said last."""
    first = places[0]
    places[0] = replace(first, follows=False)
    if first.run_id != claim.run_id or first.position == 0:
        return places
    latest = latest_prompt(connection, claim.run_id, claim.message_count)
    wanted = sorted({0, latest or 0} - set(range(first.position, claim.message_count)))
    kept = placed(load_ranges(connection, [(claim.run_id, each, each + 1) for each in wanted]))
    return [replace(place, follows=False) for place in kept] + places


def _parsed(stored: StoredMessage) -> ModelMessage:
    if stored.role == "results":
        return results_message([call_result(result) for result in stored.results])
    return load_message(stored.body)
