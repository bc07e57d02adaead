"""The broker forgets, goes away, or comes back with what it knew long ago. No run may notice."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection as BrokerConnection
from kombu import Queue

from celeriac.ids import DEFAULT_QUEUE
from celeriac.settings import load_settings
from celeriac.states import Phase, RunStatus
from celeriac_storage.database import Database
from celeriac_tasks.celery_app import STEP_TASK, make_app
from tests.crash.nursery import Nursery
from tests.crash.servers import RedisServer, redis_server
from tests.crash.stack import Stack, started_processes
from tests.processes import Processes
from tests.servers import TestBroker
from tests.waiting import eventually

SLOTS = 2  # of each of two workers


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(folder) as server:
        yield server


@pytest.fixture
def own_processes(
    database: Database, own_redis: RedisServer, tmp_path: Path, nursery: Nursery
) -> Iterator[Processes]:
    broker = TestBroker("redis", own_redis.url, DEFAULT_QUEUE)
    with started_processes(database, broker, tmp_path, nursery) as processes:
        yield processes


@pytest.fixture
def own_stack(
    database: Database, own_redis: RedisServer, own_processes: Processes
) -> Iterator[Stack]:
    broker = TestBroker("redis", own_redis.url, DEFAULT_QUEUE)
    stack = Stack(database, broker, own_processes)
    yield stack
    stack.client.close()


def begin_twenty(stack: Stack) -> dict[str, list[str]]:
    """Twenty runs that wait on and off the broker, and the rows that each must leave."""
    stack.start_scheduler()
    stack.start_workers(2, slots=SLOTS)
    expected = {
        stack.start("retried", f"number {number}"): ["after the timer"] for number in range(4)
    }
    threads = [f"thread-{number}" for number in range(2 * SLOTS)]
    for _ in range(2):  # the second run of each thread waits for the first
        for thread_id in threads:
            run_id = stack.start("waiter", thread_id=thread_id)
            expected[run_id] = ["before", "after"]
    for _ in range(8):
        expected[stack.start("waiter")] = ["before", "after"]
    eventually(
        lambda: stack.query("SELECT count(*) FROM crash.calls WHERE tool = 'wait_at'"),
        until=lambda rows: rows == [(2 * SLOTS,)],
        what="all slots taken",
    )
    runs = [stack.run(run_id) for run_id in expected]
    assert len(runs) == 20
    assert sum(run.status is RunStatus.RUNNING for run in runs) == 2 * SLOTS
    assert sum(run.phase is Phase.WAITING_THREAD for run in runs) >= 2
    assert sum(run.status is RunStatus.QUEUED for run in runs) >= 4
    return expected


def assert_all_done_once(stack: Stack, expected: dict[str, list[str]]) -> None:
    stack.open_gate("gate")
    for run_id, labels in expected.items():
        run = stack.completed(run_id)
        assert stack.tally(run_id) == labels
        assert run.deaths == 0
    assert stack.verdicts() == []
    assert stack.violations() == []


# features: 003-13
def test_a_flush_loses_no_run(stack: Stack) -> None:
    expected = begin_twenty(stack)

    redis.Redis.from_url(stack.broker.url).flushdb()

    assert_all_done_once(stack, expected)


# features: 003-13
@pytest.mark.parametrize("broker", ["amqp"])
def test_a_purged_queue_of_rabbitmq_loses_no_run(stack: Stack) -> None:
    expected = begin_twenty(stack)

    with BrokerConnection(stack.broker.url) as connection:
        Queue(stack.broker.queue, channel=connection.default_channel).purge()

    assert_all_done_once(stack, expected)


def test_a_redis_that_comes_back_with_an_older_snapshot_loses_no_run(
    own_stack: Stack, own_redis: RedisServer
) -> None:
    expected = begin_twenty(own_stack)
    own_redis.save()
    late = [own_stack.start("counter") for _ in range(5)]
    eventually(
        lambda: own_stack.query(
            "SELECT FROM celeriac.runs WHERE run_id = ANY (%s) AND published_at IS NULL", late
        ),
        until=lambda rows: rows == [],
        what="the late runs published, which the snapshot knows nothing of",
    )

    own_redis.kill()
    own_redis.start()

    assert_all_done_once(own_stack, expected | {run_id: ["one", "three"] for run_id in late})


def test_workers_that_slept_through_a_restart_of_redis_take_steps_again(
    own_stack: Stack, own_redis: RedisServer
) -> None:
    own_stack.start_scheduler(lease_seconds=60)
    workers = own_stack.start_workers(2, slots=SLOTS, lease_seconds=60)
    own_stack.completed(own_stack.start("counter"))

    for worker in workers:
        worker.freeze()
    own_redis.kill()
    own_redis.start()
    run_id = own_stack.start("counter")
    eventually(
        lambda: own_stack.query(
            "SELECT FROM celeriac.runs WHERE run_id = %s AND published_at IS NOT NULL", run_id
        ),
        what="the run published",
    )
    for worker in workers:
        worker.thaw()

    assert own_stack.completed(run_id).deaths == 0
    assert all(worker.is_running for worker in workers), "and not because they were started anew"


# features: 003-11
def test_a_broker_that_is_away_for_three_seconds_delays_runs_and_loses_none(
    own_stack: Stack, own_redis: RedisServer
) -> None:
    expected = begin_twenty(own_stack)
    held = [run_id for run_id in expected if own_stack.run(run_id).status is RunStatus.RUNNING]

    own_redis.kill()
    away_since = time.monotonic()
    own_stack.open_gate("gate")
    late = own_stack.start("counter")
    # Steps in flight commit without a broker; it is away at the moment they would publish.
    for run_id in held:
        own_stack.wait_until(run_id, step=4, status=RunStatus.QUEUED)
    time.sleep(max(0.0, 3.0 - (time.monotonic() - away_since)))
    own_redis.start()

    for run_id, labels in {**expected, late: ["one", "three"]}.items():
        run = own_stack.completed(run_id)
        assert own_stack.tally(run_id) == labels
        assert run.epoch <= len(run.steps) + run.deaths + 1  # retried: one attempt failed
    assert own_stack.verdicts() == []
    assert own_stack.violations() == []


class Explosive:
    """Made again by whoever unpickles it: a folder of that name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


# features: 000-40 (a pickled message)
@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_message_that_would_run_code_is_thrown_away_and_the_worker_goes_on(
    stack: Stack, tmp_path: Path
) -> None:
    stack.start_scheduler()
    worker = stack.start_worker()
    exploded = tmp_path / "exploded"
    app = make_app(load_settings(broker_url=stack.broker.url, queues=stack.broker.queue))

    for arguments in ([Explosive(exploded), 0], ["r1", Explosive(exploded)]):
        app.send_task(STEP_TASK, args=arguments, serializer="pickle", queue=stack.broker.queue)
    app.close()
    run = stack.completed(stack.start("counter"))

    assert stack.tally(run.run_id) == ["one", "three"]
    assert not exploded.exists()
    assert worker.is_running
    assert stack.violations() == []
