"""The client: what it lets in, what it shows, and how it waits."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import pytest
from pydantic import BaseModel, Field
from sqlalchemy import Connection, create_engine

from celeriac import Agent, Client, Limits
from celeriac.client import NotDone, TookEffect
from celeriac.errors import (
    Conflict,
    DatabaseUnavailable,
    InvalidInput,
    RunExists,
    SchemaMismatch,
    ThreadBusy,
    UnknownAgent,
    UnknownApproval,
    UnknownCall,
    UnknownRun,
    WrongOwner,
)
from celeriac.ids import RunId
from celeriac.reports import Retried, to_json
from celeriac.scripted import ScriptedModel, say
from celeriac.settings import load_settings
from celeriac.states import RunStatus
from celeriac_storage.admitting import MAX_INPUT_BYTES
from celeriac_storage.agents import register_agent
from celeriac_storage.database import Database, driver_url, libpq_url
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from tests.steps_by_hand import AGENT, Hand, definition
from tests.waiting import eventually

NOBODY_LISTENS = "redis://127.0.0.1:1/0"


class Order(BaseModel):
    sku: str
    quantity: int = Field(default=1, ge=1)


DESK = Agent(
    "desk",
    ScriptedModel([say("done")]),
    "Serve.",
    input=Order,
    limits=Limits(steps=7),
    queue="desks",
)


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


# Starting ---------------------------------------------------------------------------------------


def test_a_run_starts_with_its_input_as_the_first_message(client: Client, hand: Hand) -> None:
    started = client.start(AGENT, "hello", user_id="alice")

    assert (started.status, started.phase) == ("queued", "waiting_model")
    run = client.get(started.run_id)
    assert (run.agent, run.input, run.user_id, run.thread_id) == (
        AGENT,
        "hello",
        "alice",
        started.thread_id,
    )
    assert _first_message(hand, started.run_id) == {
        "kind": "request",
        "parts": [{"content": "hello"}],
    }


def test_an_agents_own_type_checks_the_input_and_fills_in_defaults(
    client: Client, hand: Hand
) -> None:
    started = client.start(DESK, {"sku": "A-7"})

    row = hand.row(started.run_id)
    assert row.input == {"sku": "A-7", "quantity": 1}
    assert (row.queue, row.limits["steps"]) == ("desks", 7)
    content = _first_message(hand, started.run_id)["parts"][0]["content"]
    assert json.loads(content) == row.input


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"sku": "A-7", "quantity": 0}, "quantity: 0 is less than 1"),
        ({"sku": "A-7", "quantity": "many"}, 'quantity: "many" is not an integer'),
        ({}, "sku: required, but missing"),
        ({"sku": float("nan")}, "cannot be written as JSON"),
    ],
)
def test_a_bad_input_is_refused_before_anything_is_written(
    client: Client, hand: Hand, value: object, said: str
) -> None:
    with pytest.raises(InvalidInput, match="the input of agent desk cannot be used") as refused:
        client.start(DESK, value)

    assert said in str(refused.value)
    assert client.runs() == []
    assert _count(hand, "threads") == 0


def test_an_agent_known_by_name_checks_the_input_by_its_registered_schema(
    client: Client, hand: Hand
) -> None:
    with pytest.raises(InvalidInput, match=r"agent clerk cannot be used: 12 is not a string"):
        client.start(AGENT, 12)

    assert _count(hand, "threads") == 0


def test_an_agent_nobody_knows_is_refused_with_the_known_ones(client: Client, hand: Hand) -> None:
    assert hand.worker_id

    with pytest.raises(UnknownAgent, match=r"agent 'nosuch'; known are: clerk\."):
        client.start("nosuch", "hello")


def test_an_input_of_a_mebibyte_is_the_most(client: Client, hand: Hand) -> None:
    assert hand.worker_id
    largest = "x" * (MAX_INPUT_BYTES - len('""'))
    client.start(AGENT, largest)

    with pytest.raises(InvalidInput, match=f"has {MAX_INPUT_BYTES + 1} bytes"):
        client.start(AGENT, largest + "x")


@pytest.mark.parametrize("name", ["run_id", "thread_id", "user_id"])
def test_an_id_that_would_break_a_url_is_refused(client: Client, hand: Hand, name: str) -> None:
    assert hand.worker_id

    with pytest.raises(InvalidInput, match="'a:b' cannot be a"):
        client.start(AGENT, "hello", **cast(Any, {name: "a:b"}))


# features: 000-10, 003-16
def test_a_second_run_of_the_same_id_leaves_the_first_as_it_is(client: Client, hand: Hand) -> None:
    client.start(AGENT, "first", run_id="order-7", thread_id="t1")
    before = hand.row(RunId("order-7"))

    with pytest.raises(RunExists, match="celeriac show order-7"):
        client.start(AGENT, "second", run_id="order-7", thread_id="t1")

    assert hand.row(RunId("order-7")) == before
    assert hand.events(RunId("order-7")) == ["run.created"]


# features: 000-06, 000-07
def test_nobody_starts_a_run_in_another_users_thread(client: Client, hand: Hand) -> None:
    client.start(AGENT, "mine", thread_id="t1", user_id="alice")

    with pytest.raises(WrongOwner, match="belongs to another user than bob"):
        client.start(AGENT, "mine as well", thread_id="t1", user_id="bob", run_id="bobs")

    assert len(client.runs()) == 1
    assert _count(hand, "users") == 1
    with hand.database.connect() as connection:
        trail = connection.exec_driver_sql(
            "SELECT actor, action, object, detail ->> 'run', outcome FROM celeriac.audit"
        ).all()
    assert [tuple(row) for row in trail] == [("bob", "run.start", "t1", "bobs", "denied")]


def test_a_busy_thread_makes_a_run_wait_or_refuses_it(client: Client, hand: Hand) -> None:
    first = client.start(AGENT, "first", thread_id="t1")

    second = client.start(AGENT, "second", thread_id="t1")
    assert (second.status, second.phase) == ("paused", "waiting_thread")
    assert client.waits_for(second.run_id).behind == first.run_id
    with pytest.raises(ThreadBusy, match="thread t1 is busy with run"):
        client.start(AGENT, "third", thread_id="t1", on_busy="reject")

    assert hand.row(second.run_id).status == "paused"


def test_a_run_whose_agent_no_live_worker_has_waits_for_one(client: Client) -> None:
    started = client.start(DESK, {"sku": "A-7"})

    assert (started.status, started.phase) == ("paused", "waiting_worker")


# Starting within the caller's transaction ---------------------------------------------------------


@contextmanager
def own_connection(url: str, **options: Any) -> Iterator[Connection]:
    """A connection of an application that has nothing to do with Celeriac's own pool."""
    engine = create_engine(driver_url(url), **options)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_a_run_and_the_callers_rows_are_committed_together(
    client: Client, hand: Hand, database_url: str
) -> None:
    with own_connection(database_url) as connection:
        connection.exec_driver_sql("CREATE TABLE orders (order_id text)")
        connection.exec_driver_sql("INSERT INTO orders VALUES ('O-1')")
        started = client.start(AGENT, "hello", connection=connection)
        with pytest.raises(UnknownRun):
            client.get(started.run_id)
        connection.commit()

    assert client.get(started.run_id).status is RunStatus.QUEUED
    assert hand.row(started.run_id).published_at is None


def test_a_rolled_back_caller_leaves_no_run(client: Client, hand: Hand, database_url: str) -> None:
    with own_connection(database_url) as connection:
        started = client.start(AGENT, "hello", connection=connection, thread_id="t1")
        connection.rollback()

    with pytest.raises(UnknownRun):
        client.get(started.run_id)
    assert _count(hand, "threads") == 0


def test_a_refused_run_leaves_the_callers_transaction_usable(
    client: Client, hand: Hand, database_url: str
) -> None:
    client.start(AGENT, "first", run_id="order-7", thread_id="t1")
    with own_connection(database_url) as connection:
        connection.exec_driver_sql("CREATE TABLE orders (order_id text)")
        with pytest.raises(RunExists):
            client.start(AGENT, "again", run_id="order-7", thread_id="t1", connection=connection)
        connection.exec_driver_sql("INSERT INTO orders VALUES ('O-1')")
        connection.commit()

    assert _count(hand, "orders", schema="public") == 1
    second = client.start(AGENT, "second", thread_id="t1")
    assert hand.row(second.run_id).thread_position == 1  # the refused one took no turn


def test_a_scheduler_hears_of_a_run_at_the_callers_commit(
    client: Client, hand: Hand, database_url: str
) -> None:
    assert hand.worker_id
    with psycopg.connect(libpq_url(database_url), autocommit=True) as ears:
        ears.execute("LISTEN celeriac_started")
        with own_connection(database_url) as connection:
            client.start(AGENT, "hello", connection=connection)
            assert list(ears.notifies(timeout=0.1)) == []
            connection.commit()
        assert len(list(ears.notifies(timeout=5, stop_after=1))) == 1


def test_a_connection_that_cannot_hold_a_transaction_is_refused(
    client: Client, hand: Hand, database_url: str
) -> None:
    assert hand.worker_id
    with (
        own_connection(database_url, isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(InvalidInput, match="autocommit mode"),
    ):
        client.start(AGENT, "hello", connection=connection)
    with (
        psycopg.connect(libpq_url(database_url)) as raw,
        pytest.raises(InvalidInput, match=r"is a Connection; give a sqlalchemy\.Connection"),
    ):
        client.start(AGENT, "hello", connection=cast(Any, raw))


def test_a_connection_to_a_database_without_our_tables_says_so(
    client: Client, empty_database_url: str
) -> None:
    with (
        own_connection(empty_database_url) as connection,
        pytest.raises(SchemaMismatch, match="celeriac migrate"),
    ):
        client.start(DESK, {"sku": "A-7"}, connection=connection)


# Publishing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_run_is_published_to_its_agents_queue(
    database_url: str, database: Database, broker_url: str, queue: str
) -> None:
    # The queue is none of this process's settings, and exists as workers declare it.
    app = make_app(load_settings(broker_url=broker_url))
    messages = Broker(app)
    assert messages.queue_length(queue) == 0
    hand = Hand(database, agents=["porter"])
    with database.begin() as connection:
        register_agent(connection, "porter", "hash-2", {**definition("porter"), "queue": queue})
        connection.exec_driver_sql("UPDATE celeriac.workers SET queues = %s", ([queue],))

    with Client(database_url, broker_url) as client:
        started = client.start("porter", "hello")

    assert hand.row(started.run_id).published_at is not None
    eventually(lambda: messages.queue_length(queue), what="the message on the broker")
    app.close()


def test_a_broker_that_is_away_does_not_stop_a_run_from_being_accepted(
    database_url: str, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(database_url, NOBODY_LISTENS) as client:
        started = client.start(AGENT, "hello")

    assert hand.row(started.run_id).published_at is None  # so that the scheduler publishes it
    assert "the broker at redis://127.0.0.1:1/0 does not answer" in caplog.text


def test_a_broken_commit_says_that_the_run_may_exist(client: Client, hand: Hand) -> None:
    with hand.database.begin() as connection:
        connection.exec_driver_sql(
            """
            CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER cut AFTER INSERT ON celeriac.runs
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cut();
            """
        )

    with pytest.raises(DatabaseUnavailable, match="not known whether run order-7 was accepted"):
        client.start(AGENT, "hello", run_id="order-7")


# Looking ----------------------------------------------------------------------------------------


def test_a_run_is_shown_with_exactly_the_fields_of_the_contract(client: Client, hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    shown = to_json(client.get(run_id))

    assert isinstance(shown, dict)
    assert list(shown) == [
        "run_id", "thread_id", "user_id", "agent", "status", "phase", "outcome", "step", "epoch",
        "worker_id", "deaths", "input", "result", "error", "created_at", "finished_at", "steps",
        "effects", "approvals", "kind", "rolls_back", "rollbacks", "parent", "children",
        "activities",
        "start_at", "deadline_at", "contract", "use", "family_use", "erased_at", "pruned_at",
        "forked_from", "forked_step", "forks",
    ]  # fmt: skip
    (step,) = cast(list[dict[str, Any]], shown["steps"])
    assert list(step) == ["step", "kind", "worker_id", "started_at", "committed_at"]
    assert shown["effects"] == [
        {
            "call_id": call,
            "tool": "ship",
            "kind": "external",
            "state": "unknown",
            "attempt": 1,
            "key": f"default:{run_id}:{call}",
            "rolls_back": None,
            "rolled_back_by": None,
            "arguments": {"order": 7},
            "result": None,
            "result_artifact": None,
            "error": {"kind": "timeout", "message": "took longer than 30 s"},
        }
    ]
    assert shown["approvals"] == []
    assert str(shown["created_at"]).endswith("Z")


def test_runs_are_listed_newest_first_and_filtered(client: Client, hand: Hand) -> None:
    first, second, third = hand.start(), hand.start(), hand.start()
    hand.complete(second)

    assert [run.run_id for run in client.runs()] == [third, second, first]
    assert [run.run_id for run in client.runs(limit=1)] == [third]
    assert [run.run_id for run in client.runs(status=RunStatus.COMPLETED)] == [second]
    assert client.runs(agent="nosuch") == []


# features: 003-18
def test_a_run_nobody_started_is_unknown_everywhere(client: Client, hand: Hand) -> None:
    assert hand.worker_id
    for ask in (
        lambda: client.get("nosuch"),
        lambda: client.events("nosuch"),
        lambda: client.wait("nosuch", 1),
        lambda: client.cancel("nosuch"),
        lambda: client.retry("nosuch"),
        lambda: client.resolve("nosuch", "0.0", NotDone()),
        lambda: client.waits_for("nosuch"),
    ):
        with pytest.raises(UnknownRun, match="no run nosuch"):
            ask()


@pytest.mark.parametrize("bad", ["", "a\x00b", "\ud800", "r" * 129])
def test_what_can_be_no_id_is_unknown_as_any_other(client: Client, hand: Hand, bad: str) -> None:
    run_id, call = hand.unknown_effect()
    for ask, error in (
        (lambda: client.get(bad), UnknownRun),
        (lambda: client.events(bad), UnknownRun),
        (lambda: client.wait(bad, 1), UnknownRun),
        (lambda: client.waits_for(bad), UnknownRun),
        (lambda: client.cancel(bad), UnknownRun),
        (lambda: client.interrupt(bad), UnknownRun),
        (lambda: client.say(bad, "hello", key="k"), UnknownRun),
        (lambda: client.retry(bad), UnknownRun),
        (lambda: client.rollback(bad), UnknownRun),
        (lambda: client.resolve(bad, call, NotDone()), UnknownRun),
        (lambda: client.resolve(run_id, bad, NotDone()), UnknownCall),
        (lambda: client.submit(run_id, {bad: None}), UnknownCall),
        (lambda: client.approval(bad), UnknownApproval),
        (lambda: client.approve(bad), UnknownApproval),
    ):
        with pytest.raises(error):
            ask()
    assert hand.effect(run_id, call).state == "unknown"


def test_a_worker_is_alive_until_it_leaves_and_shows_what_it_holds(
    client: Client, hand: Hand
) -> None:
    run_id = hand.start()
    hand.claim(run_id)

    (worker,) = client.workers()
    assert to_json(worker) == {
        "worker_id": hand.worker_id,
        "hostname": "localhost",
        "pid": 4711,
        "alive": True,
        "running": [run_id],
    }

    with hand.database.connect() as connection:
        connection.exec_driver_sql("UPDATE celeriac.workers SET lease_until = now()")
    assert not client.workers()[0].alive


def test_events_are_read_after_a_cursor(client: Client, hand: Hand) -> None:
    run_id = hand.start()
    hand.complete(run_id)

    assert [(event.seq, event.type) for event in client.events(run_id)] == [
        (1, "run.created"),
        (2, "run.completed"),
    ]
    assert [event.seq for event in client.events(run_id, after=1)] == [2]
    assert list(client.events(run_id, after=2, follow=True)) == []


def test_followed_events_come_as_they_are_written_and_end_with_the_last(
    client: Client, hand: Hand
) -> None:
    run_id = hand.start()
    following = client.events(run_id, follow=True)

    assert next(following).type == "run.created"
    hand.ask_for_calls(run_id)
    assert next(following).type == "model.answered"
    client.cancel(run_id)
    assert [event.type for event in following] == ["run.cancelled"]


# Waiting ------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_run(client: Client, hand: Hand) -> None:
    run_id = hand.start()
    with _later(lambda: hand.complete(run_id, {"shipped": True})):
        run = client.wait(run_id, 30)

    assert (run.status, run.result) == (RunStatus.COMPLETED, {"shipped": True})


def test_waiting_ends_when_a_person_is_needed(client: Client, hand: Hand) -> None:
    run_id, _ = hand.unknown_effect()

    assert client.wait(run_id, 30).status is RunStatus.NEEDS_ATTENTION


def test_waiting_until_the_end_sits_out_a_need_for_attention(client: Client, hand: Hand) -> None:
    run_id, call = hand.unknown_effect()
    with pytest.raises(TimeoutError, match="is still needs_attention after"):
        client.wait(run_id, 0.1, until_ended=True)

    with _later(lambda: client.cancel(run_id)):
        assert client.wait(run_id, 30, until_ended=True).status is RunStatus.CANCELLED
    assert client.resolve(run_id, call, TookEffect(None)) is RunStatus.CANCELLED


def test_a_timeout_leaves_the_run_as_it_is(client: Client, hand: Hand) -> None:
    run_id = hand.start()
    before = hand.row(run_id)

    with pytest.raises(TimeoutError, match=f"run {run_id} is still queued after 0.1 s"):
        client.wait(run_id, 0.1)

    assert hand.row(run_id) == before


def test_waiting_bears_a_database_that_is_away(client: Client, hand: Hand) -> None:
    run_id = hand.start()

    def cut_and_complete() -> None:
        with hand.database.connect() as connection:
            cut = connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'celeriac-client' AND datname = current_database()"
            ).all()
        assert cut, "the waiting client had no session to lose"
        hand.complete(run_id)

    with _later(cut_and_complete):
        assert client.wait(run_id, 30).status is RunStatus.COMPLETED


def test_watching_shows_each_change(client: Client, hand: Hand) -> None:
    run_id = hand.start()
    watching = client.watch(run_id)

    assert next(watching).status is RunStatus.QUEUED
    hand.ask_for_calls(run_id)
    assert [step.kind for step in next(watching).steps] == ["think"]
    client.cancel(run_id)
    assert [run.status for run in watching] == [RunStatus.CANCELLED]


# Deciding -----------------------------------------------------------------------------------------


def test_a_decision_names_who_made_it(client: Client, hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    assert client.resolve(run_id, call, TookEffect({"id": 1}), by="carol") is RunStatus.QUEUED

    assert hand.event_data(run_id, "effect.resolved")["by"] == "carol"
    poisoned = hand.poisoned()
    assert client.retry(poisoned) == Retried(poisoned, RunStatus.QUEUED)
    assert hand.event_data(poisoned, "run.retried") == {"by": "local"}
    with pytest.raises(Conflict):
        client.retry(poisoned)


# Servers that are not as they should be -----------------------------------------------------------


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with (
        Client("postgresql://shop:hunter2secret@127.0.0.1:1/shop") as client,
        pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1/shop") as unavailable,
    ):
        client.runs()

    assert "hunter2secret" not in str(unavailable.value)
    assert "check that it runs" in str(unavailable.value)


def test_a_database_without_tables_says_to_migrate(empty_database_url: str) -> None:
    with (
        Client(empty_database_url) as client,
        pytest.raises(SchemaMismatch, match="run `celeriac migrate`"),
    ):
        client.start(DESK, {"sku": "A-7"})


def test_a_database_newer_than_this_code_is_left_alone(database_url: str, hand: Hand) -> None:
    with hand.database.connect() as connection:
        connection.exec_driver_sql("UPDATE celeriac_schema_version SET version_num = '9999'")

    with (
        Client(database_url) as client,
        pytest.raises(SchemaMismatch, match=r"revision 9999.* install a newer Celeriac"),
    ):
        client.runs()


@contextmanager
def _later(act: Any) -> Iterator[None]:
    """Do it in another thread, when this one has begun to wait; its error is the test's."""
    problems: list[BaseException] = []

    def acting() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            problems.append(error)

    timer = threading.Timer(0.2, acting)
    timer.start()
    yield
    timer.join(30)
    assert problems == []


def _first_message(hand: Hand, run_id: RunId) -> dict[str, Any]:
    with hand.database.connect() as connection:
        body: dict[str, Any] = connection.exec_driver_sql(
            "SELECT body FROM celeriac.messages WHERE run_id = %s AND position = 0", (run_id,)
        ).scalar_one()
    return body


def _count(hand: Hand, table: str, schema: str = "celeriac") -> int:
    with hand.database.connect() as connection:
        count: int = connection.exec_driver_sql(
            f"SELECT count(*) FROM {schema}.{table}"
        ).scalar_one()
    return count
