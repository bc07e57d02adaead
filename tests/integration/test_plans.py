"""Plans on a worker in the test's own process, step by step."""

# features: 004-55, 004-57
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Agent
from celeriac.errors import Conflict, InvalidInput, InvalidPlan, RunExists, UnknownRun
from celeriac.ids import new_run_id
from celeriac.plan import Plan, PlanStep, result_of
from celeriac.scripted import ScriptedModel, call, say
from celeriac.states import Phase, RunStatus
from celeriac_storage.database import sqlstate
from tests.family import Family, let_time_pass
from tests.plan_desk import LARGE, LAYERS, broken, calls, made, runner, writer

PLANS = [
    {"steps": [{"id": "a", "tool": "play"}]},
    {"steps": [{"id": "a", "tool": "look", "arguments": {"what": "a"}, "needs": ["b"]}]},
    Plan(LAYERS[:3]).to_json(),
]
planner = Agent(
    "planner",
    ScriptedModel([*(call("plans", input=plan) for plan in PLANS), say("It is sent")]),
    tools=[runner.as_tool()],
)


@pytest.fixture
def damaged_family(database_url: str, broker_url: str) -> Iterator[Family]:
    calls.clear()
    broken.clear()
    family = Family(database_url, broker_url, [planner, runner, writer])
    yield family
    family.close()


@pytest.fixture
def family(damaged_family: Family) -> Iterator[Family]:
    """Nothing is damaged in it: the audit says so at the end."""
    yield damaged_family
    assert damaged_family.violations() == []


def ended(family: Family, plan: Plan) -> str:
    run_id = family.client.start_plan(plan).run_id
    family.go_on()
    return run_id


def states(family: Family, run_id: str) -> dict[str, str]:
    return {node.id: node.state.value for node in family.client.plan(run_id).steps}


@pytest.mark.parametrize("interval", ["per_step", "per_layer"])
def test_a_plan_is_executed_layer_by_layer(family: Family, interval: str) -> None:
    plan = Plan(LAYERS, checkpoint_interval=interval)  # type: ignore[arg-type]  # it is one of them

    run_id = ended(family, plan)

    run = family.run(run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, {"d": "a text"})
    assert made() == sorted(["a", "b", "a is there"])
    report = family.client.plan(run_id)
    assert (report.version, report.layers, report.continues) == (1, 3, None)
    assert [(node.id, node.layer, node.state.value) for node in report.steps] == [
        ("a", 0, "completed"),
        ("b", 0, "completed"),
        ("c", 1, "completed"),
        ("d", 2, "completed"),
    ]
    assert all(node.run_id is not None for node in report.steps)


def test_how_a_plan_stands_is_told_while_it_goes_on(family: Family) -> None:
    run_id = family.client.start_plan(Plan(LAYERS)).run_id
    assert set(states(family, run_id).values()) == {"waiting"}

    family.step(run_id)

    assert family.run(run_id).phase is Phase.WAITING_ACTIVITY
    assert states(family, run_id) == {
        "a": "running",
        "b": "running",
        "c": "waiting",
        "d": "waiting",
    }


# features: 004-16
@pytest.mark.parametrize(("interval", "turns"), [("per_step", 5), ("per_layer", 4)])
def test_there_is_a_checkpoint_for_each_step_or_for_each_layer(
    family: Family, interval: str, turns: int
) -> None:
    plan = Plan(LAYERS, checkpoint_interval=interval)  # type: ignore[arg-type]
    run_id = family.client.start_plan(plan).run_id
    while not family.run(run_id).status.is_terminal:
        # The plan's own run comes first, so that it sees each end by itself where it may.
        ((next_run,),) = family.rows(
            "SELECT run_id FROM celeriac.runs WHERE status = 'queued'"
            " ORDER BY run_id = %s DESC, run_id LIMIT 1",
            run_id,
        )
        family.step(next_run)

    assert len(family.run(run_id).steps) == turns


# features: 004-16
def test_the_default_is_a_checkpoint_for_each_step() -> None:
    assert Plan(LAYERS).checkpoint_interval == "per_step"


@pytest.mark.parametrize("interval", ["per_step", "per_layer"])
def test_a_failed_step_lets_the_others_end_and_fails_the_plan(
    family: Family, interval: str
) -> None:
    broken.add("b")

    run_id = ended(family, Plan(LAYERS, checkpoint_interval=interval))  # type: ignore[arg-type]

    run = family.run(run_id)
    assert run.status is RunStatus.FAILED
    assert isinstance(run.error, dict)
    assert "step b has failed: " in str(run.error["message"])
    assert "b is broken" in str(run.error["message"])
    assert "Not begun: c, d." in str(run.error["message"])
    assert states(family, run_id) == {"a": "completed", "b": "failed", "c": "skipped",
                                      "d": "skipped"}  # fmt: skip
    assert made() == sorted(["a", "b"])


@pytest.mark.parametrize("interval", ["per_step", "per_layer"])
def test_a_failed_plan_goes_on_after_a_fix_with_what_was_completed(
    family: Family, interval: str
) -> None:
    broken.add("a is there")
    run_id = ended(family, Plan(LAYERS, checkpoint_interval=interval))  # type: ignore[arg-type]
    assert made() == sorted(["a", "b", "a is there"])
    broken.clear()

    retried = family.client.retry_plan(run_id)
    family.go_on()

    run = family.run(retried.run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, {"d": "a text"})
    assert made() == sorted(["a", "b", "a is there", "a is there"])
    report = family.client.plan(retried.run_id)
    assert [node.id for node in report.steps if node.is_kept] == ["a", "b"]
    assert (report.version, report.continues) == (1, run_id)
    assert family.client.plan(run_id).continued_by == retried.run_id


def test_a_plan_that_fails_again_goes_on_again(family: Family) -> None:
    broken.add("a is there")
    first = ended(family, Plan(LAYERS))
    second = family.client.retry_plan(first).run_id
    family.go_on()
    assert family.run(second).status is RunStatus.FAILED
    broken.clear()

    third = family.client.retry_plan(second).run_id
    family.go_on()

    assert family.run(third).status is RunStatus.COMPLETED
    assert made() == sorted(["a", "b", *["a is there"] * 3])


def test_to_retry_a_plan_again_is_the_same_run(family: Family) -> None:
    broken.add("b")
    run_id = ended(family, Plan(LAYERS))

    retried = [family.client.retry_plan(run_id).run_id for _ in range(2)]
    retried.append(family.client.retry(run_id).run_id)

    assert len({*retried}) == 1
    edited = Plan([LAYERS[0]])
    with pytest.raises(Conflict, match=f"done by run {retried[0]} already, of another plan"):
        family.client.retry_plan(run_id, edited)


def test_an_edited_plan_keeps_what_is_the_same_with_all_that_it_depends_on(
    family: Family,
) -> None:
    broken.add("a is there")
    run_id = ended(family, Plan(LAYERS))
    edited = Plan(
        [
            LAYERS[0],
            replace(LAYERS[1], arguments={"what": "B"}),
            replace(LAYERS[2], arguments={"text": result_of("b", "found")}),
            LAYERS[3],
        ]
    )

    retried = family.client.retry_plan(run_id, edited).run_id
    family.go_on()

    assert family.run(retried).status is RunStatus.COMPLETED
    assert made() == sorted(["a", "b", "a is there", "B", "B is there"])
    report = family.client.plan(retried)
    assert [node.id for node in report.steps if node.is_kept] == ["a"]
    assert report.version == 2
    assert family.client.plan(run_id).version == 1


def test_a_completed_plan_can_be_edited_too(family: Family) -> None:
    run_id = ended(family, Plan(LAYERS))
    more = Plan([*LAYERS, PlanStep("e", tool="look", arguments={"what": "e"}, needs=["c"])])

    retried = family.client.retry_plan(run_id, more).run_id
    family.go_on()

    assert family.run(retried).result == {"d": "a text", "e": {"found": "e is there"}}
    assert made() == sorted(["a", "b", "a is there", "e"])


def test_a_plan_of_other_steps_with_the_same_ids_takes_nothing_over(family: Family) -> None:
    run_id = ended(family, Plan([LAYERS[0]]))
    other = Plan([PlanStep("a", tool="send", arguments={"text": "a"})])

    retried = family.client.retry_plan(run_id, other).run_id
    family.go_on()

    assert family.run(retried).result == {"a": "sent: a"}


def test_a_plan_that_goes_on_is_not_retried(family: Family) -> None:
    run_id = family.client.start_plan(Plan(LAYERS)).run_id
    family.step(run_id)

    with pytest.raises(Conflict, match="when it has ended"):
        family.client.retry_plan(run_id)
    with pytest.raises(UnknownRun):
        family.client.retry_plan(new_run_id())


def test_a_cancelled_plan_goes_on_when_its_steps_have_come_to_rest(family: Family) -> None:
    run_id = family.client.start_plan(Plan(LAYERS)).run_id
    family.step(run_id)
    (a, *_) = family.client.plan(run_id).steps
    assert a.run_id is not None
    family.step(a.run_id)
    family.client.cancel(run_id)
    family.go_on()
    assert states(family, run_id)["b"] in ("stopped", "failed")

    retried = family.client.retry_plan(run_id).run_id
    family.go_on()

    assert family.run(retried).status is RunStatus.COMPLETED
    assert calls.count("a") == 1


def test_what_cannot_be_executed_leaves_no_row(family: Family) -> None:
    plan = Plan([PlanStep("a", tool="play"), PlanStep("b", tool="look", arguments={"wat": 1})])

    for named in ("plans", runner):
        with pytest.raises(InvalidPlan) as refused:
            family.client.start_plan(plan, runner=named)
        assert "step a: there is no tool play; known are book, fill, look, measure, send" in str(
            refused.value
        )
        assert "step b: wat: unknown; expected are what" in str(refused.value)

    assert family.rows("SELECT * FROM celeriac.plans") == []
    assert family.rows("SELECT * FROM celeriac.runs") == []


def test_a_plan_started_twice_under_one_id_is_there_once(family: Family) -> None:
    run_id = new_run_id()
    family.client.start_plan(Plan(LAYERS), run_id=run_id)

    with pytest.raises(RunExists):
        family.client.start_plan(Plan(LAYERS), run_id=run_id)

    assert family.rows("SELECT run_id, version FROM celeriac.plans") == [(run_id, 1)]


def test_a_run_that_executes_no_plan_has_none(family: Family) -> None:
    run_id = family.start("writer", "x")

    with pytest.raises(InvalidInput, match="executes no plan"):
        family.client.plan(run_id)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE celeriac.plans SET body = '{}'",
        "DELETE FROM celeriac.plans",
        "TRUNCATE celeriac.plans",
    ],
)
def test_a_plan_never_changes(family: Family, change: str) -> None:
    family.client.start_plan(Plan(LAYERS))

    with pytest.raises(DBAPIError) as refused:
        family.execute(change)

    assert sqlstate(refused.value) == "CE001"


@pytest.mark.parametrize(
    ("damage", "seen"),
    [
        ("UPDATE celeriac.plans SET body = '{}' WHERE run_id = %s", "plan, version 1"),
        (
            """UPDATE celeriac.activities SET result = '1', result_hash = sha256('1')
            WHERE run_id = %s AND label = 'a'""",
            "step a is kept of run",
        ),
    ],
)
def test_the_audit_sees_a_changed_plan_and_a_changed_result(
    damaged_family: Family, damage: str, seen: str
) -> None:
    family = damaged_family
    broken.add("a is there")
    run_id = ended(family, Plan(LAYERS))
    retried = family.client.retry_plan(run_id).run_id
    assert family.violations() == []
    with family.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(damage, (retried,))

    (violation,) = family.violations()

    assert violation.startswith(f"{retried}: ")
    assert seen in violation


@pytest.mark.parametrize("take_away", ["erase", "prune"])
def test_a_plan_goes_with_its_run_and_the_run_after_it_has_its_own(
    family: Family, take_away: str
) -> None:
    broken.add("a is there")
    run_id = ended(family, Plan(LAYERS))
    retried = family.client.retry_plan(run_id).run_id
    broken.clear()
    family.go_on()

    if take_away == "erase":
        family.execute("SELECT celeriac.erase_runs(%s)", [run_id])
        left = [(run_id, True), (retried, False)]
    else:
        with family.database.begin() as connection:
            connection.exec_driver_sql("SELECT celeriac.prune_runs(%s)", ([run_id],))
        left = [(retried, False)]

    rows = "SELECT run_id, body IS NULL FROM celeriac.plans ORDER BY created_at"
    assert family.rows(rows) == left
    assert family.client.plan(retried).continues == run_id
    with pytest.raises((Conflict, InvalidInput)):
        family.client.plan(run_id)
    again = family.client.retry_plan(retried, Plan(LAYERS[:3])).run_id
    family.go_on()
    assert family.run(again).result == {"c": "sent: a is there"}


def test_a_large_result_is_kept_where_it_is(family: Family) -> None:
    broken.add("b")
    plan = Plan(
        [
            PlanStep("a", tool="fill", arguments={"count": LARGE}),
            PlanStep("b", tool="look", arguments={"what": "b"}, needs=["a"]),
            PlanStep("c", tool="measure", arguments={"text": result_of("a")}, needs=["a", "b"]),
        ]
    )
    run_id = ended(family, plan)
    broken.clear()

    retried = family.client.retry_plan(run_id).run_id
    family.go_on()

    assert family.run(retried).result == {"c": LARGE}
    ((kept, artifact),) = family.rows(
        "SELECT result, result_artifact FROM celeriac.activities WHERE run_id = %s AND label = 'a'",
        retried,
    )
    assert kept is None
    assert artifact is not None


def test_a_planning_agent_corrects_its_plan_and_is_told_what_came_of_it(family: Family) -> None:
    run_id = family.start("planner")
    family.go_on()

    run = family.run(run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, "It is sent")
    invalid = [str(effect.error) for effect in run.effects if effect.error is not None]
    assert len(invalid) == 2
    assert "step a: there is no tool play; known are book, fill, look, measure, send" in invalid[0]
    assert "step a needs b, which is no step of the plan" in invalid[1]
    assert run.effects[-1].result == {"c": "sent: a is there"}
    (child,) = [each for each in run.children if each.parent.run_id == run_id]
    assert set(states(family, child.run_id).values()) == {"completed"}


def test_a_planning_model_is_told_what_steps_may_use() -> None:
    told = runner.as_tool().description

    assert told.startswith("Have a plan executed")
    assert '- tool send: Send something. Its arguments: {"type":"object"' in told
    assert "- agent writer: " in told


def test_a_step_that_was_taken_back_is_made_again(family: Family) -> None:
    broken.add("c")
    plan = Plan(
        [
            PlanStep("a", tool="book", arguments={"what": "a room"}),
            PlanStep("b", tool="look", arguments={"what": result_of("a")}, needs=["a"]),
            PlanStep("c", tool="look", arguments={"what": "c"}, needs=["b"]),
        ]
    )
    run_id = ended(family, plan)
    booked = family.client.plan(run_id).steps[0].run_id
    assert booked is not None
    family.client.rollback(booked)
    family.go_on()
    broken.clear()

    retried = family.client.retry_plan(run_id).run_id
    family.go_on()

    assert family.run(retried).status is RunStatus.COMPLETED
    assert [node.id for node in family.client.plan(retried).steps if node.is_kept] == []
    assert made() == sorted(
        [*["a room", "a room is booked"] * 2, "c", "c", "book.undo is cancelled"]
    )


def test_a_call_without_an_effect_is_made_again_as_often_as_the_step_says(family: Family) -> None:
    broken.add("a")
    plan = Plan([replace(LAYERS[0], retries=1), LAYERS[1]])
    run_id = family.client.start_plan(plan).run_id
    family.go_on()
    assert states(family, run_id) == {"a": "running", "b": "completed"}

    let_time_pass(family)
    family.go_on()

    assert states(family, run_id) == {"a": "failed", "b": "completed"}
    assert family.client.plan(run_id).steps[0].attempts == 2
    assert made() == ["a", "a", "b"]
    broken.clear()
    retried = family.client.retry_plan(run_id).run_id
    family.go_on()
    assert family.run(retried).status is RunStatus.COMPLETED
    assert made() == ["a", "a", "a", "b"]
