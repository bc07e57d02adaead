"""Somebody's own Celery application executes steps beside its own tasks, and keeps its ways."""

import signal

import pytest

from tests.packaging.shop import DONE_SECONDS, START_SECONDS, Shop
from tests.processes import TestProcess
from tests.waiting import eventually

# Building the wheel and installing it belongs to whichever test comes first.
pytestmark = pytest.mark.timeout(400)

TWO_THREADS = ("--pool", "threads", "--concurrency", "2")
TWO_CHILDREN = ("--pool", "prefork", "--concurrency", "2")


def start_two_workers(shop: Shop, options: tuple[str, ...]) -> list[TestProcess]:
    workers = [shop.start_worker(*options) for _ in range(2)]
    for worker in workers:
        shop.wait_until_it_executes_steps(worker, 2 if options is TWO_CHILDREN else 1)
    return workers


@pytest.mark.crash
@pytest.mark.parametrize(
    ("broker", "options"),
    [("redis", TWO_THREADS), ("redis", TWO_CHILDREN), ("amqp", TWO_THREADS)],
    ids=["redis-threads", "redis-prefork", "amqp-threads"],
)
def test_a_run_outlives_the_worker_of_an_existing_application(
    shop: Shop, options: tuple[str, ...]
) -> None:
    shop.processes.start_scheduler()
    workers = start_two_workers(shop, options)
    run_id = shop.start_run()
    (holder,) = shop.wait_for_file(f"waiting-{run_id}", lines=1)
    (victim,) = (worker for worker in workers if int(holder) in worker.pids)

    victim.kill_group()

    first, second = shop.wait_for_file(f"waiting-{run_id}", lines=2)
    shop.make_file("carrier")
    run = shop.completed(run_id)
    assert first != second
    assert (run.result, run.deaths) == ("packed", 1)
    # And the tasks of the application went on as ever.
    shop.send("stamp", "after")
    assert len(shop.wait_for_file("stamped-after", lines=1)) == 1


def test_the_limits_it_sets_for_all_tasks_do_not_hold_for_steps(shop: Shop) -> None:
    shop.processes.start_scheduler()
    worker = shop.start_worker(*TWO_CHILDREN)
    shop.wait_until_it_executes_steps(worker, 2)

    # It comes to its second step, in spite of one task a minute ...
    run_id = shop.start_run()
    shop.wait_for_file(f"waiting-{run_id}", lines=1)
    # ... and is in it still when a task that began later has used up its two seconds.
    shop.send("stall", "later")
    eventually(
        lambda: "Hard time limit (2s) exceeded" in worker.output,
        deadline_seconds=DONE_SECONDS,
        what="the application's own limit kept",
    )
    shop.make_file("carrier")

    run = shop.completed(run_id)
    assert (run.deaths, run.epoch) == (0, len(run.steps))


@pytest.mark.parametrize("broker", ["amqp"])  # where a binding too many would copy messages
def test_a_worker_does_what_is_in_the_queues_that_it_serves(shop: Shop) -> None:
    shop.processes.start_scheduler()
    tasks_only = shop.start_worker(*TWO_THREADS, "-Q", shop.own_queue)
    steps_only = shop.start_worker(*TWO_THREADS, "-Q", shop.queue)
    shop.wait_until_it_executes_steps(steps_only)
    shop.wait_until_ready(tasks_only)

    shop.make_file("carrier")
    run_id = shop.start_run()
    shop.completed(run_id)
    shop.send("stamp", "own")

    assert shop.wait_for_file(f"waiting-{run_id}") == [str(steps_only.pid)]
    assert shop.wait_for_file("stamped-own", lines=1) == [str(tasks_only.pid)]
    assert shop.processes.worker_ids(tasks_only) == []


def test_a_shutdown_waits_for_its_own_tasks_and_for_steps_however_short_the_grace(
    shop: Shop,
) -> None:
    shop.processes.start_scheduler()
    old = shop.start_worker(*TWO_THREADS, CELERIAC_GRACE_SECONDS="0")
    shop.wait_until_it_executes_steps(old)
    shop.send("wrap", "own")
    shop.wait_for_file("wrapping-own")
    run_id = shop.start_run()
    shop.wait_for_file(f"waiting-{run_id}", lines=1)
    new = shop.start_worker(*TWO_THREADS)
    shop.wait_until_it_executes_steps(new)

    old.send(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in old.output, what="the shutdown begun")
    shop.make_file("carrier")
    run = shop.completed(run_id)
    shop.make_file("wrapped-own")

    assert old.wait() == 0
    assert (shop.folder / "done-own").exists()
    assert (run.deaths, run.epoch) == (0, len(run.steps))
    assert run.steps[-1].worker_id in shop.processes.worker_ids(new)


def test_its_own_tasks_run_while_the_database_is_away(shop: Shop) -> None:
    nowhere = "postgresql://postgres@127.0.0.1:1/nowhere"
    worker = shop.start_worker(*TWO_CHILDREN, CELERIAC_DATABASE_URL=nowhere)

    shop.send("stamp", "own")

    shop.wait_for_file("stamped-own", lines=1, deadline_seconds=START_SECONDS)
    assert worker.is_running


def test_a_worker_that_cannot_execute_steps_does_not_look_healthy(shop: Shop) -> None:
    worker = shop.start_worker(*TWO_THREADS, CELERIAC_DATABASE_URL="")

    assert worker.wait(START_SECONDS) == 1
    assert "this worker cannot execute steps: no database was named" in worker.output
