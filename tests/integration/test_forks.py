"""Runs that go on from where another one stood: what they are shown, do again, and leave alone."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from threading import Barrier

import pytest

from celeriac import Agent, Client, ContextPolicy, Contract, Limits, ToolContext, tool
from celeriac.client import NotDone, TookEffect
from celeriac.errors import Conflict, InvalidInput, UnknownRun
from celeriac.ids import DEFAULT_TENANT, RunId, ThreadId
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac_storage import deadlines, deeds, erasing
from celeriac_storage.database import Database
from celeriac_storage.erasing import Scope
from tests.integration.conftest import Cli
from tests.retold import BROKEN, TURNS, Retold
from tests.steps_by_hand import ALICE
from tests.worker_in_process import Worker


@pytest.fixture
def beside(database: Database, broker_url: str) -> Iterator[Callable[[Agent], Worker]]:
    """A second worker, which has another agent, or other code for the same."""
    with ExitStack() as stack:

        def start(agent: Agent) -> Worker:
            worker = Worker(database.url, broker_url, [agent])
            worker.process.start()
            stack.callback(worker.process.stop)
            return worker

        yield start


# Forks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "question", "orders"), [(0, 0, 2), (1, 1, 2), (2, 1, 2), (3, 2, 2), (4, 2, 1)]
)
def test_a_fork_shows_its_model_what_the_origins_was_shown_at_that_step(
    retold: Retold, step: int, question: int, orders: int
) -> None:
    origin = retold.tell(*TURNS)
    assert (retold.client.get(origin).step, len(retold.orders)) == (5, 1)
    shown = list(retold.asked)
    before = retold.client.get(origin)

    started = retold.client.fork(origin, step)
    fork = retold.go_on(started.run_id, *TURNS[question:])

    assert retold.outcome(fork) == ("completed", "completed")
    assert retold.asked[len(shown) :] == shown[question:]
    run = retold.client.get(fork)
    assert run.thread_id != before.thread_id
    assert (run.forked_from, run.forked_step) == (origin, step)
    assert len(retold.orders) == orders
    assert len({key for _, key in retold.orders}) == orders  # each under a key of its own
    after = retold.client.get(origin)
    assert after.forks == [fork]
    assert (after.status, after.effects, after.step) == (before.status, before.effects, 5)


def test_nothing_that_the_origin_did_is_an_effect_of_its_fork(retold: Retold) -> None:
    origin = retold.tell(*TURNS)

    fork = retold.go_on(retold.client.fork(origin, 4).run_id, say("once more"))

    assert retold.client.get(fork).effects == []
    with pytest.raises(Conflict, match="nothing is left to undo"):
        retold.client.rollback(fork)
    with retold.database.connect() as connection:
        own = connection.exec_driver_sql(
            "SELECT role FROM celeriac.messages WHERE run_id = %s", (fork,)
        ).all()
    assert [row[0] for row in own] == ["assistant"]  # the rest is read where it is


def test_a_step_that_a_run_has_not_come_to_cannot_be_forked(retold: Retold) -> None:
    origin = retold.tell(*TURNS)

    for step in (-1, 5, 99, True):
        with pytest.raises(InvalidInput, match="it can at the steps 0 to 4"):
            retold.client.fork(origin, step)
    with pytest.raises(UnknownRun):
        retold.client.fork("nosuch", 0)


def test_forks_of_forks_go_on_with_the_whole_conversation(retold: Retold) -> None:
    origin = retold.tell(*TURNS)
    first = retold.go_on(retold.client.fork(origin, 3).run_id, call("look", shelf="B"), say("b"))

    retold.asked.clear()
    at_its_beginning = retold.client.fork(first, 0).run_id
    among_its_calls = retold.client.fork(first, 1).run_id
    at_its_end = retold.client.fork(first, 4).run_id
    for run_id in (at_its_beginning, among_its_calls, at_its_end):
        retold.go_on(run_id, say("done"))

    ordered = ["hello", {"shelf": "A"}, "A: empty", {"what": "ink"}]
    assert [retold.texts(asked) for asked in retold.asked] == [
        [*ordered, "ink ordered"],
        [*ordered, "ink ordered"],
        [*ordered, "ink ordered", {"shelf": "B"}, "B: empty"],
    ]


def test_the_next_run_of_a_forks_thread_is_told_all_that_came_before(retold: Retold) -> None:
    retold.tell(say("hi"), thread_id="chat")
    origin = retold.tell(*TURNS, thread_id="chat")
    retold.tell(say("never shown"), thread_id="chat")
    started = retold.client.fork(origin, 4)
    retold.go_on(started.run_id, say("forked"))

    retold.tell(say("bye"), thread_id=started.thread_id)

    before = ["hello", "hi", "hello", {"shelf": "A"}, "A: empty", {"what": "ink"}, "ink ordered"]
    assert retold.texts(retold.asked[-1]) == [*before, "forked", "hello"]


def test_of_a_long_conversation_a_fork_keeps_what_opened_its_origin(
    made: Callable[..., Retold],
) -> None:
    retold = made(context=ContextPolicy(2_000))
    turns = [call("order", what=f"{number}{'x' * 1_500}") for number in range(6)]
    origin = retold.tell(*turns, say("done"))
    shown = retold.asked[-1]

    retold.go_on(retold.client.fork(origin, 12).run_id, say("done again"))

    assert retold.asked[-1] == shown
    assert retold.texts(shown)[0] == "hello"
    assert len(shown) < 13


def test_a_call_that_people_decide_is_proposed_anew(retold: Retold) -> None:
    origin = retold.tell(call("pay", amount=7), say("paid"))
    (proposal,) = retold.client.approvals(run_id=origin)
    retold.client.set_principal("bob", roles=[])
    retold.client.approve(proposal.approval_id, by="bob")
    retold.go_on(origin)

    fork = retold.go_on(retold.client.fork(origin, 1).run_id)

    assert retold.client.get(fork).phase == "waiting_approval"
    (again,) = retold.client.approvals(run_id=fork)
    assert (again.arguments, again.status) == ({"amount": 7}, "pending")
    assert len(retold.orders) == 1
    retold.client.approve(again.approval_id, by="bob")
    retold.go_on(fork, say("paid twice"))
    assert retold.outcome(fork) == ("completed", "completed")
    assert [what for what, _ in retold.orders] == ["paid 7", "paid 7"]


# Retries ----------------------------------------------------------------------------------------


def test_a_failed_run_is_retried_from_its_last_good_checkpoint(retold: Retold) -> None:
    failed = retold.tell(*TURNS[:2], BROKEN)
    assert retold.outcome(failed) == ("failed", "model_failed")
    before = retold.client.get(failed)
    shown = retold.asked[-1]

    retried = retold.client.retry(failed, by="alice")
    assert retried.status == "queued"
    retold.go_on(retried.run_id, say("done"))

    assert retold.outcome(retried.run_id) == ("completed", "completed")
    assert retold.asked[-1] == shown
    assert len(retold.orders) == 1
    run = retold.client.get(retried.run_id)
    assert (run.thread_id, run.forked_from, run.forked_step) == (before.thread_id, failed, 4)
    after = retold.client.get(failed)
    assert (after.status, after.error, after.forks) == ("failed", before.error, [run.run_id])
    assert [event.type for event in retold.client.events(failed)][-1] == "run.failed"


def test_a_failed_run_is_retried_once_however_often_it_is_asked_for(retold: Retold) -> None:
    failed = retold.tell(BROKEN)
    first = retold.client.retry(failed)
    retold.go_on(first.run_id, BROKEN)

    again = retold.client.retry(failed)

    assert (again.run_id, again.status) == (first.run_id, "failed")
    third = retold.client.retry(first.run_id)
    assert third.run_id not in (failed, first.run_id)
    retold.go_on(third.run_id, say("at last"))
    assert retold.outcome(third.run_id) == ("completed", "completed")
    assert retold.asked[-1] == retold.asked[0]


def test_a_retry_after_an_answer_that_ended_the_run_asks_the_model_again(
    made: Callable[..., Retold],
) -> None:
    retold = made(limits=Limits(tool_calls=1))
    two = Turn(calls=(ToolCall("order", {"what": "ink"}), ToolCall("order", {"what": "pens"})))
    failed = retold.tell(two)
    assert retold.outcome(failed) == ("failed", "limit_exceeded")

    retried = retold.client.retry(failed).run_id
    retold.go_on(retried, call("order", what="ink"), say("done"))

    assert retold.outcome(retried) == ("completed", "completed")
    assert [what for what, _ in retold.orders] == ["ink"]
    assert retold.asked[1] == retold.asked[0]


def test_a_retry_among_the_calls_of_a_response_makes_those_that_are_left(
    made: Callable[..., Retold],
) -> None:
    retold = made(limits=Limits(steps=2))
    two = Turn(calls=(ToolCall("order", {"what": "ink"}), ToolCall("order", {"what": "pens"})))
    failed = retold.tell(two)
    assert retold.outcome(failed) == ("failed", "limit_exceeded")
    assert [what for what, _ in retold.orders] == ["ink"]

    retried = retold.client.retry(failed).run_id
    retold.go_on(retried)

    assert [what for what, _ in retold.orders] == ["ink", "pens"]
    effects = retold.client.get(retried).effects
    assert [(each.call_id, each.arguments) for each in effects] == [("0.1", {"what": "pens"})]
    # It has used the limit up too, in counting anew.
    retold.go_on(retold.client.retry(retried).run_id, say("done"))
    assert retold.texts(retold.asked[-1])[-2:] == ["ink ordered", "pens ordered"]


def test_an_unknown_outcome_is_settled_before_a_retry_and_then_not_done_again(
    retold: Retold,
) -> None:
    scans = tuple(ToolCall("scan", {"shelf": shelf}) for shelf in "ABC")
    failed = retold.tell(Turn(calls=scans))
    retold.client.submit(failed, {"0.0": "ten"})
    fail_by_deadline(retold, failed)
    assert [each.state for each in retold.client.get(failed).effects] == [
        "committed", "unknown", "unknown",
    ]  # fmt: skip

    with pytest.raises(Conflict, match=r"call 0\.1 \(scan\).*celeriac resolve"):
        retold.client.retry(failed)
    retold.client.resolve(failed, "0.1", TookEffect("twenty"))
    retold.client.resolve(failed, "0.2", NotDone())
    retried = retold.client.retry(failed).run_id
    retold.go_on(retried)

    (again,) = retold.client.requested_calls(retried)
    assert again.arguments == {"shelf": "C"}
    retold.client.submit(retried, {again.call_id: "thirty"})
    retold.go_on(retried, say("sixty"))
    assert retold.texts(retold.asked[-1])[-3:] == ["ten", "twenty", "thirty"]
    assert [each.tool for each in retold.client.get(retried).effects] == ["scan"]


def test_a_retry_whose_calls_have_all_been_answered_asks_the_model(retold: Retold) -> None:
    failed = retold.tell(call("scan", shelf="A"))
    fail_by_deadline(retold, failed)
    retold.client.resolve(failed, "0.0", TookEffect("ten"))

    retried = retold.go_on(retold.client.retry(failed).run_id, say("ten"))

    assert retold.outcome(retried) == ("completed", "completed")
    assert retold.texts(retold.asked[-1]) == ["hello", {"shelf": "A"}, "ten"]
    assert retold.client.get(retried).effects == []


def test_what_a_person_has_refused_is_proposed_again_by_a_retry(retold: Retold) -> None:
    failed = retold.tell(call("pay", amount=7))
    (proposal,) = retold.client.approvals(run_id=failed)
    retold.client.set_principal("bob", roles=[])
    retold.client.reject(proposal.approval_id, "too much", by="bob")
    retold.go_on(failed)
    assert retold.outcome(failed) == ("failed", "rejected")

    retried = retold.go_on(retold.client.retry(failed).run_id)

    (again,) = retold.client.approvals(run_id=retried)
    retold.client.approve(again.approval_id, by="bob")
    retold.go_on(retried, say("paid"))
    assert retold.outcome(retried) == ("completed", "completed")
    assert [what for what, _ in retold.orders] == ["paid 7"]


def test_the_next_run_of_the_thread_is_told_what_a_retry_came_to(retold: Retold) -> None:
    failed = retold.tell(*TURNS[:2], BROKEN, thread_id="chat")
    between = retold.tell(say("between"), thread_id="chat")
    retried = retold.go_on(retold.client.retry(failed).run_id, say("retried"))
    assert "between" not in retold.texts(retold.asked[-1])  # it goes on from where it stood

    retold.tell(say("bye"), thread_id="chat")

    turn = ["hello", {"shelf": "A"}, "A: empty", {"what": "ink"}, "ink ordered", "retried"]
    assert retold.texts(retold.asked[-1]) == ["hello", "between", *turn, "hello"]
    assert retold.outcome(between) == retold.outcome(retried)


def test_a_retry_waits_for_its_turn_in_a_busy_thread(retold: Retold) -> None:
    failed = retold.tell(BROKEN, thread_id="chat")
    busy = retold.client.start("teller", "hello", thread_id="chat").run_id

    retried = retold.client.retry(failed)

    assert retried.status == "paused"
    retold.go_on(busy, say("first"))
    retold.go_on(retried.run_id, say("second"))
    assert retold.outcome(retried.run_id) == ("completed", "completed")


def test_only_a_run_that_has_failed_and_stands_by_itself_is_retried(retold: Retold) -> None:
    completed = retold.tell(*TURNS)
    undone = retold.tell(*TURNS[:2], BROKEN)
    undo = retold.client.rollback(undone).run_id
    refused: list[tuple[RunId, str]] = [
        (completed, "is completed"),
        (undone, f"was rolled back by run {undo}"),
        (undo, "does not need attention"),
    ]

    for run_id, why in refused:
        with pytest.raises(Conflict, match=why):
            retold.client.retry(run_id)
    with pytest.raises(Conflict, match="is a rollback"):
        retold.client.fork(undo, 0)
    assert retold.client.get(undone).forks == []


def test_two_who_retry_at_once_get_one_run(retold: Retold) -> None:
    failed = retold.tell(BROKEN)
    together = Barrier(4)

    def retry(_: int) -> RunId:
        with Client(retold.database.url) as client:
            client.get(failed)  # it is connected
            together.wait()
            return client.retry(failed).run_id

    with ThreadPoolExecutor(4) as threads:
        (retried,) = set(threads.map(retry, range(4)))

    assert retold.client.get(failed).forks == [retried]
    retold.go_on(retried, say("done"))


def test_a_child_is_not_retried_behind_its_parents_back(
    made: Callable[..., Retold], beside: Callable[[Agent], Worker]
) -> None:
    helper = Agent("helper", ScriptedModel([BROKEN]))
    retold = made(tools=[helper.as_tool()])
    worker = beside(helper)
    parent = retold.tell(call("helper", input="help me"))
    (child,) = retold.client.get(parent).children
    worker.step(child.run_id)
    retold.go_on(parent, say("alone then"))

    with pytest.raises(Conflict, match=f"celeriac fork {child.run_id} --at 0"):
        retold.client.retry(child.run_id)
    fork = retold.client.fork(child.run_id, 0).run_id

    assert retold.client.get(fork).parent is None
    worker.step(fork)
    assert retold.outcome(fork) == ("failed", "model_failed")


def test_a_retry_at_a_handoff_goes_back_to_who_decides_about_it(
    made: Callable[..., Retold], beside: Callable[[Agent], Worker]
) -> None:
    other = Agent("other", ScriptedModel([say("taken over")]))
    retold = made(tools=[other.as_handoff()])
    failed = retold.tell(call("hand_off_to_other", input="take over"))
    assert retold.client.get(failed).phase == "waiting_child"
    fail_by_deadline(retold, failed)
    worker = beside(other)

    with pytest.raises(Conflict, match="fork it at step 0"):
        retold.client.fork(failed, 1)
    retried = retold.client.retry(failed).run_id
    retold.go_on(retried, call("hand_off_to_other", input="take over"))
    (child,) = retold.client.get(retried).children
    worker.step(child.run_id)
    retold.go_on(retried)

    assert retold.outcome(retried) == ("completed", "completed")
    assert retold.asked[1] == retold.asked[0]


def test_to_a_contract_counts_what_a_retried_run_has_done_and_not_a_forked_one(
    made: Callable[..., Retold], database: Database
) -> None:
    @tool(effect="transactional")
    def book(context: ToolContext) -> str:
        """Write a row."""
        context.connection.exec_driver_sql("SELECT 1")
        return "booked"

    contract = Contract(require_observed_effect=["book"], max_corrections=0)
    retold = made(tools=[book], contract=contract)
    failed = retold.tell(call("book"), BROKEN)

    retried = retold.go_on(retold.client.retry(failed).run_id, say("booked"))
    forked = retold.go_on(retold.client.fork(failed, 2).run_id, say("booked"))

    assert retold.outcome(retried) == ("completed", "completed")
    assert retold.outcome(forked) == ("failed", "contract_unmet")
    with database.connect() as connection:
        assert [deed.tool for deed in deeds.load(connection, retried).deeds] == ["book"]


def test_a_tool_that_the_code_lacks_now_is_waited_for(
    retold: Retold, beside: Callable[[Agent], Worker]
) -> None:
    origin = retold.tell(*TURNS)
    fork = retold.client.fork(origin, 3).run_id
    bare = beside(Agent("teller", ScriptedModel([say("no")])))

    bare.step(fork)

    run = retold.client.get(fork)
    assert (run.status, run.step, len(retold.orders)) == ("needs_attention", 0, 1)
    assert "tool order of call 2.0" in str(run.error)
    assert retold.client.retry(fork).run_id == fork
    retold.go_on(fork, say("ordered twice"))
    assert len(retold.orders) == 2


def test_the_command_line_retries_and_forks(retold: Retold, cli: Cli) -> None:
    failed = retold.tell(*TURNS[:2], BROKEN)

    retried = json.loads(cli("retry", failed, "--json").stdout)
    again = cli("retry", failed).stdout
    fork = json.loads(cli("fork", failed, "--at", "2", "--json").stdout)
    said = cli("fork", failed, "--at", "0", "--as", "bob").stdout

    assert list(retried) == ["run_id", "status"]
    assert again == f"run {failed} goes on as run {retried['run_id']}, which is queued\n"
    assert list(fork) == ["run_id"]
    assert said.startswith(f"run {failed} is forked at step 0 as run r")
    assert cli("fork", failed, "--at", "9").exit_code == 1
    shown = json.loads(cli("show", fork["run_id"], "--json").stdout)
    assert (shown["forked_from"], shown["forked_step"]) == (failed, 2)
    with retold.database.connect() as connection:
        noted = connection.exec_driver_sql(
            "SELECT action, actor, detail FROM celeriac.audit WHERE object = %s ORDER BY audit_id",
            (failed,),
        ).all()
    assert [tuple(row) for row in noted] == [
        ("run.retry", "local", {"at_step": 4}),
        ("run.fork", "local", {"at_step": 2}),
        ("run.fork", "bob", {"at_step": 0}),
    ]


# Keeping and forgetting -------------------------------------------------------------------------


def test_what_a_fork_has_in_view_is_not_erased_under_it(retold: Retold, database: Database) -> None:
    retold.tell(say("hi"), thread_id="chat")
    origin = retold.tell(*TURNS, thread_id="chat")
    fork = retold.client.fork(origin, 4)
    chat = Scope(DEFAULT_TENANT, thread_id=ThreadId("chat"))

    with pytest.raises(Conflict, match=fork.run_id):
        erasing.erase(database, chat, ALICE)
    retold.go_on(fork.run_id, say("forked"))
    erasing.erase(database, chat, ALICE)

    # What was said in it is the fork's too, so the fork is forgotten with it.
    assert retold.client.get(fork.run_id).erased_at is not None
    retold.tell(say("anew"), thread_id=fork.thread_id)
    assert retold.texts(retold.asked[-1]) == ["hello"]
    for ask in (lambda: retold.client.fork(origin, 0), lambda: retold.client.retry(fork.run_id)):
        with pytest.raises(Conflict):
            ask()


def fail_by_deadline(retold: Retold, run_id: RunId) -> None:
    with retold.database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET deadline_at = clock_timestamp() - %s WHERE run_id = %s",
            (timedelta(seconds=1), run_id),
        )
        assert deadlines.end(connection, run_id)
    assert retold.outcome(run_id) == ("failed", "limit_exceeded")


def test_a_run_with_a_fork_is_pruned_after_it(retold: Retold) -> None:
    origin = retold.tell(*TURNS)
    fork = retold.go_on(retold.client.fork(origin, 4).run_id, say("forked"))

    def prune() -> list[str]:
        with retold.database.begin() as connection:
            found: list[str] = connection.exec_driver_sql(
                "SELECT celeriac.prune_runs(%s)", ([origin, fork],)
            ).scalar_one()
            return found

    assert prune() == [fork]
    assert prune() == [origin]
    with pytest.raises(Conflict, match="erased"):
        retold.client.fork(origin, 0)
