"""Which calls of one response may overlap, and what each step leaves: by the rows alone."""

# features: 003-21, 004-18, 004-29
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from celeriac import ToolContext, tool
from celeriac.states import RunStatus
from celeriac.tools import Tool
from celeriac_storage.database import Database
from tests.shelves import glance, throw_away
from tests.talk import Calls, Talk

READS: Calls = [("look", {"shelf": shelf}) for shelf in "abc"]
Span = tuple[datetime, datetime]

together = threading.Barrier(3)


@tool(effect="none")
def look(shelf: str) -> str:
    """Look at a shelf, while exactly two others do."""
    together.wait(30)
    return shelf


@tool(effect="none", exclusive=True)
def count_all(ctx: ToolContext) -> str:
    """Read what nobody may touch meanwhile."""
    return ctx.call_id


@tool(effect="external", exclusive=True)
def lock_all(ctx: ToolContext) -> str:
    """Lock everything."""
    return ctx.call_id


@pytest.fixture
def made(database: Database, broker_url: str) -> Iterator[Callable[[Calls], Talk]]:
    talks: list[Talk] = []

    def make(calls: Calls) -> Talk:
        tools: list[Tool[..., Any]] = [look, count_all, glance, throw_away, lock_all]
        talks.append(Talk(database, broker_url, calls, tools))
        talks[-1].start()
        return talks[-1]

    yield make
    for talk in talks:
        talk.close()


def batches(talk: Talk) -> list[list[str]]:
    """The calls of each step, as its message tells them."""
    rows = talk.query(
        "SELECT body -> 'calls' FROM celeriac.messages WHERE run_id = %s AND role = 'results'"
        " ORDER BY position",
        talk.run_id,
    )
    return [row[0] for row in rows]


def spans_of_steps(talk: Talk) -> list[Span]:
    rows: Sequence[Any] = talk.query(
        "SELECT started_at, committed_at FROM celeriac.checkpoints WHERE run_id = %s ORDER BY step",
        talk.run_id,
    )
    return [(row[0], row[1]) for row in rows]


def spans_of_attempts(talk: Talk) -> list[Span]:
    rows: Sequence[Any] = talk.query(
        "SELECT min(at), max(at) FROM celeriac.effect_attempts WHERE run_id = %s"
        " GROUP BY call_id, attempt ORDER BY 1",
        talk.run_id,
    )
    return [(row[0], row[1]) for row in rows]


def assert_one_by_one(spans: Sequence[Span]) -> None:
    for (_, ended), (began, _) in pairwise(spans):
        assert ended <= began


def test_adjacent_reads_run_side_by_side_in_one_step(made: Callable[[Calls], Talk]) -> None:
    talk = made(READS)

    assert talk.go_on() is RunStatus.COMPLETED  # each waited for the two others inside

    assert batches(talk) == [["0.0", "0.1", "0.2"]]
    assert talk.states == ["committed"] * 3


def test_an_effect_overlaps_no_other_call(made: Callable[[Calls], Talk]) -> None:
    talk = made(
        [
            ("glance", {"shelf": "a"}),
            ("note", {"text": "b"}),
            ("note", {"text": "c"}),
            ("glance", {"shelf": "d"}),
            ("glance", {"shelf": "e"}),
        ]
    )

    assert talk.go_on() is RunStatus.COMPLETED

    assert batches(talk) == [["0.0"], ["0.1"], ["0.2"], ["0.3", "0.4"]]
    assert_one_by_one(spans_of_steps(talk))
    attempts = spans_of_attempts(talk)
    assert len(attempts) == 2
    assert_one_by_one(attempts)
    steps = spans_of_steps(talk)
    for began, _ in attempts:
        assert any(start <= began <= end for start, end in steps), "within a step"


@pytest.mark.parametrize("alone", ["count_all", "lock_all"])
def test_an_exclusive_call_overlaps_no_other_call_of_the_run(
    made: Callable[[Calls], Talk], alone: str
) -> None:
    around: list[tuple[str, dict[str, Any]]] = [("glance", {"shelf": shelf}) for shelf in "ab"]
    talk = made([*around, (alone, {}), (alone, {}), *around])

    assert talk.go_on() is RunStatus.COMPLETED

    assert batches(talk) == [["0.0", "0.1"], ["0.2"], ["0.3"], ["0.4", "0.5"]]
    assert_one_by_one(spans_of_steps(talk))


def test_each_step_says_at_which_point_it_was_written(made: Callable[[Calls], Talk]) -> None:
    """Before the tools, after each result, at the pause for a person and for another process, and
    at the end of the turn; each pause is written before the wait begins."""
    talk = made(
        [
            ("glance", {"shelf": "a"}),
            ("scan", {"shelf": "b"}),
            ("throw_away", {"shelf": "c"}),
            ("note", {"text": "d"}),
        ]
    )

    assert talk.go_on() is RunStatus.PAUSED
    assert talk.stands == ("paused", "waiting_external")
    talk.client.submit(talk.run_id, {"0.1": "7"})
    assert talk.go_on() is RunStatus.PAUSED
    assert talk.stands == ("paused", "waiting_approval")
    (proposal,) = talk.client.approvals(run_id=talk.run_id, by="bob")
    talk.client.approve(proposal.approval_id, by="bob")
    assert talk.go_on() is RunStatus.COMPLETED

    reasons = talk.query(
        "SELECT step, reason FROM celeriac.checkpoints WHERE run_id = %s ORDER BY step", talk.run_id
    )
    assert [tuple(row) for row in reasons] == [
        (0, "before_tools"),  # the model's response, and its calls to be made
        (1, "after_tools"),  # glance; then scan is requested, and waited for
        (2, "after_tools"),  # scan
        (3, "after_tools"),  # note; then the run waits for a decision
        (4, "after_tools"),  # throw_away
        (5, "terminal"),
    ]
    pauses = [event.data for event in talk.client.events(talk.run_id) if event.type == "run.paused"]
    assert [each["phase"] for each in pauses] == ["waiting_external", "waiting_approval"]
    assert batches(talk) == [["0.0"], ["0.1"], ["0.3"], ["0.2"]]
