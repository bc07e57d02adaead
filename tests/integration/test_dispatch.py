"""Which queued steps are published, again or for the first time, and by whom."""

# features: 003-13
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.states import Phase, RunStatus
from celeriac_storage import dispatch, waking
from celeriac_storage.database import Database
from celeriac_storage.dispatch import BATCH, Due
from celeriac_storage.step_record import Next
from tests.steps_by_hand import Hand

QUEUE = "celeriac"
FIRST_SECONDS, CAP_SECONDS = 1.0, 60.0


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def published(hand: Hand, run_id: RunId, *, seconds_ago: float = 0, count: int = 1) -> None:
    """Pretend that the run's step was put on the broker, so many times, so long ago."""
    with hand.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET publish_count = %s,"
            " published_at = clock_timestamp() - make_interval(secs => %s) WHERE run_id = %s",
            (count, seconds_ago, run_id),
        )


def take_unpublished(database: Database) -> list[Due]:
    with database.connect() as connection:
        return dispatch.take_unpublished(connection)


def take_overdue(database: Database, queue: str = QUEUE, limit: int = BATCH) -> list[RunId]:
    with database.connect() as connection:
        due = dispatch.take_overdue(connection, queue, limit, FIRST_SECONDS, CAP_SECONDS)
        return [step.run_id for step in due]


def take_published_before(connection: Connection, moment: datetime) -> list[Due]:
    return dispatch.take_published_before(connection, moment, QUEUE, BATCH)


def database_time(database: Database) -> datetime:
    with database.connect() as connection:
        moment: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return moment


# For the first time -------------------------------------------------------------------------------


def test_a_step_that_nobody_published_is_taken_once(hand: Hand) -> None:
    run_id = hand.start()

    assert take_unpublished(hand.database) == [Due(run_id, 0, QUEUE)]

    assert take_unpublished(hand.database) == []
    row = hand.row(run_id)
    assert row.publish_count == 1
    assert row.published_at is not None


def test_a_step_that_its_worker_published_is_left_alone(hand: Hand) -> None:
    run_id = hand.start()
    hand.finish(hand.claim(run_id), Next.queued(Phase.WAITING_MODEL))

    assert take_unpublished(hand.database) == []


def test_a_step_that_the_broker_did_not_take_is_due_at_once(hand: Hand) -> None:
    run_id = hand.start()
    take_unpublished(hand.database)

    with hand.database.connect() as connection:
        dispatch.mark_unpublished(connection, run_id, 0)

    assert [due.run_id for due in take_unpublished(hand.database)] == [run_id]


def test_a_step_that_a_worker_passes_on_is_due_at_once_and_then_after_its_backoff(
    hand: Hand,
) -> None:
    run_id = hand.start()
    take_unpublished(hand.database)

    with hand.database.connect() as connection:
        dispatch.pass_on(connection, run_id, 0)
    assert [due.run_id for due in take_unpublished(hand.database)] == [run_id]

    with hand.database.connect() as connection:
        dispatch.pass_on(connection, run_id, 0)
    assert take_unpublished(hand.database) == []
    assert take_overdue(hand.database) == []
    published(hand, run_id, seconds_ago=2 * FIRST_SECONDS + 0.1, count=2)
    assert take_overdue(hand.database) == [run_id]


def test_news_of_an_earlier_step_does_not_touch_the_present_one(hand: Hand) -> None:
    """The worker may have gone on with the run before the broker's refusal is written down."""
    run_id = hand.start()
    hand.finish(hand.claim(run_id), Next.queued(Phase.WAITING_MODEL))

    with hand.database.connect() as connection:
        dispatch.mark_unpublished(connection, run_id, 0)

    assert hand.row(run_id).published_at is not None


@pytest.mark.parametrize(
    "following",
    [
        Next(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=Phase.WAITING_MODEL),
        Next.needs_attention(Phase.WAITING_MODEL, {"kind": "poison", "message": "look"}),
        Next(RunStatus.COMPLETED, outcome="completed", result="done"),
    ],
    ids=lambda n: str(n.status),
)
def test_only_queued_runs_are_ever_published(hand: Hand, following: Next) -> None:
    run_id, running = hand.start(), hand.start()
    hand.finish(hand.claim(run_id), following)
    hand.claim(running)

    assert take_unpublished(hand.database) == []

    published(hand, running, seconds_ago=3600)
    assert take_overdue(hand.database) == []
    with hand.database.connect() as connection:
        assert take_published_before(connection, database_time(hand.database)) == []


def test_two_schedulers_take_each_step_once(hand: Hand) -> None:
    runs = [hand.start() for _ in range(30)]
    together = threading.Barrier(2)

    def take(_: int) -> list[Due]:
        together.wait(5)
        return take_unpublished(hand.database)

    with ThreadPoolExecutor(2) as schedulers:
        first, second = schedulers.map(take, range(2))

    assert sorted(due.run_id for due in [*first, *second]) == sorted(runs)
    assert [hand.row(run_id).publish_count for run_id in runs] == [1] * len(runs)


def test_a_scheduler_steps_over_what_a_frozen_one_holds(hand: Hand, database_url: str) -> None:
    held, free = hand.start(), hand.start()
    scheduler = Database(database_url, connections=1, lock_timeout_milliseconds=1000)
    with hand.database.begin() as frozen:
        frozen.exec_driver_sql("SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (held,))

        assert [due.run_id for due in take_unpublished(scheduler)] == [free]
    scheduler.close()


# Again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "backoff_seconds"),
    [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, CAP_SECONDS), (32000, CAP_SECONDS)],
)
def test_the_wait_before_publishing_again_doubles_up_to_its_cap(
    hand: Hand, count: int, backoff_seconds: float
) -> None:
    run_id = hand.start()
    published(hand, run_id, seconds_ago=backoff_seconds * 0.7, count=count)
    assert take_overdue(hand.database) == []

    published(hand, run_id, seconds_ago=backoff_seconds * 1.1, count=count)

    assert take_overdue(hand.database) == [run_id]
    assert hand.row(run_id).publish_count == count + 1
    assert take_overdue(hand.database) == [], "its next wait has begun"


def test_a_commit_starts_the_backoff_anew(hand: Hand) -> None:
    run_id = hand.start()
    published(hand, run_id, seconds_ago=5, count=9)

    hand.finish(hand.claim(run_id), Next.queued(Phase.WAITING_MODEL))

    assert hand.row(run_id).publish_count == 1


def test_no_more_are_published_again_than_the_broker_is_short_of(hand: Hand) -> None:
    oldest, old, recent = (hand.start() for _ in range(3))
    published(hand, oldest, seconds_ago=50)
    published(hand, old, seconds_ago=40)
    published(hand, recent, seconds_ago=30)

    assert set(take_overdue(hand.database, limit=2)) == {oldest, old}


def test_each_queue_is_looked_at_by_itself(hand: Hand) -> None:
    here, there = hand.start(), hand.start()
    published(hand, here, seconds_ago=5)
    published(hand, there, seconds_ago=5)
    with hand.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET queue = 'slow' WHERE run_id = %s", (there,)
        )
        assert dispatch.queued_counts(connection) == {QUEUE: 1, "slow": 1}

    assert take_overdue(hand.database, "slow") == [there]
    assert take_overdue(hand.database, QUEUE) == [here]


def test_what_was_never_published_does_not_count_as_missing_from_the_broker(hand: Hand) -> None:
    hand.start()

    with hand.database.connect() as connection:
        assert dispatch.queued_counts(connection) == {}


# After a flush or a verdict -----------------------------------------------------------------------


def test_all_that_was_published_before_a_flush_is_published_again_once(hand: Hand) -> None:
    # features: 003-13
    runs = [hand.start() for _ in range(5)]
    take_unpublished(hand.database)
    flushed_at = database_time(hand.database)
    after = hand.start()
    take_unpublished(hand.database)

    with hand.database.connect() as connection:
        again = take_published_before(connection, flushed_at)
        assert take_published_before(connection, flushed_at) == []

    assert sorted(due.run_id for due in again) == sorted(runs)
    assert hand.row(after).publish_count == 1


# Timers -------------------------------------------------------------------------------------------


def wait_for_timer(hand: Hand, seconds: float) -> RunId:
    run_id = hand.start()
    hand.finish(
        hand.claim(run_id),
        Next(
            RunStatus.PAUSED,
            Phase.WAITING_TIMER,
            resume_phase=Phase.WAITING_MODEL,
            wake_after_seconds=seconds,
        ),
    )
    return run_id


def test_a_run_is_woken_when_its_timer_is_over_and_not_before(hand: Hand) -> None:
    over, later = wait_for_timer(hand, 0), wait_for_timer(hand, 600)

    with hand.database.connect() as connection:
        assert waking.take_due_timers(connection) == [Due(over, 1, QUEUE)]
        assert waking.take_due_timers(connection) == []

    row = hand.row(over)
    assert (row.status, row.phase, row.resume_phase) == ("queued", "waiting_model", None)
    assert row.wake_at is None
    assert hand.event_data(over, "run.woken") == {"waited_for": "timer"}
    assert hand.row(later).phase == "waiting_timer"
