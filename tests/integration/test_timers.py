"""Runs that begin later, sleep, or have a deadline: the tests set the times of rows."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Agent, Approval, Limits, external_tool, sleep, tool, wake_at
from celeriac.client import TookEffect
from celeriac.errors import Conflict, InvalidInput
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import Phase, RunStatus
from celeriac_scheduler.overdue import end_overdue
from celeriac_storage import timers
from celeriac_storage.dispatch import Due
from celeriac_tasks import sleeping
from tests.family import Family

HOUR = timedelta(hours=1)


@tool(effect="external", approval=Approval())
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@external_tool
def scan(shelf: str) -> str:  # type: ignore[empty-body]  # never called
    """Scan a shelf."""


plain = Agent("plain", model=ScriptedModel([say("done")]))
sleeper = Agent(
    "sleeper", model=ScriptedModel([call("sleep", seconds=3600), say("awake")]),
    tools=[sleep, wake_at],
)  # fmt: skip
alarm = Agent(
    "alarm", model=ScriptedModel([call("wake_at", time="2001-01-01T00:00:00+00:00"), say("up")]),
    tools=[sleep, wake_at],
)  # fmt: skip
buyer = Agent("buyer", model=ScriptedModel([call("pay", amount=5), say("paid")]), tools=[pay])
scanner = Agent("scanner", model=ScriptedModel([call("scan", shelf="a"), say("ok")]), tools=[scan])
brief = Agent("brief", model=ScriptedModel([say("done")]), limits=Limits(deadline_seconds=60))


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, [plain, sleeper, alarm, buyer, scanner, brief])
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


def fire(family: Family) -> list[RunId]:
    """One look of a scheduler; the runs that it publishes."""
    with family.database.begin() as connection:
        due = timers.fire_due(connection)
    with family.database.begin() as connection:
        due += timers.begin_delayed(connection)
    return [each.run_id for each in due]


def make_due(family: Family, run_id: str) -> None:
    family.execute("UPDATE celeriac.timers SET due_at = now() WHERE run_id = %s", run_id)


# A later start ------------------------------------------------------------------------------------


def test_a_delayed_run_begins_when_its_time_has_come(family: Family) -> None:
    run_id = family.start("plain", delay=HOUR)
    run = family.run(run_id)
    assert (run.status, run.phase) == (RunStatus.PAUSED, Phase.WAITING_TIMER)
    assert run.start_at is not None
    assert fire(family) == []

    make_due(family, run_id)

    assert fire(family) == [run_id]
    assert fire(family) == []
    family.go_on()
    assert family.run(run_id).status is RunStatus.COMPLETED
    assert family.events(run_id)[:3] == ["run.created", "run.paused", "run.woken"]


def test_a_delayed_run_does_not_hold_its_thread(family: Family) -> None:
    later = family.start("plain", "later", thread_id="t-1", start_at=datetime.now(UTC) + HOUR)
    now = family.start("plain", "now", thread_id="t-1")

    assert family.run(now).status is RunStatus.QUEUED
    family.go_on()
    make_due(family, later)
    fire(family)
    family.go_on()

    positions = family.rows("SELECT run_id FROM celeriac.runs ORDER BY thread_position")
    assert positions == [(now,), (later,)]


def test_a_delayed_run_waits_for_its_turn_if_its_thread_is_busy(family: Family) -> None:
    later = [family.start("plain", thread_id="t-1", delay=HOUR) for _ in range(2)]
    busy = family.start("plain", thread_id="t-1")
    for run_id in later:
        make_due(family, run_id)

    assert fire(family) == []
    assert {family.run(run_id).phase for run_id in later} == {Phase.WAITING_THREAD}
    family.go_on()

    assert {family.run(run_id).status for run_id in [busy, *later]} == {RunStatus.COMPLETED}


def test_two_delayed_runs_of_a_free_thread_go_one_after_the_other(family: Family) -> None:
    later = [family.start("plain", thread_id="t-1", delay=HOUR) for _ in range(2)]
    for run_id in later:
        make_due(family, run_id)

    assert len(fire(family)) == 1
    family.go_on()

    assert {family.run(run_id).status for run_id in later} == {RunStatus.COMPLETED}


def test_a_delayed_run_can_be_cancelled_and_not_interrupted(family: Family) -> None:
    run_id = family.start("plain", delay=HOUR)

    with pytest.raises(Conflict, match="has not begun"):
        family.client.interrupt(run_id)
    assert family.client.cancel(run_id) is RunStatus.CANCELLED

    make_due(family, run_id)
    assert fire(family) == []


@pytest.mark.parametrize(
    "options",
    [
        {"start_at": datetime(2040, 1, 1)},  # no zone
        {"delay": timedelta(0)},
        {"delay": timedelta(days=-1)},
        {"delay": HOUR, "start_at": datetime(2040, 1, 1, tzinfo=UTC)},
        {"delay": HOUR, "on_busy": "reject"},
        {"deadline": datetime(2001, 1, 1, tzinfo=UTC)},
        {"deadline": timedelta(seconds=-1)},
        {"delay": HOUR, "deadline": datetime.now(UTC) + timedelta(minutes=1)},
    ],
)
def test_times_that_cannot_be_used_are_refused(family: Family, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        family.start("plain", **options)
    assert family.rows("SELECT FROM celeriac.runs") == []


# Sleeping -----------------------------------------------------------------------------------------


def test_a_model_sleeps_and_no_worker_is_held(family: Family) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    run = family.run(run_id)
    assert (run.status, run.phase) == (RunStatus.PAUSED, Phase.WAITING_TIMER)
    ((left,),) = family.rows("SELECT due_at - now() FROM celeriac.timers")
    assert timedelta(minutes=59) < left <= HOUR

    make_due(family, run_id)
    assert fire(family) == [run_id]
    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, "awake")
    assert [effect.state for effect in run.effects] == ["committed"]


def test_a_model_that_asks_for_a_time_in_the_past_is_woken_at_once(family: Family) -> None:
    run_id = family.start("alarm")
    family.go_on()

    assert fire(family) == [run_id]
    family.go_on()
    assert family.run(run_id).result == "up"


def test_a_step_that_comes_too_early_sleeps_again(family: Family) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    before = family.rows("SELECT due_at FROM celeriac.timers")
    family.client.interrupt(run_id)
    family.execute(  # somebody queues it by hand
        "UPDATE celeriac.runs SET status = 'queued', phase = resume_phase, resume_phase = NULL,"
        " interrupt_requested_at = NULL WHERE run_id = %s", run_id,
    )  # fmt: skip

    family.go_on()

    assert family.run(run_id).phase is Phase.WAITING_TIMER
    assert family.rows("SELECT due_at FROM celeriac.timers") == before


def test_a_timer_that_fires_while_its_user_is_waited_for_is_not_lost(family: Family) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    family.client.interrupt(run_id)
    make_due(family, run_id)

    assert fire(family) == []
    assert family.run(run_id).phase is Phase.WAITING_USER
    family.client.say(run_id, "go on")
    family.go_on()

    assert family.run(run_id).status is RunStatus.COMPLETED


def test_a_timer_that_fires_while_a_step_looks_at_it_is_not_slept_through(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    make_due(family, run_id)
    family.execute(  # somebody queues it by hand
        "UPDATE celeriac.runs SET status = 'queued', phase = resume_phase, resume_phase = NULL"
        " WHERE run_id = %s", run_id,
    )  # fmt: skip
    look = sleeping.woken
    fired: list[RunId] = []

    def look_too_early(*asked: Any) -> Any:
        found = look(*asked)
        if not fired:
            fired.extend(fire(family) or [run_id])
        return found

    monkeypatch.setattr(sleeping, "woken", look_too_early)
    family.go_on()

    assert family.run(run_id).status is RunStatus.COMPLETED


def test_a_timer_fires_once_and_then_never_changes(family: Family) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    make_due(family, run_id)
    fire(family)

    for change in ("fired_at = NULL", "due_at = now()", "timer_id = 'other'"):
        with pytest.raises(DBAPIError, match="fires once"):
            family.execute(f"UPDATE celeriac.timers SET {change}")
    family.go_on()


def test_two_schedulers_fire_each_timer_once(family: Family) -> None:
    runs = [family.start("sleeper") for _ in range(20)]
    later = [family.start("plain", delay=HOUR) for _ in range(20)]
    family.go_on()
    family.execute("UPDATE celeriac.timers SET due_at = now()")

    def look(_: int) -> list[RunId]:
        return [run_id for _ in range(3) for run_id in fire(family)]

    with ThreadPoolExecutor(4) as schedulers:
        fired = [run_id for each in schedulers.map(look, range(4)) for run_id in each]

    assert sorted(fired) == sorted([*runs, *later])
    family.go_on()
    woken = [family.events(run_id).count("run.woken") for run_id in [*runs, *later]]
    assert set(woken) == {1}


def test_a_timer_whose_run_somebody_holds_is_for_the_next_look(family: Family) -> None:
    held, free = family.start("sleeper"), family.start("sleeper")
    family.go_on()
    family.execute("UPDATE celeriac.timers SET due_at = now()")
    with family.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (held,)
        )
        assert fire(family) == [free]

    assert fire(family) == [held]
    family.go_on()


def test_nothing_is_lost_if_a_scheduler_dies_before_its_commit(family: Family) -> None:
    run_id = family.start("sleeper")
    family.go_on()
    make_due(family, run_id)
    with family.database.begin() as connection:
        assert timers.fire_due(connection) == [Due(run_id, 1, "celeriac")]
        connection.rollback()

    assert fire(family) == [run_id]
    family.go_on()


# Deadlines ----------------------------------------------------------------------------------------


def pass_deadline(family: Family, run_id: str) -> None:
    family.execute("UPDATE celeriac.runs SET deadline_at = now() WHERE run_id = %s", run_id)


@pytest.mark.parametrize(
    ("agent", "options", "phase"),
    [
        ("plain", {}, Phase.WAITING_MODEL),  # queued
        ("plain", {"delay": HOUR}, Phase.WAITING_TIMER),
        ("sleeper", {}, Phase.WAITING_TIMER),
        ("buyer", {}, Phase.WAITING_APPROVAL),
        ("scanner", {}, Phase.WAITING_EXTERNAL),
    ],
)
def test_a_run_that_nobody_works_on_fails_at_its_deadline(
    family: Family, agent: str, options: dict[str, object], phase: Phase
) -> None:
    run_id = family.start(agent, deadline=timedelta(hours=3), **options)
    if phase is not Phase.WAITING_MODEL:
        family.go_on()
    assert family.run(run_id).phase is phase
    pass_deadline(family, run_id)

    end_overdue(family.database)

    run = family.run(run_id)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")
    assert "deadline" in str(run.error)
    assert family.events(run_id)[-1] == "run.failed"
    assert {each.status for each in run.approvals} <= {"cancelled"}
    assert {str(each.state) for each in run.effects} <= {"unknown", "proposed", "planned"}


def test_a_call_of_another_process_can_be_settled_after_the_deadline(family: Family) -> None:
    run_id = family.start("scanner", deadline=HOUR)
    family.go_on()
    pass_deadline(family, run_id)
    end_overdue(family.database)

    family.client.resolve(run_id, "0.0", TookEffect("seen"))

    assert family.states(run_id) == ["committed"]


def test_a_step_in_progress_is_recorded_before_the_deadline_ends_the_run(family: Family) -> None:
    passed: list[int] = []

    @tool(effect="external")
    def slow(amount: int) -> str:
        """Take until after the deadline."""
        (run_id,) = family.rows("SELECT run_id FROM celeriac.runs WHERE status = 'running'")[0]
        pass_deadline(family, run_id)
        end_overdue(family.database)
        passed.append(amount)
        return "done"

    late = Agent("late", model=ScriptedModel([call("slow", amount=1), say("x")]), tools=[slow])
    other = Family(family.database.url, "redis://localhost:1/0", [late])
    run_id = other.start("late", deadline=HOUR)
    other.go_on()

    run = other.run(run_id)
    assert passed == [1]
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")
    assert [effect.state for effect in run.effects] == ["committed"]
    other.close()


def test_a_step_that_would_wait_for_a_person_ends_the_run_past_its_deadline(
    family: Family,
) -> None:
    def late(_messages: object) -> Turn:
        (run_id,) = family.rows("SELECT run_id FROM celeriac.runs WHERE status = 'running'")[0]
        pass_deadline(family, run_id)
        end_overdue(family.database)
        return call("pay", amount=1)

    slow = Agent("slow", model=ScriptedModel(late), tools=[pay])
    other = Family(family.database.url, "redis://localhost:1/0", [slow])
    run_id = other.start("slow", deadline=HOUR)
    other.go_on()

    run = other.run(run_id)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")
    assert [each.status for each in run.approvals] == ["cancelled"]
    other.close()


def test_a_claim_knows_of_a_deadline_that_no_scheduler_has_seen(family: Family) -> None:
    run_id = family.start("plain", deadline=HOUR)
    pass_deadline(family, run_id)

    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")
    assert family.rows("SELECT FROM celeriac.model_calls") == []


def test_a_run_that_needs_a_person_stays_before_that_person(family: Family) -> None:
    run_id = family.start("plain", deadline=HOUR)
    family.execute(
        "UPDATE celeriac.runs SET status = 'needs_attention', error = '{}' WHERE run_id = %s",
        run_id,
    )
    family.execute(
        "WITH run AS (UPDATE celeriac.runs SET last_event_seq = 2 RETURNING run_id)"
        " INSERT INTO celeriac.events (run_id, seq, type, data) SELECT run_id, 2,"
        ' \'run.needs_attention\', \'{"error": {"kind": "x", "message": "y"}}\' FROM run'
    )
    pass_deadline(family, run_id)

    end_overdue(family.database)
    assert family.run(run_id).status is RunStatus.NEEDS_ATTENTION
    family.client.retry(run_id)
    family.go_on()

    assert family.run(run_id).outcome == "limit_exceeded"


def test_an_agents_own_deadline_counts_from_when_the_run_may_begin(family: Family) -> None:
    family.start("brief", delay=HOUR)

    ((span,),) = family.rows(
        "SELECT deadline_at - due_at FROM celeriac.runs JOIN celeriac.timers USING (run_id)"
    )
    assert span == timedelta(minutes=1)


def test_a_deadline_that_passes_frees_the_thread(family: Family) -> None:
    first = family.start("sleeper", thread_id="t-1", deadline=HOUR)
    family.go_on()
    second = family.start("plain", thread_id="t-1")
    assert family.run(second).phase is Phase.WAITING_THREAD
    pass_deadline(family, first)

    end_overdue(family.database)

    assert family.run(second).status is RunStatus.QUEUED


def test_the_audit_finds_timers_that_are_late_or_missing(
    database_url: str, broker_url: str
) -> None:
    family = Family(database_url, broker_url, [sleeper])
    run_id = family.start("sleeper")
    family.go_on()
    family.execute("UPDATE celeriac.timers SET due_at = now() - interval '1 h'")
    assert "was due at" in " ".join(family.violations())

    with family.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("DELETE FROM celeriac.timers WHERE run_id = %s", (run_id,))
    assert "nobody has set" in " ".join(family.violations())
    family.close()
