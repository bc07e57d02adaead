"""Old runs are taken away whole, while everything runs, and what they did is still refused."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from celeriac import Agent, Approval, Client
from celeriac.cli.main import app
from celeriac.client import TookEffect
from celeriac.errors import Conflict, InvalidInput, RunExists
from celeriac.ids import CallId, RunId, ThreadId
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import EffectState, RunStatus
from celeriac_storage import effects, lost_calls, pruning, requests
from celeriac_storage.audit import audit
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.pruning import Policy, Pruned
from tests.family import Family
from tests.steps_by_hand import ALICE, Hand
from tests.undo_shop import BOOK, LOOK, SHIP, TAKE, Shop, Tools
from tests.waiting import eventually

EVERYTHING = Policy(older_than_days=0)
MakeShop = Callable[..., Shop]
BULK = ["checkpoints", "messages", "effect_attempts", "model_calls"]


@pytest.fixture
def shops(database: Database, broker_url: str) -> Iterator[MakeShop]:
    with ExitStack() as stack:

        def make(*turns: Turn, **tools: Any) -> Shop:
            shop = Shop(database, broker_url, Tools(**tools), turns)
            stack.callback(shop.close)
            return shop

        yield make


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def rows(database: Database, table: str, run_id: str) -> list[Row[Any]]:
    with database.connect() as connection:
        return list(
            connection.exec_driver_sql(
                f"SELECT * FROM celeriac.{table} WHERE run_id = %s", (run_id,)
            )
        )


def pruned(database: Database) -> set[str]:
    with database.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT run_id FROM celeriac.runs WHERE pruned_at IS NOT NULL"
        )
        return {row[0] for row in found}


def whole_run(hand: Hand, thread_id: ThreadId | None = None) -> RunId:
    run_id = hand.start(thread_id=thread_id)
    hand.complete(run_id)
    return run_id


# What goes and what stays -------------------------------------------------------------------------


def test_a_pruned_run_leaves_what_it_did_and_no_payload(shops: MakeShop) -> None:
    shop = shops(LOOK, TAKE, SHIP)
    run_id = shop.done()
    before = {effect.call_id: effect for effect in rows(shop.database, "effects", run_id)}

    done = pruning.prune(shop.database, EVERYTHING)

    assert (done.runs, pruned(shop.database)) == (1, {run_id})
    assert {table: rows(shop.database, table, run_id) for table in BULK} == {
        table: [] for table in BULK
    }
    left = {effect.call_id: effect for effect in rows(shop.database, "effects", run_id)}
    assert [effect.tool for effect in left.values()] == ["take", "ship"]
    for call_id, effect in left.items():
        was = before[call_id]
        assert (effect.state, effect.fingerprint, effect.result_hash) == (
            "committed",
            was.fingerprint,
            was.result_hash,
        )
        assert (effect.arguments, effect.result, effect.error) == (None, None, None)
    (run,) = rows(shop.database, "runs", run_id)
    assert (run.status, run.outcome, run.input, run.result) == ("completed",) * 2 + (None,) * 2
    assert shop.violations() == []


def test_a_reader_of_a_pruned_run_gets_its_end(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    last = list(shop.client.events(run_id))[-1]

    pruning.prune(shop.database, EVERYTHING)

    assert list(shop.client.events(run_id, follow=True)) == [last]
    assert shop.client.get(run_id).status is RunStatus.COMPLETED


def test_what_failed_says_what_kind_of_failure_it_was_and_no_more(hand: Hand) -> None:
    run_id = hand.start()
    hand.poisoned(run_id)
    with hand.database.begin() as connection:
        requests.request_cancel(connection, run_id, ALICE)

    pruning.prune(hand.database, EVERYTHING)

    (event,) = rows(hand.database, "events", run_id)
    assert event.type == "run.cancelled"
    assert audit(hand.database) == []


def test_a_decision_stays_and_says_who_but_not_what_about(shops: MakeShop) -> None:
    shop = shops(TAKE, approval=Approval(checklist=["Is it there?"]))
    run_id = shop.worker.start("shop")
    shop.go_on(run_id)
    (proposal,) = shop.client.approvals(by="bob")
    shop.client.approve(
        proposal.approval_id, by="bob", reason="by phone", answers={"Is it there?": "yes"}
    )
    shop.go_on(run_id)

    pruning.prune(shop.database, EVERYTHING)

    (decision,) = shop.rows("SELECT * FROM celeriac.approval_decisions")
    assert (decision.reviewer, decision.reason, decision.answers) == ("bob", "(erased)", {})
    (kept,) = shop.rows("SELECT * FROM celeriac.approvals")
    assert (kept.status, kept.arguments, kept.intent) == ("approved", None, "(erased)")
    assert shop.violations() == []


# Late duplicates ----------------------------------------------------------------------------------


def test_what_comes_late_to_a_pruned_run_is_refused(shops: MakeShop) -> None:
    shop = shops(SHIP)
    run_id = shop.done()
    pruning.prune(shop.database, EVERYTHING)
    (before,) = rows(shop.database, "runs", run_id)

    with pytest.raises(RunExists):
        shop.client.start("shop", "hello", run_id=run_id)
    with pytest.raises(Conflict, match="erased"):
        shop.client.rollback(run_id, by="alice")
    with pytest.raises(Conflict, match="erased"):
        shop.client.resolve(run_id, CallId("0.0"), TookEffect("again"), by="alice")
    with pytest.raises(Conflict):
        shop.client.cancel(run_id, by="alice")
    shop.worker.step(run_id)  # a message from the past

    assert len(shop.tools.carrier.shipped) == 1
    assert rows(shop.database, "runs", run_id) == [before]
    assert shop.violations() == []


def test_a_word_said_again_under_its_key_is_still_noticed(hand: Hand) -> None:
    thread_id = ThreadId("t1")
    run_id = hand.start(thread_id=thread_id)
    client = Client(hand.database.url)
    start = {"thread_id": thread_id, "user_id": ALICE, "on_busy": "say", "run_id": "mine"}
    told = client.start("clerk", "and a cup", **start)  # type: ignore[arg-type]  # a dict of them
    assert told.run_id == run_id
    with hand.database.begin() as connection:
        requests.request_cancel(connection, run_id, ALICE)

    pruning.prune(hand.database, EVERYTHING)

    assert client.start("clerk", "and a cup", **start).run_id == run_id  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="something else"):
        client.start("clerk", "and a pot", **start)  # type: ignore[arg-type]  # a dict of them
    with hand.database.connect() as connection:
        runs = connection.exec_driver_sql("SELECT run_id FROM celeriac.runs").all()
    assert [row[0] for row in runs] == [run_id]
    assert audit(hand.database) == []
    client.close()


# Runs that are left alone -------------------------------------------------------------------------


def test_only_what_is_old_enough_and_has_ended_so_is_pruned(hand: Hand) -> None:
    completed, waiting = whole_run(hand), hand.start()
    cancelled = hand.start()
    with hand.database.begin() as connection:
        requests.request_cancel(connection, cancelled, ALICE)

    pruning.prune(hand.database, Policy(older_than_days=1))
    assert pruned(hand.database) == set()
    pruning.prune(hand.database, Policy(0, [RunStatus.CANCELLED]))
    assert pruned(hand.database) == {cancelled}
    pruning.prune(hand.database, EVERYTHING)

    assert pruned(hand.database) == {cancelled, completed}
    assert hand.row(waiting).status == "queued"


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_an_age_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="no age"):
        Policy(wrong)


def test_a_status_that_may_change_is_refused() -> None:
    with pytest.raises(InvalidInput, match="paused"):
        Policy(1, [RunStatus.PAUSED])


def test_a_run_whose_call_waits_for_a_word_is_not_pruned(hand: Hand) -> None:
    run_id, _ = hand.unknown_effect()
    with hand.database.begin() as connection:
        requests.request_cancel(connection, run_id, ALICE)

    assert pruning.prune(hand.database, EVERYTHING).runs == 0


def test_what_a_later_run_of_the_thread_has_in_view_is_not_pruned(hand: Hand) -> None:
    thread_id = ThreadId("t1")
    earlier = whole_run(hand, thread_id)
    later = hand.start(thread_id=thread_id)

    assert pruning.prune(hand.database, EVERYTHING).runs == 0
    hand.complete(later)

    assert pruning.prune(hand.database, EVERYTHING).runs == 2
    assert pruned(hand.database) == {earlier, later}


def test_a_run_that_is_being_undone_is_not_pruned(shops: MakeShop) -> None:
    shop = shops(BOOK)
    run_id = shop.done()
    rollback = shop.client.rollback(run_id, by="alice").run_id

    assert pruning.prune(shop.database, EVERYTHING).runs == 0
    shop.go_on(rollback)

    assert shop.bookings == [500, -500]
    assert pruning.prune(shop.database, EVERYTHING).runs == 2
    assert shop.violations() == []


def test_a_child_stays_until_its_parent_has_ended_and_then_both_go(
    database: Database, broker_url: str
) -> None:
    helper = Agent("helper", model=ScriptedModel([say("42 orders")]))
    turns = [call("helper", input="how many?"), say("There are 42")]
    boss = Agent("boss", model=ScriptedModel(turns), tools=[helper.as_tool()])
    family = Family(database.url, broker_url, [boss, helper])
    run_id = family.start("boss")
    family.go_on(but=["helper"])
    (child,) = family.children(run_id)
    family.step(child)
    assert family.run(child).status is RunStatus.COMPLETED

    assert pruning.prune(database, EVERYTHING).runs == 0
    family.go_on()

    assert family.run(run_id).result == "There are 42"
    for each in (child, run_id):
        with database.begin() as connection:
            connection.exec_driver_sql("SELECT celeriac.prune_runs(ARRAY[%s])", (each,))
        assert family.violations() == []
    assert pruned(database) == {run_id, child}
    family.close()


def test_a_run_and_its_rollback_may_go_at_different_times(shops: MakeShop) -> None:
    shop = shops(TAKE, BOOK, SHIP)
    run_id = shop.done()
    undo = shop.roll_back(run_id)

    for each in (run_id, undo.run_id):
        with shop.database.begin() as connection:
            connection.exec_driver_sql("SELECT celeriac.prune_runs(ARRAY[%s])", (each,))
        assert shop.violations() == []

    assert pruned(shop.database) == {run_id, undo.run_id}


@pytest.mark.parametrize("table", ["runs", "threads"])
def test_nothing_that_somebody_holds_is_pruned_or_waited_for(hand: Hand, table: str) -> None:
    held, free = whole_run(hand, ThreadId("t1")), whole_run(hand)
    with hand.database.begin() as somebody:
        somebody.exec_driver_sql(f"SELECT FROM celeriac.{table} WHERE thread_id = 't1' FOR UPDATE")

        done = pruning.prune(hand.database, EVERYTHING)

        assert (done.runs, done.passed_over, pruned(hand.database)) == (1, 1, {free})
    pruning.prune(hand.database, EVERYTHING)
    assert pruned(hand.database) == {held, free}


def test_a_rollback_that_is_asked_for_in_that_moment_is_refused_or_keeps_the_run(
    shops: MakeShop,
) -> None:
    shop = shops(BOOK)
    run_id = shop.done()
    with ThreadPoolExecutor(2) as pool:
        undo = pool.submit(shop.client.rollback, run_id, by="alice")
        pool.submit(pruning.prune, shop.database, EVERYTHING).result()
        try:
            asked = undo.result()
        except Conflict:
            assert pruned(shop.database) == {run_id}
        else:
            assert pruned(shop.database) == set()
            shop.go_on(asked.run_id)
            assert shop.bookings == [500, -500]
    assert shop.violations() == []


def test_a_late_report_to_a_pruned_run_brings_nothing_back(
    shops: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shops(SHIP)
    run_id = shop.worker.start("shop")
    shop.worker.step(run_id)
    claims: list[Claim] = []
    with monkeypatch.context() as patch:
        begin = effects.begin_attempt

        def noting(connection: Connection, claim: Claim, *more: Any, **named: Any) -> Any:
            claims.append(claim)
            return begin(connection, claim, *more, **named)

        patch.setattr(effects, "begin_attempt", noting)
        shop.go_on(run_id)
    pruning.prune(shop.database, EVERYTHING)

    with shop.database.begin() as connection:
        is_noted = lost_calls.report(
            connection, claims[0], CallId("0.0"), EffectState.COMMITTED, {"result": "SECRET"}
        )

    assert not is_noted
    assert rows(shop.database, "effect_attempts", run_id) == []
    assert shop.violations() == []


# While everything goes on -------------------------------------------------------------------------


def test_runs_that_go_on_while_others_are_pruned_lose_nothing(shops: MakeShop) -> None:
    shop = shops(LOOK, TAKE, BOOK)
    done = 0
    with ThreadPoolExecutor(1) as pool:
        for _ in range(6):
            run_id = shop.worker.start("shop")
            pruner = pool.submit(pruning.prune, shop.database, EVERYTHING, batch=1)
            assert shop.go_on(run_id).status == "completed"
            done += pruner.result().runs
    done += pruning.prune(shop.database, EVERYTHING).runs

    assert (done, shop.stock, len(shop.bookings)) == (6, 4, 6)
    assert shop.violations() == []


def test_two_that_prune_at_once_share_the_work(hand: Hand) -> None:
    runs = {whole_run(hand) for _ in range(20)}

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(pruning.prune, hand.database, EVERYTHING, batch=3) for _ in range(2)]

    assert sum(each.result().runs for each in both) <= len(runs)
    pruning.prune(hand.database, EVERYTHING)
    assert pruned(hand.database) == runs
    assert audit(hand.database) == []


KILLED = """
import os, signal, sys
from celeriac_storage import pruning
from celeriac_storage.database import Database
database, so_far = Database(sys.argv[1]), pruning.Pruned()
with database.begin() as connection:
    pruning.prune_batch(connection, pruning.Policy(0), so_far, batch=2)
with database.begin() as connection:
    pruning.prune_batch(connection, pruning.Policy(0), so_far, batch=2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_middle_leaves_whole_runs_only(hand: Hand) -> None:
    runs = {whole_run(hand) for _ in range(6)}

    killed = subprocess.run([sys.executable, "-c", KILLED, hand.database.url], timeout=60)  # noqa: PLW1510

    assert killed.returncode == -9
    eventually(lambda: len(pruned(hand.database)) == 2, what="what was committed")
    assert audit(hand.database) == []
    pruning.prune(hand.database, EVERYTHING)
    assert pruned(hand.database) == runs


def test_what_is_passed_over_does_not_stop_the_rest(hand: Hand) -> None:
    held = whole_run(hand, ThreadId("t1"))
    others = {whole_run(hand) for _ in range(3)}
    said: list[int] = []

    def tell(done: Pruned) -> None:
        said.append(done.runs)

    with hand.database.begin() as somebody:
        somebody.exec_driver_sql("SELECT FROM celeriac.threads WHERE thread_id = 't1' FOR UPDATE")
        pruning.prune(hand.database, EVERYTHING, batch=1, progress=tell)

    assert pruned(hand.database) == others
    assert said == [0, 1, 2, 3, 3]
    assert hand.row(held).pruned_at is None


# Who may ------------------------------------------------------------------------------------------


def test_nobody_but_the_owners_functions_can_take_anything_away(hand: Hand) -> None:
    run_id = whole_run(hand)
    hand.ask_for_calls(hand.start())
    url = f"{hand.database.url}?options=-crole%3Dceleriac_worker"
    open_the_door = "SELECT set_config('celeriac.retention', 'on', false);"

    for statement in (
        "SELECT celeriac.prune_runs(ARRAY['x'])",
        "SELECT celeriac.erase_runs(ARRAY['x'])",
        "SELECT celeriac.take_payload(ARRAY['x'])",
        "SELECT celeriac.erase_answers('default', NULL, NULL)",
        "SELECT celeriac.sweep_artifacts(1)",
        f"{open_the_door} UPDATE celeriac.runs SET input = NULL, erased_at = now()",
        f"{open_the_door} UPDATE celeriac.effects SET arguments = NULL",
        f"{open_the_door} DELETE FROM celeriac.events",
    ):
        with psycopg.connect(url.replace("+psycopg", "")) as worker:
            with pytest.raises(psycopg.Error) as refused:
                worker.execute(statement)
            assert refused.value.sqlstate in ("42501", "CE001", "CE002", "CE003"), statement
    assert hand.row(run_id).erased_at is None


def test_a_member_of_the_retention_role_can_prune_and_not_just_delete(hand: Hand) -> None:
    run_id = whole_run(hand)
    url = f"{hand.database.url}?options=-crole%3Dceleriac_retention"
    database = Database(url)

    with database.connect() as connection:
        found = connection.exec_driver_sql("SELECT celeriac.prune_runs(ARRAY[%s])", (run_id,))
        assert found.scalar_one() == [run_id]
    with pytest.raises(DBAPIError) as refused, database.connect() as connection:
        connection.exec_driver_sql("DELETE FROM celeriac.runs")

    assert sqlstate(refused.value) == "42501"
    database.close()


def test_the_door_is_shut_again_behind_the_function(hand: Hand) -> None:
    whole_run(hand)
    other = whole_run(hand)

    with hand.database.begin() as connection:
        connection.exec_driver_sql("SELECT celeriac.prune_runs(ARRAY[%s])", (other,))
        with pytest.raises(DBAPIError) as refused:
            connection.exec_driver_sql("DELETE FROM celeriac.events")
        assert sqlstate(refused.value) == "CE001"


def test_the_command_tells_what_it_would_do_and_does_it(hand: Hand) -> None:
    runs = {whole_run(hand) for _ in range(3)}

    def prune(*arguments: str) -> Any:
        command = ["--database-url", hand.database.url, "prune", "--older-than", "0", *arguments]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    assert prune("--dry-run", "--json")["runs"] == 3
    assert pruned(hand.database) == set()
    assert prune("--batch", "2", "--status", "failed", "--json")["runs"] == 0
    done = {"runs": 3, "artifacts": 0, "vectors": 0, "passed_over": 0}
    assert prune("--batch", "2", "--json") == done
    assert pruned(hand.database) == runs
    wrong = CliRunner().invoke(app, ["prune", "--older-than", "1", "--status", "queued"])
    assert (wrong.exit_code, "--status queued" in wrong.stderr) == (2, True)
