"""Workflows on a worker in the test's own process, step by step."""

# features: 004-02, 004-53, 004-54
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage

from celeriac import Agent, Approval, Limits, ToolError, WorkflowContext, tool, workflow
from celeriac.client import TookEffect
from celeriac.errors import ActivityFailed, Conflict, InvalidInput, NotAllowed
from celeriac.ids import DEFAULT_TENANT, CallId, RunId, ThreadId, UserId
from celeriac.scripted import ScriptedModel, Turn, say
from celeriac.states import Phase, RunStatus
from celeriac_storage import deadlines, erasing, mailbox, principals, pruning
from celeriac_storage.audit import audit
from celeriac_storage.audit_checks import hashes
from celeriac_storage.audit_checks import workflows as workflow_checks
from celeriac_tasks.live_flow import FlowCache
from celeriac_tasks.step import take_step
from tests.family import Family, ended, let_time_pass
from tests.integration.conftest import Cli
from tests.integration.test_audit import damage
from tests.worker_in_process import Worker


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(effect="external")
def ship(sku: str) -> str:
    """Ship something."""
    return f"{sku} is shipped"


@tool(effect="none")
def refuse(why: str) -> str:
    """Never do it."""
    raise ToolError(why)


@tool(effect="external", approval=Approval())
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="external")
def deliver(sku: str) -> str:
    """Deliver something, with an end that nobody sees."""
    raise ConnectionError(f"no answer about {sku}")


REFUSALS: list[str] = []


@tool(effect="external")
def knock(door: str) -> str:
    """Knock, until nobody refuses any more."""
    if REFUSALS:
        raise ToolError(REFUSALS.pop(0))
    return f"{door} is open"


writer = Agent("writer", ScriptedModel([say("a poem")]))


@workflow(tools=[double, ship])
async def two_steps(ctx: WorkflowContext, number: int) -> str:
    doubled = await ctx.activity(double, number=number)
    return await ctx.activity(ship, sku=f"sku-{doubled}")


@workflow(tools=[double])
async def fan(ctx: WorkflowContext, count: int) -> int:
    return sum(await ctx.gather(*[ctx.activity(double, number=n) for n in range(count)]))


@workflow(tools=[refuse])
async def careful(ctx: WorkflowContext, catches: bool) -> str:
    try:
        return await ctx.activity(refuse, why="not today")
    except ActivityFailed as failed:
        if not catches:
            raise
        return f"{failed.kind}: {failed.message}"


@workflow(tools=[knock])
async def persistent(ctx: WorkflowContext) -> str:
    return await ctx.activity(knock, door="front", retries=2)


@workflow(tools=[pay])
async def paying(ctx: WorkflowContext, amount: int) -> str:
    try:
        return await ctx.activity(pay, amount=amount)
    except ActivityFailed as failed:
        return failed.kind


@workflow(tools=[deliver, pay])
async def delivering(ctx: WorkflowContext) -> list[str]:
    return list(await ctx.gather(ctx.activity(pay, amount=1), ctx.activity(deliver, sku="A-1")))


@workflow(tools=[double])
async def deciding(ctx: WorkflowContext) -> dict[str, Any]:
    decision = await ctx.wait_approval(
        "launch it", {"at": "noon"}, approval=Approval(roles=["ops"])
    )
    return {"is_approved": decision.is_approved, "arguments": decision.arguments}


@workflow
async def sleepy(ctx: WorkflowContext) -> str:
    await ctx.sleep(timedelta(hours=1))
    return "awake"


@workflow
async def listening(ctx: WorkflowContext) -> list[Any]:
    return [await ctx.wait_event("paid"), await ctx.wait_event("paid")]


@workflow
async def impatient(ctx: WorkflowContext) -> Any:
    for _ in range(3):
        try:
            return await ctx.wait_event("paid", timeout=timedelta(hours=1))
        except TimeoutError:
            pass
    return "never paid"


@workflow(agents=[writer, two_steps], model=ScriptedModel([say("an answer")]))
async def manager(ctx: WorkflowContext) -> list[Any]:
    poem, shipped = await ctx.gather(ctx.child(writer, "write"), ctx.child(two_steps, 1))
    return [poem, shipped, await ctx.model("What now?")]


@workflow(tools=[double])
async def generations(ctx: WorkflowContext, left: int) -> str:
    await ctx.activity(double, number=left)
    if left:
        ctx.continue_as_new(left - 1)
    return "the last one"


class Guess(BaseModel):
    word: str
    chance: float


def guesses(messages: Sequence[ModelMessage]) -> Turn:
    """First words, then JSON, as the model is asked back."""
    if "cannot be used" not in str(messages[-1]):
        return say("perhaps a cat")
    return say('```json\n{"word": "cat", "chance": 0.5}\n```')


@workflow(model=ScriptedModel(guesses))
async def guessing(ctx: WorkflowContext) -> list[Any]:
    guess = await ctx.model("What is it?", output=Guess, instructions="Be brief.")
    return [guess.word, guess.chance]


CHANGED: list[str] = []
DURING: list[Callable[[], None]] = []


@workflow(tools=[double])
async def changing(ctx: WorkflowContext) -> str:
    if CHANGED:
        await ctx.activity(double, number=1)
    await ctx.sleep(60)
    return "slept"


@workflow(tools=[pay])
async def hasty(ctx: WorkflowContext) -> str:
    left = ctx.activity(pay, amount=1)
    await ctx.sleep(1)
    return "left" if not left.is_kept else "done"


@workflow(tools=[double])
async def racing(ctx: WorkflowContext) -> list[int]:
    first, second = ctx.activity(double, number=1), ctx.activity(double, number=2)
    results = [await first]
    if DURING:
        DURING.pop()()
    return [*results, await second]


@workflow(tools=[double])
async def everything(ctx: WorkflowContext, number: int) -> dict[str, Any]:
    async def branch(start: int) -> int:
        doubled = await ctx.activity(double, number=start)
        return await ctx.activity(double, number=doubled)

    at = ctx.now()
    both = await ctx.gather(branch(number), branch(number + 1))
    await ctx.sleep(60)
    last = await ctx.activity(double, number=sum(both))
    return {"last": last, "is_later": ctx.now() >= at}


@workflow(tools=[ship])
async def telling(ctx: WorkflowContext, secret: str) -> str:
    shipped: str = await ctx.activity(ship, sku=secret)
    await ctx.wait_event("paid")
    return shipped


@workflow(tools=[double])
async def audited(ctx: WorkflowContext) -> str:
    await ctx.activity(double, number=1)
    await ctx.wait_event("paid")
    await ctx.sleep(3600)
    return "never"


WORKFLOWS: list[Agent] = [
    two_steps, fan, careful, paying, deciding, sleepy, listening, impatient, manager, writer,
    generations, changing, hasty, racing, everything, audited, guessing, telling, delivering,
    persistent,
]  # fmt: skip


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, WORKFLOWS)
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


def tell(family: Family, run_id: str, data: Any, key: str | None = None) -> None:
    with family.database.begin() as connection:
        mailbox.send(connection, RunId(run_id), "paid", data, UserId("shop"), key)


def test_a_workflow_goes_from_activity_to_activity(family: Family) -> None:
    run_id = family.start("two_steps", 21)
    assert family.run(run_id).phase is Phase.WAITING_CODE
    family.step(run_id)
    waiting = family.run(run_id)
    assert (waiting.status, waiting.phase) == (RunStatus.PAUSED, Phase.WAITING_ACTIVITY)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "sku-42 is shipped")
    assert family.events(run_id) == [
        "run.created", "activity.started", "run.paused", "activity.completed", "run.woken",
        "activity.started", "run.paused", "activity.completed", "run.woken", "run.completed",
    ]  # fmt: skip


def test_a_group_wakes_its_workflow_once(family: Family) -> None:
    run_id = family.start("fan", 20)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, 380)
    assert family.events(run_id).count("run.woken") == 1
    assert [step.kind for step in family.run(run_id).steps] == ["flow", "flow"]


@pytest.mark.parametrize(
    ("catches", "expected"),
    [
        (True, (RunStatus.COMPLETED, "tool_error: not today")),
        (False, (RunStatus.FAILED, "activity_failed")),
    ],
)
def test_a_failed_activity_is_raised_in_the_code(
    family: Family, catches: bool, expected: object
) -> None:
    run_id = family.start("careful", catches)

    family.go_on()

    assert ended(family, run_id) == expected


# features: 004-03, 004-05
def test_each_attempt_of_an_activity_is_logged_with_its_begin_and_its_end(family: Family) -> None:
    REFUSALS.extend(["asleep", "busy"])
    run_id = family.start("persistent", None)
    for _ in range(3):
        family.go_on()
        family.worker.process.flows = FlowCache()  # the next attempt is counted by the log alone
        let_time_pass(family)
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "front is open")
    attempts = family.rows(
        "SELECT made_by, result, error ->> 'message' FROM celeriac.activities"
        " WHERE run_id = %s AND kind = 'activity' ORDER BY number",
        run_id,
    )
    assert [row[1:] for row in attempts] == [
        (None, "asleep"), (None, "busy"), ("front is open", None),
    ]  # fmt: skip
    told = [
        (event.type, event.data["made_by"])
        for event in family.client.events(run_id)
        if event.data.get("kind") == "activity"
    ]
    ends = ["activity.failed", "activity.failed", "activity.completed"]
    assert told == [
        each
        for (made_by, *_), end in zip(attempts, ends, strict=True)
        for each in (("activity.started", made_by), (end, made_by))
    ]
    made = family.rows(
        "SELECT made_by, state, outcome FROM celeriac.activities"
        " JOIN celeriac.effects ON effects.run_id = made_by"
        " JOIN celeriac.effect_attempts ON effect_attempts.run_id = made_by"
        " WHERE activities.run_id = %s ORDER BY number, entry",
        run_id,
    )
    states = ["failed", "failed", "committed"]
    assert made == [
        each
        for (made_by, *_), state in zip(attempts, states, strict=True)
        for each in ((made_by, state, "started"), (made_by, state, state))
    ]
    waits = family.rows(
        "SELECT (arguments ->> 'seconds')::float FROM celeriac.activities"
        " WHERE run_id = %s AND kind = 'timer' ORDER BY number",
        run_id,
    )
    for (wait,), least in zip(waits, [1.0, 2.0], strict=True):
        assert least <= wait <= 2 * least


def test_an_activity_waits_for_people_as_any_call(family: Family) -> None:
    run_id = family.start("paying", 5)
    family.go_on()
    (proposal,) = family.client.approvals()

    family.client.approve(proposal.approval_id, by="bob")
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "paid 5")


def test_a_rejected_activity_is_raised_in_the_code(family: Family) -> None:
    run_id = family.start("paying", 5)
    family.go_on()
    (proposal,) = family.client.approvals()

    family.client.reject(proposal.approval_id, by="bob", reason="too much")
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "rejected")


def test_a_workflow_sleeps_without_a_worker(family: Family) -> None:
    run_id = family.start("sleepy", None)
    family.go_on()
    assert family.run(run_id).phase is Phase.WAITING_ACTIVITY

    let_time_pass(family)
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "awake")


def test_events_wait_for_the_code_and_the_code_for_events(family: Family) -> None:
    run_id = family.start("listening", None)
    tell(family, run_id, {"cents": 1}, key="first")
    tell(family, run_id, {"cents": 1}, key="first")
    family.go_on()
    assert family.run(run_id).phase is Phase.WAITING_ACTIVITY

    tell(family, run_id, {"cents": 2})
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, [{"cents": 1}, {"cents": 2}])


def test_an_event_is_sent_and_a_log_is_shown_on_the_command_line(family: Family, cli: Cli) -> None:
    run_id = family.start("audited", None)
    family.go_on()
    shown = json.loads(cli("show", run_id, "--json").stdout)
    assert [(each["kind"], each["name"], each["state"]) for each in shown["activities"]] == [
        ("activity", "double", "completed"),
        ("event", "paid", "open"),
    ]
    assert "send-event" in cli("show", run_id).stdout
    assert run_id in cli("runs").stdout
    assert shown["activities"][0]["run_id"] not in cli("runs").stdout
    assert shown["activities"][0]["run_id"] in cli("runs", "--activities").stdout

    for _ in range(2):
        told = cli("send-event", run_id, "paid", '{"cents": 5}', "--key", "k", "--json")
        assert json.loads(told.stdout) == {"run_id": run_id, "status": "queued"}
    family.go_on()

    (_, event, timer) = family.run(run_id).activities
    assert (event.result, timer.state, timer.is_awaited) == ({"cents": 5}, "open", True)
    assert cli("send-event", family.start("writer", "x"), "paid").exit_code != 0


def test_an_event_that_comes_when_its_time_is_up_is_for_the_next_who_waits(family: Family) -> None:
    run_id = family.start("impatient", None)
    family.go_on()
    let_time_pass(family)
    assert family.run(run_id).status is RunStatus.QUEUED
    tell(family, run_id, "late")
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "late")


def test_a_workflow_starts_agents_and_workflows_and_asks_its_model(family: Family) -> None:
    run_id = family.start("manager", None)

    family.go_on()

    assert ended(family, run_id) == (
        RunStatus.COMPLETED,
        ["a poem", "sku-2 is shipped", "an answer"],
    )
    children = sorted(child.agent for child in family.run(run_id).children)
    assert children == ["manager", "two_steps", "writer"]  # its activities are its log


def test_a_workflow_is_erased_and_pruned_with_all_that_it_asked_for(family: Family) -> None:
    run_id = family.start("telling", "ZANZIBAR", thread_id="t1")
    family.go_on()
    tell(family, run_id, "ZANZIBAR")
    family.go_on()
    assert ended(family, run_id) == (RunStatus.COMPLETED, "ZANZIBAR is shipped")

    scope = erasing.Scope(DEFAULT_TENANT, thread_id=ThreadId("t1"))
    erasing.erase(family.database, scope, UserId("root"))

    for table in ("runs", "effects", "activities", "mailbox", "events"):
        assert not family.rows(
            f"SELECT 1 FROM celeriac.{table} AS row WHERE row::text LIKE '%%ZANZIBAR%%'"
        )
    assert family.violations() == []
    pruning.prune(family.database, pruning.Policy(older_than_days=0))
    assert family.rows("SELECT count(*) FROM celeriac.activities") == [(0,)]
    assert family.rows("SELECT count(*) FROM celeriac.runs WHERE pruned_at IS NULL") == [(0,)]


def test_an_answer_has_the_type_that_the_code_asks_for(family: Family) -> None:
    run_id = family.start("guessing", None)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, ["cat", 0.5])
    (question,) = family.children(run_id)
    assert family.events(question).count("model.questioned") == 1


def test_a_workflow_begins_again_as_new(family: Family) -> None:
    run_id = family.start("generations", 2)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "the last one")
    assert family.rows(
        "SELECT generation, number, arguments FROM celeriac.activities WHERE run_id = %s"
        " ORDER BY 1, 2",
        run_id,
    ) == [(0, 0, {"number": 2}), (1, 0, {"number": 1}), (2, 0, {"number": 0})]


def grant(family: Family, person: str, role: str) -> None:
    with family.database.begin() as connection:
        principals.set_principal(
            connection,
            DEFAULT_TENANT,
            UserId(person),
            roles=[role],
            permissions={"*": []},
            is_disabled=False,
            by=UserId("root"),
        )


def test_an_activity_that_needs_a_person_is_found_from_the_command_line(
    family: Family, cli: Cli
) -> None:
    run_id = family.start("delivering", None)
    family.go_on()
    (lost,) = [each.run_id for each in family.run(run_id).activities if each.name == "deliver"]

    assert lost is not None
    assert lost in cli("runs", "--status", "needs_attention").stdout
    assert lost not in cli("runs", "--status", "paused").stdout
    told = " ".join(cli("show", run_id).stdout.split())
    assert f"for activity deliver: run {lost}, which is needs_attention, waiting_tool" in told
    assert f"and 1 more; `celeriac show {lost}` says more" in told
    family.client.resolve(lost, CallId("0.0"), TookEffect("left at the door"), by="bob")
    (proposal,) = family.client.approvals()
    family.client.approve(proposal.approval_id, by="bob")
    family.go_on()
    assert ended(family, run_id) == (RunStatus.COMPLETED, ["paid 1", "left at the door"])


def test_what_a_tool_cannot_return_is_no_result_that_a_person_can_tell(
    family: Family, cli: Cli
) -> None:
    run_id = family.start("delivering", None)
    family.go_on()
    (lost,) = [each.run_id for each in family.run(run_id).activities if each.name == "deliver"]
    assert lost is not None
    events = family.events(lost)
    said = "the result of deliver does not fit its type, and nothing was written: 5 is not a string"

    with pytest.raises(InvalidInput, match=said):
        family.client.resolve(lost, CallId("0.0"), TookEffect(5), by="bob")
    refused = cli("resolve", lost, "0.0", "--committed", "5")

    assert refused.exit_code == 1
    assert said in " ".join(refused.stderr.split())
    assert family.run(lost).status is RunStatus.NEEDS_ATTENTION
    assert (family.states(lost), family.events(lost)) == (["unknown"], events)
    family.client.cancel(run_id)


def test_a_decision_that_is_waited_for_is_named_by_its_intent(family: Family, cli: Cli) -> None:
    run_id = family.start("deciding", None)
    family.go_on()
    (proposal,) = family.client.approvals()

    told = " ".join(cli("show", run_id).stdout.split())

    assert f"for a decision about launch it: run {proposal.run_id}, which is paused," in told
    assert f"`celeriac show {proposal.run_id}` says more" in told
    family.client.cancel(run_id, by="bob")
    family.go_on()


def test_people_decide_for_the_code(family: Family) -> None:
    run_id = family.start("deciding", None)
    family.go_on()
    (proposal,) = family.client.approvals()
    assert (proposal.intent, proposal.requirement["roles"]) == ("launch it", ["ops"])
    with pytest.raises(NotAllowed):
        family.client.approve(proposal.approval_id, by="bob")
    grant(family, "bob", "ops")

    family.client.approve(proposal.approval_id, by="bob")
    family.go_on()

    decided = {"is_approved": True, "arguments": {"at": "noon"}}
    assert ended(family, run_id) == (RunStatus.COMPLETED, decided)


def test_a_refusal_is_a_decision_too(family: Family) -> None:
    run_id = family.start("deciding", None)
    family.go_on()
    (proposal,) = family.client.approvals()
    grant(family, "bob", "ops")

    family.client.reject(proposal.approval_id, by="bob", reason="not at noon")
    family.go_on()

    assert ended(family, run_id) == (
        RunStatus.COMPLETED,
        {"is_approved": False, "arguments": {}},
    )


def test_a_cold_replay_does_the_same(family: Family) -> None:
    warm, cold = family.start("everything", 3), family.start("everything", 3)
    family.go_on(but=["nobody"])
    for run_id in (warm, cold):
        assert family.run(run_id).phase is Phase.WAITING_ACTIVITY
    let_time_pass(family)
    family.worker.process.flows = FlowCache(capacity=0)
    family.go_on()

    assert ended(family, cold) == ended(family, warm)
    # Which branch came first is chance, and so are their numbers; what they asked for is not.
    assert asked(family, cold) == asked(family, warm)


def asked(family: Family, run_id: str) -> list[tuple[Any, ...]]:
    return sorted((entry[1:4] for entry in log(family, run_id)), key=str)


def log(family: Family, run_id: str) -> list[tuple[Any, ...]]:
    return family.rows(
        "SELECT number, kind, name, arguments, told, error FROM celeriac.activities"
        " WHERE run_id = %s AND kind <> 'value' ORDER BY number",
        run_id,
    )


def test_code_that_asks_for_something_else_needs_a_person(family: Family) -> None:
    run_id = family.start("changing", None)
    family.go_on()
    CHANGED.append("now")
    family.worker.process.flows = FlowCache()
    let_time_pass(family)
    family.go_on()
    stuck = family.run(run_id)
    assert (stuck.status, stuck.phase) == (RunStatus.NEEDS_ATTENTION, Phase.WAITING_CODE)
    assert isinstance(stuck.error, dict)
    assert "timer sleep" in str(stuck.error["message"])
    assert "activity double" in str(stuck.error["message"])

    CHANGED.clear()
    family.client.retry(run_id)
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "slept")


def test_the_end_of_a_workflow_ends_what_it_left_open(family: Family) -> None:
    run_id = family.start("hasty", None)
    family.step(run_id)
    let_time_pass(family)
    family.step(run_id)

    assert ended(family, run_id) == (RunStatus.COMPLETED, "left")
    assert family.rows("SELECT status FROM celeriac.runs WHERE parent_run_id = %s", run_id) == [
        ("cancelled",)
    ]


def test_a_cancelled_workflow_cancels_its_activities(family: Family) -> None:
    run_id = family.start("paying", 5)
    family.go_on()

    assert family.client.cancel(run_id) is RunStatus.CANCELLED

    assert family.rows("SELECT status FROM celeriac.runs WHERE parent_run_id = %s", run_id) == [
        ("cancelled",)
    ]


def test_a_cancelled_activity_is_raised_in_the_code(family: Family) -> None:
    run_id = family.start("paying", 5)
    family.go_on()
    ((activity,),) = family.rows("SELECT run_id FROM celeriac.runs WHERE kind = 'activity'")

    family.client.cancel(activity)
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, "child_cancelled")


def test_a_deadline_ends_a_workflow_and_what_it_waits_for(family: Family) -> None:
    run_id = family.start("paying", 5, deadline=timedelta(hours=1))
    family.go_on()
    family.execute("UPDATE celeriac.runs SET deadline_at = clock_timestamp() WHERE run_id = %s",
                   run_id)  # fmt: skip
    with family.database.begin() as connection:
        assert deadlines.end(connection, run_id)

    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    assert family.rows("SELECT status FROM celeriac.runs WHERE kind = 'activity'") == [
        ("cancelled",)
    ]


def test_a_workflow_has_no_model_to_talk_to(family: Family) -> None:
    run_id = family.start("sleepy", None)

    with pytest.raises(Conflict, match="hears no words"):
        family.client.say(run_id, "hello")
    with pytest.raises(Conflict, match="waits for no user"):
        family.client.interrupt(run_id)


@pytest.mark.parametrize("agent", ["telling", telling])
def test_half_a_character_is_refused_before_anything_is_written(
    family: Family, agent: str | Agent
) -> None:
    with pytest.raises(InvalidInput, match="lone surrogate"):
        family.client.start(agent, "a \ud800 b")

    assert family.rows("SELECT FROM celeriac.runs") == []


def test_children_beyond_the_limit_end_their_workflow(family: Family) -> None:
    run_id = family.start("manager", None, limits=Limits(children=1))

    family.go_on()

    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    assert family.children(run_id) == []


def test_an_end_that_comes_in_during_a_turn_is_part_of_it(family: Family) -> None:
    run_id = family.start("racing", None)
    family.step(run_id)
    first, second = family.rows(
        "SELECT run_id FROM celeriac.runs WHERE parent_run_id = %s ORDER BY parent_call_id", run_id
    )
    family.step(first[0])
    DURING.append(lambda: family.step(second[0]))  # called by the code of the next turn
    family.step(run_id)

    assert ended(family, run_id) == (RunStatus.COMPLETED, [2, 4])
    assert [step.step for step in family.run(run_id).steps] == [0, 1]


def test_of_two_turns_with_one_message_one_is_dropped(
    family: Family, database_url: str, broker_url: str
) -> None:
    other = Worker(database_url, broker_url, WORKFLOWS)
    other.process.start()
    try:
        run_id = family.start("fan", 5)
        with ThreadPoolExecutor(2) as threads:
            list(
                threads.map(
                    lambda worker: take_step(worker, run_id, 0),
                    [family.worker.process, other.process],
                )
            )
        assert len(log(family, run_id)) == 5
        assert family.rows("SELECT count(*) FROM celeriac.runs WHERE kind = 'activity'") == [(5,)]
        family.go_on()
    finally:
        other.process.stop()


@pytest.mark.parametrize(
    ("check", "sql", "detail"),
    [
        ("ENTRY_NUMBERS", "DELETE FROM celeriac.activities WHERE number = 0", "generation 0"),
        (
            "MADE_BY",
            "UPDATE celeriac.activities SET made_by = 'elsewhere' WHERE number = 0",
            "entry 0.0 is made by elsewhere",
        ),
        (
            "ENTRY_ENDS",
            """UPDATE celeriac.activities SET result = NULL, result_hash = NULL,
                error = '{"kind": "x", "message": "y"}' WHERE number = 0""",
            "entry 0.0 has an error",
        ),
        (
            "WAITING_WORKFLOWS",
            "UPDATE celeriac.activities SET wait_group = NULL WHERE told IS NULL",
            "nothing that its code waits for is open",
        ),
        ("ENTRY_TIMERS", "UPDATE celeriac.timers SET fired_at = now()", "entry 0.2 goes on"),
        (
            "ENTRY_HASHES",
            "UPDATE celeriac.activities SET result = '3' WHERE number = 0",
            "entry 0.0",
        ),
        (
            "ENTRY_HASHES",
            "UPDATE celeriac.mailbox SET body = '\"another\"'",
            "mail 1",
        ),
        (
            "TAKEN_MAIL",
            "UPDATE celeriac.mailbox SET taken_number = 0 WHERE taken_number IS NOT NULL",
            "mail 1 has ended entry 0.0",
        ),
    ],
)
def test_each_kind_of_damage_to_a_log_is_seen(
    database_url: str, broker_url: str, check: str, sql: str, detail: str
) -> None:
    family = Family(database_url, broker_url, WORKFLOWS)
    try:
        run_id = family.start("audited", None)
        tell(family, run_id, "it")
        family.go_on()
        assert family.violations() == []

        damage(family.database, sql)

        found = [
            violation
            for violation in audit(family.database)
            if violation.detail.startswith(
                getattr(hashes if check == "ENTRY_HASHES" else workflow_checks, check).name
            )
        ]
        assert any(detail in violation.detail for violation in found)
    finally:
        family.close()
