"""A worker is killed at every named point of a step, and the next one at the point after it.

Each order is one case: armed workers of its own on a shared scheduler, database and broker.
"""

from collections.abc import Iterator

import pytest

from celeriac.states import RunStatus
from tests.crash.stack import OrderDesk, count_killed
from tests.processes import Processes
from tests.waiting import eventually

CHECK, THINK, DEDUCT, NOTIFY, LAST = 1, 2, 3, 5, 6
"""Steps of the order: a read-only call, a question to the model, a transactional call, an external
call, and the answer that completes the run."""

BEGIN = ["step.before_claim", "step.after_claim", "step.after_load"]
COMMIT = ["step.before_commit", "step.after_commit"]
PUBLISH = ["step.before_publish", "step.after_publish"]
THINKING = ["think.before_model_call", "think.after_model_call"]
CALLING = ["act.before_tool", "act.after_tool"]
NOTIFYING = ["act.before_in_flight", "act.before_call", "act.after_call"]

POINTS = {
    CHECK: [*BEGIN, *CALLING, *COMMIT, *PUBLISH],
    THINK: [*BEGIN, *THINKING, *COMMIT, *PUBLISH],
    DEDUCT: [*BEGIN, *CALLING, *COMMIT, *PUBLISH],
    NOTIFY: [*BEGIN, *NOTIFYING, *COMMIT, *PUBLISH],
    LAST: [*BEGIN, *THINKING, *COMMIT],
}
PLACES = [f"{point}@{step}" for step, points in POINTS.items() for point in points]

WAS_SENT = {
    f"act.before_call@{NOTIFY}": False,
    f"act.after_call@{NOTIFY}": True,
    f"step.before_commit@{NOTIFY}": True,
}
"""Where a death leaves the notification in flight, so that a person is asked, and what is so."""


def neighbours(place: str) -> str | None:
    """The point that whoever takes over comes to next. After the commit it is in the next step."""
    name, step = place.split("@")
    if name not in ("step.after_commit", *PUBLISH):
        points = POINTS[int(step)]
        return f"{points[points.index(name) + 1]}@{step}"
    return f"{BEGIN[0]}@{int(step) + 1}" if int(step) < LAST else None


PAIRS = [(place, after) for place in PLACES if (after := neighbours(place)) is not None]


@pytest.fixture(autouse=True)
def processes(shared_desk: OrderDesk) -> Iterator[Processes]:
    """The shared processes, without the workers of the case before."""
    yield shared_desk.processes
    for worker in shared_desk.processes.started[1:]:
        worker.kill_group()
    del shared_desk.processes.started[1:]
    shared_desk.processes.rearm()


def go_through(desk: OrderDesk, places: list[str]) -> None:
    """Order while a worker dies at each of the places, answer what is asked, and count."""
    points = ",".join(f"{place}=kill" for place in places)
    workers = desk.start_workers(len(places) + 1, test_points=points)
    told = []

    run = desk.wait(desk.order())
    while run.status is RunStatus.NEEDS_ATTENTION:
        told.append(desk.settle_by_ledger(run))
        run = desk.wait(run.run_id)

    # The last one may die just after the run has ended.
    eventually(
        lambda: count_killed(workers), until=lambda n: n == len(places), what="the deaths asked for"
    )
    assert all(desk.processes.reached(place) for place in places)
    assert told == answers(places)
    desk.assert_done_once(run)


def answers(places: list[str]) -> list[bool]:
    """What a person is asked about the notification, and must answer: was it sent?"""
    asked = [WAS_SENT[place] for place in places if place in WAS_SENT]
    # Who dies while recording the doubt that it found has made no call: one question in all.
    return asked[:1] if all(asked) else asked


# features: 000-02, 000-11, 002-12, 002-22, 002-23, 002-26, 003-10, 003-20
@pytest.mark.parametrize("shared_desk", ["redis"], indirect=True)
@pytest.mark.parametrize("place", PLACES)
def test_an_order_survives_a_kill_at_every_point(shared_desk: OrderDesk, place: str) -> None:
    go_through(shared_desk, [place])


@pytest.mark.parametrize("shared_desk", ["redis"], indirect=True)
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_an_order_survives_that_who_takes_over_is_killed_at_the_next_point(
    shared_desk: OrderDesk, pair: tuple[str, str]
) -> None:
    go_through(shared_desk, list(pair))


@pytest.mark.parametrize("shared_desk", ["amqp"], indirect=True)
@pytest.mark.parametrize(
    "places",
    [
        [f"step.before_claim@{DEDUCT}"],
        [f"act.after_tool@{DEDUCT}", f"step.before_commit@{DEDUCT}"],
        [f"step.after_commit@{DEDUCT}"],
        [f"step.after_publish@{DEDUCT}"],
        [f"act.after_call@{NOTIFY}"],
    ],
    ids="+".join,
)
def test_an_order_survives_kills_on_rabbitmq(shared_desk: OrderDesk, places: list[str]) -> None:
    go_through(shared_desk, places)
