"""Schedules: each time once, what overlaps, what was missed; by rows whose times are set."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Agent
from celeriac.errors import Conflict, InvalidInput, UnknownAgent, UnknownSchedule
from celeriac.schedule import NewSchedule
from celeriac.scripted import ScriptedModel, say
from celeriac.states import RunStatus
from celeriac_scheduler.firing import fire_schedules
from celeriac_storage import firing
from tests.family import Family

reporter = Agent("reporter", model=ScriptedModel([say("reported")]), input=str)


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, [reporter])
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


def add(family: Family, name: str = "nightly", **options: Any) -> None:
    new = NewSchedule("reporter", options.pop("cron", "*/10 * * * *"), "yesterday", **options)
    family.client.add_schedule(name, new, by="alice")


def go_back(family: Family, span: timedelta, name: str = "nightly") -> datetime:
    """Pretend that the schedule was due that long ago; the whole ten minutes before."""
    moment = datetime.now(UTC) - span
    moment = moment.replace(minute=moment.minute // 10 * 10, second=0, microsecond=0)
    family.execute(
        "UPDATE celeriac.schedules SET next_fire_at = %s, due_at = %s WHERE schedule_id = %s",
        moment, moment, name,
    )  # fmt: skip
    return moment


def come(family: Family) -> None:
    """A day passes, and the next time of the schedule comes."""
    with family.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE celeriac.schedule_fires SET scheduled_at = scheduled_at - interval '1 day'"
        )
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET start_key = start_key || '-' WHERE start_key IS NOT NULL"
        )
    go_back(family, timedelta(0))


def outcomes(family: Family, name: str = "nightly") -> list[str]:
    """Of all times, the earliest first."""
    return [fire.outcome for fire in reversed(family.client.schedule(name).fires)]


def runs(family: Family) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in family.rows(
        "SELECT run_id, status FROM celeriac.runs ORDER BY created_at, run_id"
    )]  # fmt: skip


def test_a_time_starts_a_run_of_its_owner(family: Family) -> None:
    add(family)
    fire_schedules(family.database)
    assert runs(family) == []

    moment = go_back(family, timedelta(minutes=1))
    fire_schedules(family.database)
    fire_schedules(family.database)

    ((run_id, _),) = runs(family)
    run = family.run(run_id)
    assert (run.agent, run.user_id, run.input) == ("reporter", "alice", "yesterday")
    (fire,) = family.client.schedule("nightly").fires
    assert (fire.scheduled_at, fire.outcome, fire.run_id) == (moment, "started", run_id)
    family.go_on()


def test_many_schedulers_start_each_time_once(family: Family) -> None:
    for number in range(10):
        add(family, f"s{number}")
        go_back(family, timedelta(minutes=1), f"s{number}")

    with ThreadPoolExecutor(4) as schedulers:
        list(schedulers.map(lambda _: fire_schedules(family.database), range(8)))

    assert len(runs(family)) == 10
    keys = family.rows("SELECT DISTINCT start_key FROM celeriac.runs")
    assert len(keys) == 10
    family.go_on()


def test_a_scheduler_that_dies_before_its_commit_leaves_nothing(family: Family) -> None:
    add(family)
    go_back(family, timedelta(minutes=1))
    with family.database.begin() as connection:
        (key,) = firing.due(connection)
        firing.fire(connection, key)
        connection.rollback()
    assert runs(family) == []

    fire_schedules(family.database)

    assert len(runs(family)) == 1
    family.go_on()


def test_a_time_that_has_come_is_never_started_again(family: Family) -> None:
    add(family)
    moment = go_back(family, timedelta(minutes=1))
    fire_schedules(family.database)
    family.go_on()

    family.execute("UPDATE celeriac.schedules SET next_fire_at = %s, due_at = %s", moment, moment)
    fire_schedules(family.database)

    assert len(runs(family)) == 1


def test_two_runs_of_one_time_are_refused_by_the_database(family: Family) -> None:
    add(family)
    go_back(family, timedelta(minutes=1))
    fire_schedules(family.database)
    ((run_id, _),) = runs(family)

    with pytest.raises(DBAPIError, match="runs_start_key"):
        family.execute(
            """
            INSERT INTO celeriac.runs (run_id, tenant_id, user_id, thread_id, root_run_id, agent,
                status, phase, queue, limits, start_key)
            SELECT 'r-other', tenant_id, user_id, thread_id, 'r-other', agent, 'queued',
                'waiting_model', queue, limits, start_key
            FROM celeriac.runs WHERE run_id = %s
            """,
            run_id,
        )
    family.go_on()


# Overlap ------------------------------------------------------------------------------------------


def test_skip_leaves_out_what_comes_while_a_run_goes_on(family: Family) -> None:
    add(family, overlap="skip")
    come(family)
    fire_schedules(family.database)
    come(family)
    fire_schedules(family.database)

    assert sorted(outcomes(family)) == ["skipped", "started"]
    family.go_on()
    come(family)
    fire_schedules(family.database)
    assert sorted(outcomes(family)) == ["skipped", "started", "started"]
    family.go_on()


def test_queue_starts_one_after_the_other(family: Family) -> None:
    add(family, overlap="queue")
    for _ in range(3):
        come(family)
        fire_schedules(family.database)
    assert sorted(outcomes(family)) == ["queued", "queued", "started"]

    for count in (1, 2, 3):
        assert [status for _, status in runs(family)] == ["completed"] * (count - 1) + ["queued"]
        family.go_on()
        fire_schedules(family.database)

    assert outcomes(family) == ["started"] * 3


def test_cancel_running_ends_the_run_before_and_then_starts_the_next(family: Family) -> None:
    add(family, overlap="cancel_running")
    come(family)
    fire_schedules(family.database)
    come(family)
    fire_schedules(family.database)

    assert [status for _, status in runs(family)] == ["cancelled", "queued"]
    family.go_on()


def test_cancel_running_waits_for_a_step_in_progress(family: Family) -> None:
    add(family, overlap="cancel_running")
    come(family)
    fire_schedules(family.database)
    ((first, _),) = runs(family)
    family.execute(  # a worker has it
        "UPDATE celeriac.runs SET status = 'running', claim_token = gen_random_uuid(),"
        " worker_id = 'w' WHERE run_id = %s", first,
    )  # fmt: skip
    come(family)
    fire_schedules(family.database)

    assert sorted(outcomes(family)) == ["queued", "started"]
    family.execute(
        "UPDATE celeriac.runs SET status = 'queued', claim_token = NULL WHERE run_id = %s", first
    )
    family.go_on()
    fire_schedules(family.database)

    assert [status for _, status in runs(family)] == ["cancelled", "queued"]
    family.go_on()


def test_allow_starts_runs_beside_each_other(family: Family) -> None:
    add(family, overlap="allow")
    for _ in range(2):
        come(family)
        fire_schedules(family.database)

    assert [status for _, status in runs(family)] == ["queued", "queued"]
    family.go_on()


# What was missed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "limit", "started"),
    [("none", 10, 0), ("last", 10, 1), ("all", 10, 6), ("all", 3, 3)],
)
def test_times_that_nobody_saw_are_caught_up_as_the_policy_says(
    family: Family, catch_up: Any, limit: int, started: int
) -> None:
    add(family, overlap="allow", catch_up=catch_up, catch_up_limit=limit, cron="0,10 * * * *")
    # Six times: two an hour, of which the last was at least half an hour ago.
    last = datetime.now(UTC).replace(minute=10, second=0, microsecond=0) - timedelta(hours=1)
    first = last - timedelta(hours=2, minutes=10)
    family.execute("UPDATE celeriac.schedules SET next_fire_at = %s, due_at = %s", first, first)
    times = [first + timedelta(hours=n, minutes=m) for n in range(4) for m in (0, 10)]
    expected = [each for each in times if each <= datetime.now(UTC)]
    if catch_up == "all" and limit == 10:
        started = len(expected)
    if catch_up == "none" and datetime.now(UTC) - expected[-1] <= firing.ON_TIME:
        started = 1

    fire_schedules(family.database)

    fires = family.client.schedule("nightly").fires
    assert [fire.scheduled_at for fire in reversed(fires)] == expected[len(expected) - started :]
    ((next_fire_at,),) = family.rows("SELECT next_fire_at FROM celeriac.schedules")
    assert next_fire_at > datetime.now(UTC)
    family.go_on()


# People -------------------------------------------------------------------------------------------


def test_a_paused_schedule_starts_nothing_and_catches_nothing_up(family: Family) -> None:
    add(family, catch_up="all")
    family.client.pause_schedule("nightly", by="bob")
    fire_schedules(family.database)
    assert family.client.schedule("nightly").next_times == []

    resumed = family.client.resume_schedule("nightly", by="bob")

    assert resumed.next_fire_at is not None
    assert resumed.next_fire_at > datetime.now(UTC)
    fire_schedules(family.database)
    assert runs(family) == []


def test_a_trigger_starts_one_now_as_the_overlap_policy_says(family: Family) -> None:
    add(family)
    family.client.pause_schedule("nightly")

    assert family.client.trigger_schedule("nightly", by="bob").outcome == "started"
    second = family.client.trigger_schedule("nightly", by="bob")

    assert (second.outcome, second.triggered_by) == ("skipped", "bob")
    family.go_on()


def test_a_removed_schedule_starts_nothing_and_its_name_is_free_for_its_owner(
    family: Family,
) -> None:
    add(family, overlap="queue")
    for _ in range(2):
        family.client.trigger_schedule("nightly")
    family.client.remove_schedule("nightly", by="bob")
    fire_schedules(family.database)

    assert family.client.schedules() == []
    for act in (family.client.schedule, family.client.trigger_schedule,
                family.client.pause_schedule, family.client.remove_schedule):  # fmt: skip
        with pytest.raises(UnknownSchedule):
            act("nightly")
    family.go_on()
    fire_schedules(family.database)
    assert len(runs(family)) == 1
    add(family)
    assert family.client.schedule("nightly").paused is False


def test_what_people_do_is_on_record(family: Family) -> None:
    add(family)
    family.client.pause_schedule("nightly", by="bob")
    family.client.resume_schedule("nightly", by="bob")
    family.client.trigger_schedule("nightly", by="bob")
    family.client.remove_schedule("nightly", by="bob")

    told = family.rows(
        "SELECT actor, action, object, outcome FROM celeriac.audit ORDER BY audit_id"
    )
    assert told == [
        (who, f"schedule.{what}", "nightly", "allowed")
        for who, what in [("alice", "add"), ("bob", "pause"), ("bob", "resume"),
                          ("bob", "trigger"), ("bob", "remove")]
    ]  # fmt: skip
    family.go_on()


def test_what_cannot_be_scheduled_is_refused(family: Family) -> None:
    add(family)
    with pytest.raises(Conflict, match="is taken"):
        add(family)
    with pytest.raises(InvalidInput, match="input of agent"):
        family.client.add_schedule("other", NewSchedule("reporter", "@daily", {"no": "text"}))
    with pytest.raises(UnknownAgent):
        family.client.add_schedule("other", NewSchedule("nobody", "@daily", "x"))
    with pytest.raises(InvalidInput, match="schedule's name"):
        family.client.add_schedule("no name", NewSchedule("reporter", "@daily", "x"))
    wrongs: list[dict[str, Any]] = [
        {"overlap": "perhaps"},
        {"catch_up": "some"},
        {"catch_up_limit": 0},
        {"jitter_seconds": -1},
        {"time_zone": "Mars/Base"},
        {"cron": "often"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            NewSchedule(**{"agent": "reporter", "cron": "@daily", "input": "x", **wrong})
    assert [each.schedule_id for each in family.client.schedules()] == ["nightly"]


def test_an_agent_that_does_not_take_the_input_any_more_is_told_of(family: Family) -> None:
    add(family)
    family.execute(
        "UPDATE celeriac.agents SET definition = jsonb_set(definition, '{input_schema}',"
        ' \'{"type": "integer"}\')'
    )
    go_back(family, timedelta(minutes=1))

    fire_schedules(family.database)

    (fire,) = family.client.schedule("nightly").fires
    assert (fire.outcome, fire.run_id) == ("refused", None)
    assert "input of agent reporter" in str(fire.error)


def test_jitter_moves_when_it_starts_and_not_which_time_it_is(family: Family) -> None:
    add(family, jitter_seconds=300)

    ((next_fire_at, due_at),) = family.rows("SELECT next_fire_at, due_at FROM celeriac.schedules")

    assert next_fire_at.minute % 10 == 0
    assert timedelta(0) <= due_at - next_fire_at <= timedelta(seconds=300)


def test_what_came_of_a_time_never_changes(family: Family) -> None:
    add(family)
    family.client.trigger_schedule("nightly")
    with pytest.raises(DBAPIError, match="never changes"):
        family.execute("UPDATE celeriac.schedule_fires SET outcome = 'queued', run_id = NULL")
    with pytest.raises(DBAPIError, match="append-only"):
        family.execute("DELETE FROM celeriac.schedule_fires")
    assert family.run(runs(family)[0][0]).status is RunStatus.QUEUED
    family.go_on()


def test_the_audit_finds_a_time_without_its_run(database_url: str, broker_url: str) -> None:
    family = Family(database_url, broker_url, [reporter])
    add(family)
    family.client.trigger_schedule("nightly")
    with family.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE celeriac.schedule_fires SET run_id = 'r-none'")

    assert "schedule nightly at" in " ".join(family.violations())
    family.close()
