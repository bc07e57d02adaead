"""Runs that other runs start: results, failures, cancels, limits and histories between the two."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from pydantic_ai.messages import ModelMessage
from sqlalchemy.exc import DBAPIError

from celeriac import Agent, Limits, tool
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac.states import Phase, RunStatus
from celeriac_scheduler.overdue import cancel_orphans
from celeriac_storage import deadlines, verdicts, waking, workers
from celeriac_storage.database import Database
from tests.family import Family
from tests.waiting import eventually

SEEN: list[str] = []  # what the model of `colleague` was shown, the latest last


def shown(messages: list[ModelMessage]) -> str:
    return " | ".join(
        str(part.content) for message in messages for part in message.parts
        if hasattr(part, "content")
    )  # fmt: skip


def colleague_turn(messages: object) -> Turn:
    SEEN.append(shown(messages))  # type: ignore[arg-type]  # a list, which mypy cannot know
    return say("from now on it is me")


@tool(effect="none")
def look(what: str) -> str:
    """Look at something."""
    return f"{what} is fine"


helper = Agent("helper", model=ScriptedModel([call("look", what="it"), say("done")]), tools=[look])
failing = Agent(
    "failing", model=ScriptedModel([call("look", what="it"), say("never")]), tools=[look],
    limits=Limits(steps=1),
)  # fmt: skip
boss = Agent(
    "boss", model=ScriptedModel([call("helper", input="do it"), say("it is done")]),
    tools=[helper.as_tool()],
)  # fmt: skip
crowd = Agent(
    "crowd",
    model=ScriptedModel(
        [Turn(calls=tuple(ToolCall("helper", {"input": str(n)}) for n in range(3))), say("all")]
    ),
    tools=[helper.as_tool()],
    limits=Limits(children=3, tokens=30_000),
)
greedy = Agent(
    "greedy",
    model=ScriptedModel(
        [Turn(calls=tuple(ToolCall("helper", {"input": str(n)}) for n in range(3))), say("all")]
    ),
    tools=[helper.as_tool()],
    limits=Limits(children=2),
)
optimist = Agent(
    "optimist", model=ScriptedModel([call("failing", input="try"), say("then not")]),
    tools=[failing.as_tool()],
)  # fmt: skip
director = Agent(
    "director", model=ScriptedModel([call("boss", input="have it done"), say("good")]),
    tools=[boss.as_tool()],
)  # fmt: skip
flat = Agent(
    "flat", model=ScriptedModel([call("boss", input="have it done"), say("good")]),
    tools=[boss.as_tool()], limits=Limits(depth=1),
)  # fmt: skip
colleague = Agent("colleague", model=ScriptedModel(colleague_turn))
clerk = Agent(
    "clerk",
    model=ScriptedModel(
        [call("look", what="the order"), call("hand_off_to_colleague", input="please answer")]
    ),
    tools=[look, colleague.as_handoff()],
)
hasty = Agent(
    "hasty",
    model=ScriptedModel(
        [
            Turn(
                calls=(
                    ToolCall("hand_off_to_colleague", {"input": "you"}),
                    ToolCall("look", {"what": "it"}),
                )
            ),
            say("alone then"),
        ]
    ),
    tools=[look, colleague.as_handoff()],
)
AGENTS = [helper, failing, boss, crowd, greedy, optimist, director, flat, colleague, clerk, hasty]


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, AGENTS)
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


def test_the_result_of_a_child_is_that_of_the_call(family: Family) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)

    waiting = family.run(run_id)
    assert (waiting.status, waiting.phase) == (RunStatus.PAUSED, Phase.WAITING_CHILD)
    (child,) = waiting.children
    assert (child.agent, child.parent.call_id) == ("helper", "0.0")
    assert family.run(child.run_id).input == "do it"

    family.go_on()

    ended = family.run(run_id)
    assert (ended.status, ended.result) == (RunStatus.COMPLETED, "it is done")
    assert [(each.state, each.result) for each in ended.effects] == [("committed", "done")]
    assert family.run(child.run_id).parent == ended.children[0].parent
    assert "child.started" in family.events(run_id)


def test_a_child_sees_nothing_of_its_parents_conversation(family: Family) -> None:
    run_id = family.start("boss", "a secret of the boss")
    family.go_on()

    (child,) = family.children(run_id)
    rows = family.rows("SELECT body::text FROM celeriac.messages WHERE run_id = %s", child)
    assert not any("a secret" in body for (body,) in rows)


def test_the_children_of_one_response_run_at_once(family: Family) -> None:
    run_id = family.start("crowd")
    family.step(run_id)
    family.step(run_id)

    children = family.children(run_id)
    assert len(children) == 3
    assert {family.run(child).status for child in children} == {RunStatus.QUEUED}
    for _ in range(3):
        family.step(children[0])
    assert family.run(run_id).phase is Phase.WAITING_CHILD
    family.go_on()
    assert family.states(run_id) == ["committed"] * 3
    assert family.run(run_id).status is RunStatus.COMPLETED


def test_children_that_end_at_the_same_moment_wake_their_parent_once(family: Family) -> None:
    run_id = family.start("crowd")
    family.step(run_id)
    family.step(run_id)
    children = family.children(run_id)
    for _ in range(2):
        for child in children:
            family.step(child)

    with ThreadPoolExecutor(3) as slots:
        list(slots.map(family.step, children))

    assert family.events(run_id).count("run.woken") == 1
    assert family.states(run_id) == ["committed"] * 3
    family.go_on()


def test_the_failure_of_a_child_is_told_to_the_model(family: Family) -> None:
    run_id = family.start("optimist")
    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, "then not")
    (effect,) = run.effects
    assert effect.state == "failed"
    assert isinstance(effect.error, dict)
    assert effect.error["kind"] == "child_failed"
    assert "1 of the 1 steps" in str(effect.error["message"])


def test_the_cancel_of_a_child_is_told_to_the_model(family: Family) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    (child,) = family.children(run_id)

    family.client.cancel(child)

    family.go_on()
    run = family.run(run_id)
    assert run.status is RunStatus.COMPLETED
    assert isinstance(run.effects[0].error, dict)
    assert run.effects[0].error["kind"] == "child_cancelled"


def test_the_cancel_of_a_parent_cancels_all_below_it(family: Family) -> None:
    run_id = family.start("director")
    for _ in range(4):
        family.go_on(but=["helper"])
    assert len(family.children(run_id)) == 2

    family.client.cancel(run_id)

    assert {each.status for each in family.run(run_id).children} == {RunStatus.CANCELLED}
    (boss_run, helper_run) = family.children(run_id)
    told = [event.data for event in family.client.events(helper_run)][-1]
    assert told["by"] == f"run {boss_run}"


def test_a_child_whose_parent_was_ended_by_its_step_is_cancelled_by_a_scheduler(
    family: Family,
) -> None:
    # The parent's step is in progress, waiting for what is asked for, when it is cancelled.
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    (child,) = family.children(run_id)
    with family.database.begin() as connection:  # somebody holds the child
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,)
        )
        family.client.cancel(run_id)
    assert family.run(child).status is RunStatus.QUEUED

    cancel_orphans(family.database)

    assert family.run(child).status is RunStatus.CANCELLED


def test_a_child_that_ends_after_its_cancelled_parent_settles_the_call(family: Family) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    (child,) = family.children(run_id)
    with family.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,)
        )
        family.client.cancel(run_id)
    assert family.states(run_id) == ["unknown"]

    family.go_on()

    assert family.states(run_id) == ["committed"]
    assert family.events(run_id)[-1] == "run.cancelled"


def test_too_many_children_are_refused_before_they_are_started(family: Family) -> None:
    run_id = family.start("greedy")
    family.go_on()

    run = family.run(run_id)
    assert run.status is RunStatus.COMPLETED
    assert family.states(run_id) == ["committed", "committed", "invalid"]
    assert len(run.children) == 2


def test_a_child_below_the_limit_of_depth_is_refused(family: Family) -> None:
    run_id = family.start("flat")
    family.go_on()

    run = family.run(run_id)
    assert run.status is RunStatus.COMPLETED
    (boss_run,) = run.children
    (effect,) = family.run(boss_run.run_id).effects
    assert effect.state == "invalid"
    assert "limit of depth is 1" in str(effect.error)


def test_limits_flow_down_in_shares_and_use_flows_up(family: Family) -> None:
    run_id = family.start("crowd")
    family.step(run_id)
    family.step(run_id)

    rows = family.rows(
        "SELECT (limits ->> 'tokens')::int, (limits ->> 'steps')::int FROM celeriac.runs"
        " WHERE parent_run_id = %s", run_id,
    )  # fmt: skip
    assert rows == [((30_000 - 120) // 3, (100 - 1) // 3)] * 3

    family.go_on()
    ((steps, calls, tokens),) = family.rows(
        "SELECT child_steps_used, child_tool_calls_used, child_tokens_used FROM celeriac.runs"
        " WHERE run_id = %s", run_id,
    )  # fmt: skip
    assert (steps, calls, tokens) == (9, 3, 3 * 2 * 120)


def test_what_children_used_counts_against_the_limit(family: Family) -> None:
    run_id = family.start("boss", limits=Limits(tokens=300))
    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")


def test_a_child_has_its_parents_deadline(family: Family) -> None:
    run_id = family.start("boss", deadline=timedelta(hours=1))
    family.step(run_id)
    family.step(run_id)

    rows = family.rows("SELECT DISTINCT deadline_at FROM celeriac.runs")
    assert len(rows) == 1


def test_a_deadline_ends_a_run_that_waits_for_a_child_and_the_child_with_it(family: Family) -> None:
    run_id = family.start("boss", deadline=timedelta(hours=1))
    family.step(run_id)
    family.step(run_id)
    family.execute("UPDATE celeriac.runs SET deadline_at = now() WHERE run_id = %s", run_id)

    with family.database.begin() as connection:
        assert deadlines.end(connection, run_id)

    run = family.run(run_id)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "limit_exceeded")
    assert [child.status for child in run.children] == [RunStatus.CANCELLED]


def test_a_hand_off_goes_on_with_the_conversation_and_ends_the_run(family: Family) -> None:
    thread = "t-talk"
    first = family.start("colleague", "good morning", thread_id=thread)
    family.go_on()
    SEEN.clear()

    run_id = family.start("clerk", "where is my order?", thread_id=thread)
    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, "from now on it is me")
    (child,) = run.children
    assert child.is_handoff
    assert family.run(child.run_id).thread_id == thread
    (seen,) = SEEN
    places = [seen.index(each) for each in (
        "good morning", "from now on it is me", "where is my order?", "the order is fine",
        "please answer")]  # fmt: skip
    assert places == sorted(places)
    assert family.run(first).status is RunStatus.COMPLETED


def test_the_next_run_of_the_thread_sees_what_the_hand_off_came_to(family: Family) -> None:
    run_id = family.start("clerk", "where is my order?", thread_id="t-talk")
    family.go_on()
    SEEN.clear()

    family.start("colleague", "and now?", thread_id="t-talk")
    family.go_on()

    assert family.run(run_id).status is RunStatus.COMPLETED
    (seen,) = SEEN
    assert seen.index("where is my order?") < seen.index("from now on it is me")
    assert seen.endswith("and now?")


def test_a_hand_off_beside_other_calls_is_refused(family: Family) -> None:
    run_id = family.start("hasty")
    family.go_on()

    assert family.states(run_id) == ["invalid", "committed"]
    assert family.run(run_id).result == "alone then"


def test_a_child_has_no_turn_in_the_thread_and_its_parent_keeps_its_own(family: Family) -> None:
    first = family.start("boss", thread_id="t-talk")
    family.step(first)
    family.step(first)

    second = family.start("helper", thread_id="t-talk")

    assert family.run(second).phase is Phase.WAITING_THREAD
    family.go_on()
    assert family.run(second).status is RunStatus.COMPLETED


def test_an_interrupted_parent_waits_for_its_children_and_then_hears(family: Family) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    family.client.interrupt(run_id)
    family.client.say(run_id, "and hurry")

    family.step(run_id)
    assert family.run(run_id).phase is Phase.WAITING_CHILD
    family.go_on()

    assert family.run(run_id).status is RunStatus.COMPLETED
    assert family.states(run_id) == ["committed"]


def test_a_call_has_one_child_whatever_is_inserted(family: Family) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)

    with pytest.raises(DBAPIError, match="runs_one_child"):
        family.execute(
            """
            INSERT INTO celeriac.runs (run_id, tenant_id, user_id, thread_id, root_run_id,
                parent_run_id, parent_call_id, depth, agent, status, phase, queue, limits)
            SELECT 'r-other', tenant_id, user_id, thread_id, root_run_id, parent_run_id,
                parent_call_id, depth, agent, 'queued', 'waiting_model', queue, limits
            FROM celeriac.runs WHERE parent_run_id = %s
            """,
            run_id,
        )
    family.go_on()


def damage(family: Family, sql: str, run_id: RunId) -> str:
    """What the audit says after this was done behind the triggers' back."""
    with family.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(sql, (run_id,))
    return " ".join(family.violations())


def test_the_audit_finds_a_parent_that_waits_for_nobody(database_url: str, broker_url: str) -> None:
    family = Family(database_url, broker_url, AGENTS)
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    assert family.violations() == []

    found = damage(
        family,
        "UPDATE celeriac.runs SET status = 'cancelled', phase = NULL, finished_at = now()"
        " WHERE parent_run_id = %s", run_id,
    )  # fmt: skip
    assert "no child of its calls goes on" in found
    assert "which is no such call" in damage(
        family, "UPDATE celeriac.runs SET parent_call_id = '7.7' WHERE parent_run_id = %s", run_id
    )
    assert "its children" in damage(
        family, "UPDATE celeriac.runs SET child_tokens_used = 5 WHERE run_id = %s", run_id
    )
    family.close()


def test_an_end_that_loses_a_race_is_committed_again_under_its_claim(
    family: Family, database: Database
) -> None:
    parent = family.start("boss")
    family.go_on(but=["helper"])
    (child,) = family.children(parent)
    family.step(child)
    family.step(child)
    epoch = family.run(child).epoch

    with ThreadPoolExecutor(1) as worker, database.begin() as other:
        # We are never the one who looks for a deadlock first, and so its victim is the step.
        other.exec_driver_sql("SET LOCAL deadlock_timeout = '1h'")
        other.exec_driver_sql("SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (parent,))
        ending = worker.submit(family.step, child)
        eventually(
            lambda: family.rows(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ),
            what="the child's end waits for its parent",
        )
        other.exec_driver_sql("SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,))
        other.rollback()
        ending.result()

    ended = family.run(child)
    assert (ended.status, ended.epoch) == (RunStatus.COMPLETED, epoch + 1)
    assert "run.stumbled" not in family.events(child)
    assert family.states(parent) == ["committed"]


def test_no_worker_being_left_nobody_waits_for_a_parent_with_other_runs_locked(
    family: Family, database: Database
) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    (child,) = family.children(run_id)
    family.execute(
        "UPDATE celeriac.runs SET cancel_requested_at = clock_timestamp(),"
        " published_at = published_at - interval '3 s' WHERE run_id = %s",
        child,
    )
    ((worker_id,),) = family.rows("SELECT worker_id FROM celeriac.workers")
    with database.connect() as connection:
        workers.stop(connection, worker_id)

    with database.begin() as held, database.begin() as connection:
        held.exec_driver_sql("SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (run_id,))
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        assert waking.park_without_worker(connection) == 0
    with database.begin() as connection:
        assert waking.cancel_without_worker(connection) == 1

    assert family.run(child).status is RunStatus.CANCELLED
    assert family.states(run_id) == ["failed"]


@pytest.mark.parametrize("is_worker_dead", [True, False])
def test_steps_are_taken_back_without_waiting_for_a_parent_with_other_runs_locked(
    family: Family, database: Database, is_worker_dead: bool
) -> None:
    run_id = family.start("boss")
    family.step(run_id)
    family.step(run_id)
    (child,) = family.children(run_id)
    other = family.start("helper")
    family.execute(
        "UPDATE celeriac.runs SET status = 'running', claim_token = gen_random_uuid(), strikes = 2,"
        " worker_id = (SELECT worker_id FROM celeriac.workers),"
        " step_deadline = clock_timestamp() + CASE WHEN %s THEN interval '1 h' ELSE '-1 s' END,"
        " cancel_requested_at = CASE WHEN run_id = %s THEN clock_timestamp() END"
        " WHERE run_id IN (%s, %s)",
        is_worker_dead, child, child, other,
    )  # fmt: skip
    if is_worker_dead:
        family.execute(
            "UPDATE celeriac.workers SET dead_at = clock_timestamp(), verdict = 'lifeline'"
        )
    in_a_batch = verdicts.recover if is_worker_dead else verdicts.take_back_overdue

    with database.begin() as held, database.begin() as connection:
        held.exec_driver_sql("SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (run_id,))
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        assert in_a_batch(connection) == []
        left = verdicts.ending_children(connection)
    assert left == [child]
    assert family.run(other).status is RunStatus.NEEDS_ATTENTION
    with database.begin() as connection:
        assert verdicts.take_back(connection, child) == []

    assert family.run(child).status is RunStatus.CANCELLED
    assert family.states(run_id) == ["failed"]
    assert family.violations() == []
