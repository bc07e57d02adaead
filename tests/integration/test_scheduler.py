"""Nothing that goes wrong in one duty, or at the broker, keeps the scheduler from its others."""

from collections.abc import Callable, Iterator

import psycopg
import pytest
from kombu import Connection as BrokerConnection
from kombu import Queue
from sqlalchemy.exc import OperationalError

from celeriac.errors import BrokerUnavailable, DatabaseUnavailable
from celeriac.ids import RunId
from celeriac.settings import Settings, load_settings
from celeriac_scheduler.scheduler import TROUBLE_SECONDS, Duty, Scheduler
from celeriac_storage import workers
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from tests.processes import Processes
from tests.steps_by_hand import Hand
from tests.waiting import eventually


@pytest.fixture
def settings(database_url: str, broker_url: str, queue: str) -> Settings:
    return load_settings(database_url=database_url, broker_url=broker_url, queues=queue)


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailable("away"),
        OperationalError("UPDATE", {}, psycopg.errors.LockNotAvailable("held by somebody")),
        ZeroDivisionError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_duty_that_fails_is_tried_again_a_moment_later(error: Exception) -> None:
    duty = Duty(raising(error), every_seconds=TROUBLE_SECONDS / 10)
    healthy = Duty(lambda: None, every_seconds=TROUBLE_SECONDS / 10)

    duty.perform()
    healthy.perform()

    assert duty.due_at > healthy.due_at
    assert (duty.troubles, healthy.troubles) == (1, 0)


def test_a_database_that_is_away_is_waited_for_by_the_whole_loop() -> None:
    with pytest.raises(DatabaseUnavailable):
        Duty(raising(DatabaseUnavailable("away")), every_seconds=1.0).perform()


def test_a_scheduler_that_cannot_hear_of_new_runs_works_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(settings)
    tries = []

    def refuse() -> None:
        tries.append(1)
        raise psycopg.OperationalError("too many connections for role")

    monkeypatch.setattr(scheduler, "_open_ears", refuse)
    ticks = []
    scheduler._duties[0].act = lambda: ticks.append(1)

    for _ in range(4):
        scheduler._duties[0].due_at = 0.0
        scheduler._work()

    assert len(ticks) == 4
    assert len(tries) == 1, "a connection that cannot be had must not cost each round another try"
    scheduler._database.close()


@pytest.fixture
def declared_otherwise(broker_url: str, queue: str) -> Iterator[str]:
    """A queue of ours that somebody has declared with priorities."""
    with BrokerConnection(broker_url) as connection:
        theirs = Queue(queue, durable=True, max_priority=3)
        theirs.bind(connection.default_channel).declare()
        yield queue
        theirs.bind(connection.channel()).delete()


@pytest.mark.parametrize("broker", ["amqp"])
def test_a_broker_that_refuses_is_no_bug_of_ours(
    settings: Settings, declared_otherwise: str
) -> None:
    """Or one queue that was declared otherwise would end the process, and all failover with it."""
    app = make_app(settings)

    with pytest.raises(BrokerUnavailable, match="refuses"):
        Broker(app).queue_length(declared_otherwise)
    with pytest.raises(BrokerUnavailable, match="refuses"):
        Publisher(app).publish(RunId("r1"), 0, declared_otherwise)
    app.close()


@pytest.mark.processes
def test_the_scheduler_prunes_nothing_unless_the_settings_say_so(
    database: Database, processes: Processes
) -> None:
    hand = Hand(database)
    old = hand.start()
    hand.complete(old)
    processes.start_scheduler()
    young = hand.start()  # a scheduler that has parked this one has made its rounds
    with database.connect() as connection:
        workers.stop(connection, hand.worker_id)
    eventually(lambda: hand.row(young).phase == "waiting_worker", what="a round of duties")

    assert hand.row(old).pruned_at is None


@pytest.mark.processes
def test_the_scheduler_prunes_old_runs_beside_its_other_duties(
    database: Database, processes: Processes
) -> None:
    hand = Hand(database)
    runs = [hand.start() for _ in range(45)]
    for run_id in runs[1:]:
        hand.complete(run_id)
    processes.start_scheduler(
        retention_days="0.0000001",
        retention_statuses="completed",
        retention_database_url=f"{database.url}?options=-crole%3Dceleriac_retention",
    )

    eventually(
        lambda: all(hand.row(run_id).pruned_at is not None for run_id in runs[1:]),
        what="the old runs to be pruned",
    )

    assert hand.row(runs[0]).status == "queued"
    assert audit(database, overdue_seconds=3600) == []
