"""The example's tools on a real PostgreSQL and a real notification service, and its script."""

import json
import multiprocessing
import runpy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ModelMessage
from sqlalchemy import Connection, event

from celeriac import Agent, ToolContext, ToolError, tool
from celeriac.codec import JsonValue
from celeriac.errors import DatabaseUnavailable, Fenced, InvalidArguments, InvalidInput
from celeriac.ids import (
    DEFAULT_TENANT,
    DEFAULT_USER,
    CallId,
    RunId,
    ThreadId,
    effect_key,
    new_run_id,
)
from celeriac.messages import CallResult, results_message, user_message
from celeriac.scripted import ScriptedModel, Turn, call
from celeriac.states import EffectKind
from celeriac.undo_tool import undo_tool
from celeriac_storage.database import Database
from examples import order_desk as desk
from tests.notifications import NotificationService, notification_service
from tests.waiting import eventually
from tests.worker_in_process import Worker

ORDER: dict[str, Any] = {"order_id": "O-1001", "sku": "A-7", "quantity": 1}
DEDUCTED: dict[str, Any] = {"status": "DEDUCTED", **ORDER, "in_stock": 9}


@pytest.fixture
def shop(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database with the business tables and ten A-7, where the tools find it too."""
    monkeypatch.setenv("CELERIAC_DATABASE_URL", database.url)
    desk.prepare(database.url)
    yield database
    desk._engine(database.url).dispose()


@pytest.fixture
def service(
    shop: Database,  # noqa: ARG001 - the tools that use the service write there first
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[NotificationService]:
    with notification_service(tmp_path / "ledger.sqlite3") as service:
        monkeypatch.setenv("ORDER_DESK_NOTIFY_URL", service.address)
        yield service


def context(
    tool: str, connection: Connection | None = None, run_id: RunId | None = None
) -> ToolContext:
    """The context of a call as a step makes it."""
    run_id = run_id or new_run_id()
    call_id = CallId("2.0")
    return ToolContext(
        tool=tool,
        run_id=run_id,
        thread_id=ThreadId("t1"),
        user_id=DEFAULT_USER,
        tenant_id=DEFAULT_TENANT,
        step=3,
        call_id=call_id,
        idempotency_key=effect_key(DEFAULT_TENANT, run_id, call_id),
        _connection=connection,
    )


def deduct(
    database: Database, before_statement: Callable[..., None] | None = None, **changed: Any
) -> dict[str, Any]:
    """One committed call of the tool, by a run of its own."""
    with database.begin() as connection:
        if before_statement is not None:
            event.listen(connection, "before_cursor_execute", before_statement)
        ctx = context("deduct_inventory", connection)
        return desk.deduct_inventory(ctx, **{**ORDER, **changed})


def undo(database: Database, result: dict[str, Any]) -> None:
    """Take back the call that returned `result`, as a rollback does."""
    with database.begin() as connection:
        taken_back = undo_tool(desk.deduct_inventory)
        assert taken_back is not None
        ctx = replace(context(taken_back.name, connection), undoes_key="key", _undone_result=result)
        arguments = desk.deduct_inventory.validate(ORDER)
        taken_back.function(**taken_back.call_arguments(arguments, ctx))


def notify(run_id: RunId | None = None, **changed: Any) -> dict[str, Any]:
    return desk.notify_shipped(context("notify_shipped", None, run_id), **{**ORDER, **changed})


def in_stock(database: Database, sku: str = "A-7") -> int:
    with database.connect() as connection:
        query = "SELECT quantity FROM order_desk.stock WHERE sku = %s"
        return int(connection.exec_driver_sql(query, (sku,)).scalar_one())


def set_stock(database: Database, quantity: int) -> None:
    with database.connect() as connection:
        connection.exec_driver_sql("UPDATE order_desk.stock SET quantity = %s", (quantity,))


def log(database: Database, step: str = "deduct_inventory") -> list[tuple[str, int, Any]]:
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT order_id, quantity, result FROM order_desk.side_effect_log WHERE step = %s",
            (step,),
        )
        return [(row[0], row[1], row[2]) for row in rows]


def waiting_for_a_lock(database: Database) -> int:
    with database.connect() as connection:
        count = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).scalar_one()
        return int(count)


# The deduction ----------------------------------------------------------------------------------


SESSIONS = 10  # of one process: fifty in all would take half of what a server allows


def deduct_in_threads(database_url: str, calls: int) -> list[dict[str, Any]]:
    """In a process of its own: `calls` deductions for one order, all at once."""
    database = Database(database_url, connections=SESSIONS)
    try:
        with ThreadPoolExecutor(calls) as threads:
            return list(threads.map(lambda _: deduct(database), range(calls)))
    finally:
        database.close()


# features: 002-14, 002-17
def test_fifty_deductions_for_one_order_at_once_take_one_from_the_stock(shop: Database) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as processes:
        with shop.begin() as gate:
            gate.exec_driver_sql("LOCK order_desk.side_effect_log")
            done = [processes.submit(deduct_in_threads, shop.url, 25) for _ in range(2)]
            eventually(
                lambda: waiting_for_a_lock(shop),
                until=lambda count: count == 2 * SESSIONS,
                what="every session of both processes at the gate",
            )
        results = [result for future in done for result in future.result()]

    first = [result for result in results if result["status"] == "DEDUCTED"]
    replays = [result for result in results if result.get("replayed")]
    assert first == [DEDUCTED]
    assert replays == [{**DEDUCTED, "status": "ALREADY_DONE", "replayed": True}] * 49
    assert in_stock(shop) == 9
    assert log(shop) == [("O-1001", 1, DEDUCTED)]


def test_an_undo_puts_back_what_its_own_call_took_and_nothing_else(shop: Database) -> None:
    first, again = deduct(shop), deduct(shop)
    assert again["status"] == "ALREADY_DONE"

    undo(shop, again)
    assert in_stock(shop) == 9
    undo(shop, first)

    assert in_stock(shop) == 10
    assert deduct(shop)["status"] == "DEDUCTED", "the order can be served anew"


# features: 002-18
def test_of_two_orders_for_the_last_item_one_gets_it_and_one_is_told(shop: Database) -> None:
    set_stock(shop, 1)
    with ThreadPoolExecutor(2) as threads:
        with shop.begin() as gate:
            gate.exec_driver_sql("SELECT FROM order_desk.stock FOR UPDATE")
            done = [threads.submit(deduct, shop, order_id=order_id) for order_id in ("O-1", "O-2")]
            eventually(
                lambda: waiting_for_a_lock(shop),
                until=lambda count: count == 2,
                what="two orders waiting for the stock",
            )
        results = [future.result() for future in done]

    assert sorted(result["status"] for result in results) == ["DEDUCTED", "OUT_OF_STOCK"]
    assert in_stock(shop) == 0
    (winner,) = (result for result in results if result["status"] == "DEDUCTED")
    assert log(shop) == [(winner["order_id"], 1, winner)]


# features: 002-18
def test_an_order_that_was_out_of_stock_succeeds_after_a_delivery(shop: Database) -> None:
    set_stock(shop, 0)
    assert deduct(shop) == {"status": "OUT_OF_STOCK", **ORDER, "in_stock": 0}
    assert log(shop) == []

    set_stock(shop, 10)
    assert deduct(shop) == DEDUCTED


def test_an_order_for_more_than_there_is_takes_nothing(shop: Database) -> None:
    assert deduct(shop, quantity=11)["status"] == "OUT_OF_STOCK"
    assert in_stock(shop) == 10
    assert log(shop) == []


def test_an_unknown_item_is_called_unknown_and_leaves_no_trace(shop: Database) -> None:
    assert deduct(shop, sku="B-1")["status"] == "UNKNOWN_SKU"
    assert log(shop) == []


# features: 002-14, 002-15
def test_a_second_deduction_for_an_order_returns_the_first_result(shop: Database) -> None:
    assert deduct(shop) == DEDUCTED
    deduct(shop, order_id="O-1002", quantity=3)

    assert deduct(shop) == {**DEDUCTED, "status": "ALREADY_DONE", "replayed": True}
    assert in_stock(shop) == 6


def test_another_quantity_for_the_same_order_is_refused_as_a_conflict(shop: Database) -> None:
    deduct(shop)
    with pytest.raises(ToolError, match=r"O-1001 took 1 of A-7 before, so it cannot take 2 now"):
        deduct(shop, quantity=2)
    assert in_stock(shop) == 9


# features: 002-16
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE order_desk.stock",  # in the log, not yet out of the stock
        "UPDATE order_desk.side_effect_log",  # out of the stock, its result not yet in the log
        "RELEASE SAVEPOINT",  # all is written
    ],
)
def test_a_session_killed_in_a_deduction_leaves_neither_log_nor_stock_changed(
    shop: Database, statement: str
) -> None:
    def kill_session(
        connection: Connection, _cursor: object, about_to_run: str, *_: object
    ) -> None:
        if about_to_run.startswith(statement):
            driver: Any = connection.connection.driver_connection
            with shop.connect() as other:
                other.exec_driver_sql(
                    "SELECT pg_terminate_backend(%s, 5000)", (driver.info.backend_pid,)
                )

    with pytest.raises(DatabaseUnavailable):
        deduct(shop, before_statement=kill_session)

    assert in_stock(shop) == 10
    assert log(shop) == []
    assert deduct(shop) == DEDUCTED


# features: 002-16
def test_a_deduction_whose_step_is_rolled_back_never_happened(shop: Database) -> None:
    def deduct_and_lose_the_step() -> None:
        with shop.begin() as connection:
            ctx = context("deduct_inventory", connection)
            assert desk.deduct_inventory(ctx, **ORDER) == DEDUCTED
            raise Fenced("another worker holds the step")

    with pytest.raises(Fenced):
        deduct_and_lose_the_step()

    assert in_stock(shop) == 10
    assert log(shop) == []


# The inventory ----------------------------------------------------------------------------------


def test_the_inventory_knows_what_there_is_and_what_there_is_not(shop: Database) -> None:
    deduct(shop, quantity=4)
    assert desk.check_inventory("A-7") == {"sku": "A-7", "in_stock": 6}
    assert desk.check_inventory("B-1") == {"sku": "B-1", "in_stock": None}


def test_preparing_again_does_not_refill_the_shelf(shop: Database) -> None:
    deduct(shop)
    desk.prepare(shop.url)
    assert in_stock(shop) == 9
    assert len(log(shop)) == 1


def test_without_its_tables_the_desk_says_how_to_make_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERIAC_DATABASE_URL", database.url)
    with pytest.raises(ToolError, match=r"order_desk\.py prepare` made.*stock\" does not exist"):
        desk.check_inventory("A-7")
    desk._engine(database.url).dispose()


@pytest.mark.parametrize("use", [lambda: desk.check_inventory("A-7"), notify])
def test_without_a_database_url_the_desk_says_which_variable_is_missing(
    use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CELERIAC_DATABASE_URL", raising=False)
    with pytest.raises(ToolError, match="CELERIAC_DATABASE_URL is not set"):
        use()


# The notification -------------------------------------------------------------------------------


def test_a_notification_is_sent_under_the_key_of_its_call(service: NotificationService) -> None:
    run_id = new_run_id()
    assert notify(run_id)["status"] == "SENT"
    assert service.deliveries == [(effect_key(DEFAULT_TENANT, run_id, CallId("2.0")), ORDER)]


def test_a_second_run_for_an_order_does_not_notify_again(service: NotificationService) -> None:
    first = notify()
    second = notify()
    assert second == {**first, "status": "ALREADY_SENT", "replayed": True}
    assert len(service.requests) == 2
    assert len(service.deliveries) == 1


def test_runs_that_notify_for_one_order_at_once_deliver_once(service: NotificationService) -> None:
    start = threading.Barrier(8)

    def notify_at_once(_: int) -> str:
        start.wait()
        return str(notify()["status"])

    with ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(notify_at_once, range(8)))
    assert sorted(statuses) == ["ALREADY_SENT"] * 7 + ["SENT"]
    assert len(service.deliveries) == 1


@pytest.mark.usefixtures("shop")
def test_a_service_that_is_not_there_was_certainly_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with notification_service(tmp_path / "ledger.sqlite3") as service:
        address = service.address
    monkeypatch.setenv("ORDER_DESK_NOTIFY_URL", address)
    with pytest.raises(ToolError, match=rf"not notified through {address}: .*refused"):
        notify()


def test_an_order_whose_first_notification_failed_can_still_be_notified(
    monkeypatch: pytest.MonkeyPatch, service: NotificationService
) -> None:
    with monkeypatch.context() as away:
        away.setenv("ORDER_DESK_NOTIFY_URL", "http://127.0.0.1:1")
        with pytest.raises(ToolError):
            notify()
    assert notify()["status"] == "SENT"
    assert len(service.deliveries) == 1


# features: 002-20
def test_a_dropped_answer_is_no_definite_failure(service: NotificationService) -> None:
    service.misbehave(drop_response=True)
    with pytest.raises(httpx2.RemoteProtocolError):
        notify()
    assert len(service.deliveries) == 1


# features: 002-20
def test_a_late_answer_is_no_definite_failure(
    service: NotificationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "NOTIFY_TIMEOUT_SECONDS", 0.2)
    service.misbehave(delay_seconds=1.0)
    with pytest.raises(httpx2.ReadTimeout):
        notify()
    assert len(service.deliveries) == 1


def test_the_answer_is_given_up_before_the_call_is() -> None:
    assert desk.notify_shipped.timeout_seconds > 2 * desk.NOTIFY_TIMEOUT_SECONDS


def test_a_refused_notification_is_a_definite_failure(service: NotificationService) -> None:
    notify()
    with pytest.raises(ToolError, match=r"refused \(422\).*used before for another"):
        notify(quantity=2)
    assert len(service.deliveries) == 1


def test_without_the_database_nothing_is_sent(
    service: NotificationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "postgresql://postgres@127.0.0.1:1/nowhere"
    monkeypatch.setenv("CELERIAC_DATABASE_URL", nowhere)
    with pytest.raises(ToolError, match="not notified"):
        notify()
    desk._engine(nowhere).dispose()
    assert service.requests == []


def test_the_ledger_survives_the_service(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    headers = {"Idempotency-Key": "k1"}
    with notification_service(ledger) as service:
        httpx2.post(f"{service.address}/notifications", json=ORDER, headers=headers)
    with notification_service(ledger) as service:
        again = httpx2.post(f"{service.address}/notifications", json=ORDER, headers=headers)
        assert again.json()["replayed"] is True
        assert service.deliveries == [("k1", ORDER)]


# Input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"quantity": 0}, "quantity: 0 is less than 1"),
        ({"quantity": -1}, "quantity: -1 is less than 1"),
        ({"quantity": 10_001}, "quantity: 10001 is more than 10000"),
        ({"quantity": 10**30}, "is more than 10000"),
        ({"quantity": 1.5}, "quantity: 1.5 is not an integer"),
        ({"quantity": "1"}, 'quantity: "1" is not an integer'),
        ({"quantity": "one"}, 'quantity: "one" is not an integer'),
        ({"quantity": True}, "quantity: true is not an integer"),
        ({"quantity": None}, "quantity: null is not an integer"),
        ({"quantity": float("nan")}, "not JSON compliant"),
        ({"order_id": ""}, 'order_id: "" does not match'),
        ({"order_id": "O 1"}, 'order_id: "O 1" does not match'),
        ({"order_id": "O" * 65}, "is longer than 64 characters"),
        ({"sku": 7}, "sku: 7 is not a string"),
        ({"colour": "red"}, "colour: unknown; expected are order_id, sku, quantity"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_with_its_reason(
    changed: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        desk.order_desk.validate_input({**ORDER, **changed})
    assert problem in str(refused.value)


@pytest.mark.parametrize("field", ORDER)
def test_an_order_without_one_of_its_fields_is_refused(field: str) -> None:
    incomplete = {name: value for name, value in ORDER.items() if name != field}
    with pytest.raises(InvalidInput, match=f"{field}: required, but missing"):
        desk.order_desk.validate_input(incomplete)


@pytest.mark.parametrize("value", [None, [], "O-1001", 1])
def test_what_is_no_order_at_all_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="is not an object"):
        desk.order_desk.validate_input(value)


@pytest.mark.parametrize("tool", [desk.deduct_inventory, desk.notify_shipped])
def test_a_model_may_not_ask_for_what_a_customer_may_not(tool: Any) -> None:
    with pytest.raises(InvalidArguments, match="quantity: -1 is less than 1"):
        tool.validate({**ORDER, "quantity": -1})


# features: 002-21
def test_each_tool_says_what_it_does_to_the_world() -> None:
    assert {tool.name: tool.effect for tool in desk.order_desk.tools} == {
        "check_inventory": EffectKind.NONE,
        "deduct_inventory": EffectKind.TRANSACTIONAL,
        "notify_shipped": EffectKind.EXTERNAL,
    }


# features: 002-21
def test_the_registry_says_of_each_tool_what_it_does_and_the_worst_of_one_that_does_not(
    database: Database, broker_url: str
) -> None:
    @tool
    def undeclared() -> str:
        """Do something."""
        return "done"

    other = Agent("other", ScriptedModel([]), tools=[undeclared])
    worker = Worker(database.url, broker_url, [desk.order_desk, other])
    worker.process.start()
    worker.process.stop()

    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT tool ->> 'name', tool ->> 'effect', (tool -> 'flags' ->> 'stateful')::boolean"
            " FROM celeriac.agents, jsonb_array_elements(definition -> 'tools') AS tool"
        )
        assert {tuple(row) for row in rows} == {
            ("check_inventory", "none", False),
            ("deduct_inventory", "transactional", False),
            ("notify_shipped", "external", False),
            ("undeclared", "external", True),
        }


# The script -------------------------------------------------------------------------------------

CHECK = call("check_inventory", sku="A-7")
DEDUCT = call("deduct_inventory", **ORDER)
NOTIFY = call("notify_shipped", **ORDER)

Answer = tuple[str, JsonValue]
CHECKED: Answer = ("check_inventory", {"sku": "A-7", "in_stock": 10})
SENT: Answer = ("notify_shipped", {"status": "SENT", "replayed": False})


def failed(tool: str, why: str) -> CallResult:
    return CallResult("call_0", tool, why, is_error=True)


def conversation(*answers: Answer | CallResult) -> list[ModelMessage]:
    """One run: the order, a response for each answer, the answer."""
    messages: list[ModelMessage] = [user_message(desk.order_desk.prompt(ORDER))]
    model = ScriptedModel(desk.next_turn)
    for answer in answers:
        result = answer if isinstance(answer, CallResult) else CallResult("call_0", *answer)
        messages += [model.respond(messages), results_message([result])]
    return messages


@pytest.mark.parametrize(
    ("answers", "turn"),
    [
        ([], CHECK),
        ([CHECKED], DEDUCT),
        ([("check_inventory", {"sku": "A-7", "in_stock": 0})], DEDUCT),
        ([CHECKED, ("deduct_inventory", DEDUCTED)], NOTIFY),
        ([CHECKED, ("deduct_inventory", {**DEDUCTED, "status": "ALREADY_DONE"})], NOTIFY),
        ([failed("check_inventory", "too many connections")], CHECK),
        ([CHECKED, ("deduct_inventory", DEDUCTED), failed("notify_shipped", "refused")], NOTIFY),
    ],
)
def test_the_next_call_follows_from_the_last_answer(
    answers: list[Answer | CallResult], turn: Turn
) -> None:
    assert desk.next_turn(conversation(*answers)) == turn


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (
            [("check_inventory", {"sku": "A-7", "in_stock": None})],
            "UNKNOWN_SKU, there is no such item, so nobody was notified.",
        ),
        (
            [CHECKED, ("deduct_inventory", {"status": "UNKNOWN_SKU", "in_stock": None})],
            "UNKNOWN_SKU, none in stock, so nobody was notified.",
        ),
        (
            [CHECKED, ("deduct_inventory", {"status": "OUT_OF_STOCK", "in_stock": 0})],
            "OUT_OF_STOCK, none in stock, so nobody was notified.",
        ),
        (
            [CHECKED, failed("deduct_inventory", "it took 2 before")],
            "deduct_inventory failed, so nobody was notified: it took 2 before",
        ),
        (
            [failed("check_inventory", "no table")] * 3,
            "check_inventory failed, so nobody was notified: no table",
        ),
        (
            [CHECKED, ("deduct_inventory", DEDUCTED), SENT],
            "DEDUCTED, 9 left in stock, and the customer was notified.",
        ),
        (
            [CHECKED, ("deduct_inventory", {**DEDUCTED, "status": "ALREADY_DONE"}), SENT],
            "ALREADY_DONE, 9 left in stock, and the customer was notified.",
        ),
        # What a person says about a call whose outcome was unknown is taken as it is.
        (
            [CHECKED, ("deduct_inventory", DEDUCTED), ("notify_shipped", "I asked them")],
            "DEDUCTED, 9 left in stock, and the customer was notified.",
        ),
        (
            [CHECKED, ("deduct_inventory", DEDUCTED), *[failed("notify_shipped", "refused")] * 3],
            "DEDUCTED, 9 left in stock, but refused",
        ),
    ],
)
def test_the_last_sentence_tells_how_the_order_ended(
    answers: list[Answer | CallResult], text: str
) -> None:
    turn = desk.next_turn(conversation(*answers))
    assert turn == Turn(text=f"Order O-1001, 1 of A-7: {text}")


def test_an_earlier_order_of_the_thread_is_not_taken_for_this_one() -> None:
    earlier = conversation(CHECKED, ("deduct_inventory", DEDUCTED), SENT)
    later = {**ORDER, "order_id": "O-1002", "sku": "B-1"}
    messages = [*earlier, user_message(json.dumps(later))]
    assert desk.next_turn(messages) == call("check_inventory", sku="B-1")


def test_a_word_said_during_the_run_does_not_change_the_order() -> None:
    messages = [*conversation(CHECKED), user_message("Hurry up!", opens_run=False)]
    assert desk.next_turn(messages) == DEDUCT


def test_the_real_tools_and_the_script_handle_an_order_twice(
    shop: Database, service: NotificationService
) -> None:
    tools: dict[str, Callable[..., JsonValue]] = {
        tool.name: tool.function for tool in desk.order_desk.tools
    }

    def handle() -> str:
        messages = conversation()
        model, run_id = ScriptedModel(desk.next_turn), new_run_id()
        while made := (turn := model.answer(messages)).calls:
            (asked,) = made
            assert isinstance(asked.arguments, dict)
            with shop.begin() as connection:
                given = (
                    {}
                    if asked.tool == "check_inventory"
                    else {"ctx": context(asked.tool, connection, run_id)}
                )
                result = tools[asked.tool](**asked.arguments, **given)
            messages += [
                model.respond(messages, turn),
                results_message([CallResult("call_0", asked.tool, result)]),
            ]
        return turn.text

    assert "DEDUCTED, 9 left" in handle()
    assert "ALREADY_DONE, 9 left" in handle()
    assert in_stock(shop) == 9
    assert len(service.deliveries) == 1


def test_a_real_model_can_be_put_in_the_scripts_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDER_DESK_MODEL", "openai:gpt-5")
    assert runpy.run_path(str(desk.__file__))["order_desk"].model == "openai:gpt-5"
