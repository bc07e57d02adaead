"""Schedulers die between firing and their commit: everything is fired once, by another one."""

from datetime import UTC, datetime, timedelta

from celeriac.ids import UserId, new_run_id, new_thread_id
from celeriac.schedule import NewSchedule
from celeriac_storage import starting
from celeriac_storage.health import SCHEDULER_APPLICATION_NAME
from celeriac_storage.new_run import NewRun
from tests.crash import family_agents as agents
from tests.crash.agents import QUEUE
from tests.crash.stack import DONE_SECONDS, Stack
from tests.processes import TestProcess
from tests.waiting import eventually

TIMERS = 1000


def wait_until_gone(stack: Stack, scheduler: TestProcess) -> None:
    """Until it has died, and its session with it: then whatever it had not committed is undone."""
    scheduler.wait()
    eventually(
        lambda: stack.query(
            "SELECT FROM pg_stat_activity WHERE application_name = %s"
            " AND datname = current_database()",
            SCHEDULER_APPLICATION_NAME,
        ),
        until=lambda sessions: sessions == [],
        deadline_seconds=DONE_SECONDS,
        what="the dead scheduler's session is gone",
    )


def test_a_thousand_timers_are_fired_once_though_a_scheduler_dies_among_them(stack: Stack) -> None:
    worker = stack.processes.start_worker(agents.__name__)
    worker.freeze()  # nobody takes what is published
    later = datetime.now(UTC) + timedelta(hours=1)
    with stack.database.begin() as connection:
        for _ in range(TIMERS):
            run_id = new_run_id()
            starting.start(
                connection,
                NewRun(
                    run_id, "patient", "go", {"kind": "request", "parts": [{"content": "go"}]}, {},
                    new_thread_id(), UserId("alice"), queue=QUEUE,
                    start_at=later,
                ),
            )  # fmt: skip
    stack.execute("UPDATE celeriac.timers SET due_at = now()")

    leader = stack.start_scheduler(test_points="timers.before_commit=kill")
    wait_until_gone(stack, leader)
    assert stack.query("SELECT FROM celeriac.timers WHERE fired_at IS NOT NULL") == []
    stack.start_scheduler()
    stack.start_scheduler()

    eventually(
        lambda: stack.query("SELECT count(*) FROM celeriac.timers WHERE fired_at IS NOT NULL"),
        until=lambda rows: rows == [(TIMERS,)],
        deadline_seconds=DONE_SECONDS,
        what="all timers fired",
    )
    woken = stack.query(
        "SELECT count(*), count(DISTINCT run_id) FROM celeriac.events WHERE type = 'run.woken'"
    )
    assert woken == [(TIMERS, TIMERS)]


def test_a_schedule_starts_its_run_once_though_the_scheduler_dies_before_its_commit(
    stack: Stack,
) -> None:
    stack.processes.start_worker(agents.__name__)
    leader = stack.start_scheduler(test_points="schedules.before_commit=kill")
    stack.client.add_schedule("nightly", NewSchedule("patient", "@daily", "go"))
    stack.execute(
        "UPDATE celeriac.schedules SET due_at = now(),"
        " next_fire_at = date_trunc('day', now(), 'UTC')"
    )
    wait_until_gone(stack, leader)
    assert stack.query("SELECT FROM celeriac.runs") == []

    stack.start_scheduler()

    eventually(
        lambda: stack.client.schedule("nightly").fires,
        deadline_seconds=DONE_SECONDS,
        what="the time has come",
    )
    (fire,) = stack.client.schedule("nightly").fires
    assert fire.outcome == "started"
    assert stack.query("SELECT run_id FROM celeriac.runs") == [(fire.run_id,)]
    assert stack.violations() == []


def test_a_sleeping_run_is_woken_by_whichever_scheduler_and_worker_are_there(stack: Stack) -> None:
    stack.start_scheduler()
    first = stack.processes.start_worker(agents.__name__)
    run_id = stack.start("patient")
    eventually(
        lambda: stack.query("SELECT FROM celeriac.timers"),
        deadline_seconds=DONE_SECONDS,
        what="it sleeps",
    )
    first.kill_group()
    stack.execute("UPDATE celeriac.timers SET due_at = now()")

    stack.processes.start_worker(agents.__name__)

    assert stack.completed(run_id).result == "awake"
    assert stack.violations() == []
