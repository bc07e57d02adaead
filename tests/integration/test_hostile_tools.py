"""Tools that misbehave inside a real step: the run and the worker go on, and nothing is half done.

The steps are taken in this process by a real `WorkerProcess`, message by message.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from celeriac import Agent, Client, ToolContext, tool
from celeriac.codec import JsonValue, dumps
from celeriac.ids import call_id
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call
from celeriac.secrets import forget_cached_secrets, register_secret
from celeriac.states import EffectKind, EffectState
from celeriac.tools import Tool
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_tasks.batch import MAX_PARALLEL_READS, next_batch
from tests.worker_in_process import CONNECTIONS, Worker

AnyTool = Tool[..., Any]

# With a delay, so that the answer comes through the model loop, as a provider's does.
DONE = Turn(text="done", delay_seconds=0.001)


@pytest.fixture
def workers(
    database: Database, database_url: str, broker_url: str
) -> Iterator[Callable[..., Worker]]:
    """Makes workers with the given agents; `thinker`, which calls no tool, is always one."""
    with database.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (quantity int)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (10)")
    with ExitStack() as stack:

        def make(*agents: Agent) -> Worker:
            thinker = Agent("thinker", ScriptedModel([DONE]))
            worker = Worker(database_url, broker_url, [*agents, thinker])
            worker.process.start()
            stack.callback(worker.process.stop)
            return worker

        yield make


def agent_that_calls(
    tools: AnyTool | Sequence[AnyTool], turn: Turn | None = None, name: str = "clerk"
) -> Agent:
    """Makes `turn`, or one call of its only tool, and is done after that."""
    tools = [tools] if isinstance(tools, Tool) else tools
    return Agent(name, ScriptedModel([turn or call(tools[0].name), DONE]), tools=tools)


def assert_still_thinks(worker: Worker) -> None:
    run_id = worker.run("thinker")
    row = worker.row(run_id)
    assert (row.status, row.result, row.strikes) == ("completed", "done", 0)


def deduct(connection: Connection) -> None:
    connection.execute(text("UPDATE stock SET quantity = quantity - 1"))


# A tool that ends the step's transaction --------------------------------------------------------


def close(connection: Connection) -> None:
    connection.close()


def commit(connection: Connection) -> None:
    connection.commit()


def roll_back(connection: Connection) -> None:
    connection.rollback()


def say_commit(connection: Connection) -> None:
    connection.execute(text("COMMIT"))


def say_rollback(connection: Connection) -> None:
    connection.execute(text("ROLLBACK"))


def roll_back_and_go_on(connection: Connection) -> None:
    connection.rollback()
    deduct(connection)


def say_rollback_and_go_on(connection: Connection) -> None:
    connection.execute(text("ROLLBACK"))
    deduct(connection)


def commit_unmoved(connection: Connection) -> None:
    """Keep quiet about the refusal."""
    with suppress(Exception):
        connection.commit()


def roll_back_and_commit(connection: Connection) -> None:
    """With the mark gone there is nothing that refuses the COMMIT of the empty transaction."""
    connection.rollback()
    connection.commit()


ENDS = [
    close,
    commit,
    roll_back,
    say_commit,
    say_rollback,
    roll_back_and_go_on,
    say_rollback_and_go_on,
    commit_unmoved,
    roll_back_and_commit,
]


# features: 002-11, 002-16
@pytest.mark.parametrize("end", ENDS)
def test_a_tool_that_ends_the_transaction_fails_without_a_trace_and_the_run_goes_on(
    workers: Callable[..., Worker], end: Callable[[Connection], None]
) -> None:
    @tool(effect="transactional")
    def take(ctx: ToolContext) -> str:
        """Take one from the stock."""
        deduct(ctx.connection)
        end(ctx.connection)
        return "taken"

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert (effect.state, effect.error["kind"]) == ("failed", "tool_ended_transaction")
    assert worker.quantity() == 10
    row = worker.row(run_id)
    assert (row.status, row.result, row.strikes) == ("completed", "done", 0)
    worker.assert_connections_are_clean()


def test_nobody_works_in_the_transaction_of_a_tool_that_closed_its_connection(
    workers: Callable[..., Worker],
) -> None:
    """Closed, the connection is back in the pool while the tool still runs."""
    database: list[Database] = []
    found: list[bool] = []

    @tool(effect="transactional")
    def take(ctx: ToolContext) -> str:
        """Take one from the stock, while others write."""
        deduct(ctx.connection)
        ctx.connection.close()
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                connection = stack.enter_context(database[0].connect())
                driver: Any = connection.connection.driver_connection
                found.append(driver.autocommit)
                connection.exec_driver_sql("UPDATE stock SET quantity = quantity + 100")
        return "taken"

    worker = workers(agent_that_calls(take))
    database.append(worker.database)

    run_id = worker.run("clerk")

    assert worker.effect(run_id).error["kind"] == "tool_ended_transaction"
    assert found == [True] * CONNECTIONS
    assert worker.quantity() == 10 + 100 * CONNECTIONS, "what others wrote went with the step"
    worker.assert_connections_are_clean()


def test_a_tool_that_uses_the_connection_it_closed_fails_without_a_trace(
    workers: Callable[..., Worker],
) -> None:
    @tool(effect="transactional")
    def take(ctx: ToolContext) -> str:
        """Take one from the stock."""
        deduct(ctx.connection)
        ctx.connection.close()
        deduct(ctx.connection)
        return "taken"

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    assert worker.effect(run_id).state == "failed"
    assert worker.quantity() == 10
    assert worker.row(run_id).status == "completed"
    worker.assert_connections_are_clean()


# A tool that leaves the process -----------------------------------------------------------------


def exiting_tool(effect: EffectKind, *, is_async: bool) -> AnyTool:
    if is_async:

        @tool(effect=effect, name="leave")
        async def leave_later() -> str:
            """Leave."""
            await asyncio.sleep(0)
            sys.exit(3)

        return leave_later

    @tool(effect=effect, name="leave")
    def leave() -> str:
        """Leave."""
        sys.exit(3)

    return leave


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_reading_tool_that_exits_fails_and_the_run_goes_on(
    workers: Callable[..., Worker], is_async: bool
) -> None:
    worker = workers(agent_that_calls(exiting_tool(EffectKind.NONE, is_async=is_async)))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert effect.state == "failed"
    assert "SystemExit(3)" in effect.error["message"]
    row = worker.row(run_id)
    assert (row.status, row.result, row.strikes) == ("completed", "done", 0)
    assert_still_thinks(worker)


# features: 002-22
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_external_tool_that_exits_leaves_the_outcome_to_a_person(
    workers: Callable[..., Worker], is_async: bool
) -> None:
    worker = workers(agent_that_calls(exiting_tool(EffectKind.EXTERNAL, is_async=is_async)))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert effect.state == "unknown"
    assert "SystemExit(3)" in effect.error["message"]
    row = worker.row(run_id)
    assert (row.status, row.error["kind"]) == ("needs_attention", "unknown_effect")
    assert_still_thinks(worker)


def test_a_transactional_tool_that_exits_fails_without_a_trace_and_the_run_goes_on(
    workers: Callable[..., Worker],
) -> None:
    @tool(effect="transactional")
    def take(ctx: ToolContext) -> str:
        """Take one from the stock, and leave."""
        deduct(ctx.connection)
        sys.exit(3)

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert effect.state == "failed"
    assert "SystemExit(3)" in effect.error["message"]
    assert worker.quantity() == 10
    assert worker.row(run_id).status == "completed"
    worker.assert_connections_are_clean()
    assert_still_thinks(worker)


# A tool that talks to other servers -------------------------------------------------------------


def ask_postgres() -> None:
    psycopg.connect("host=127.0.0.1 port=1 dbname=other connect_timeout=2")


def ask_postgres_through_sqlalchemy() -> None:
    create_engine("postgresql+psycopg://127.0.0.1:1/other").connect()


def ask_celeriac() -> None:
    Client("postgresql://127.0.0.1:1/other").runs()


ELSEWHERE = [ask_postgres, ask_postgres_through_sqlalchemy, ask_celeriac]


@pytest.mark.parametrize("is_precondition", [False, True], ids=["tool", "precondition"])
@pytest.mark.parametrize("ask", ELSEWHERE)
def test_another_database_that_is_away_is_the_tools_own_trouble(
    workers: Callable[..., Worker], ask: Callable[[], None], *, is_precondition: bool
) -> None:
    def look(_: ToolContext) -> None:
        if is_precondition:
            ask()

    @tool(effect="transactional", precondition=look)
    def take(ctx: ToolContext) -> None:
        """Take one from the stock, and ask elsewhere."""
        deduct(ctx.connection)
        ask()

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    row = worker.row(run_id)
    if is_precondition:
        assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_unclear")
    else:
        assert (row.status, worker.effect(run_id).state) == ("completed", "failed")
    assert row.strikes == 0
    assert worker.quantity() == 10
    worker.assert_connections_are_clean()


def test_a_step_whose_own_session_ends_in_the_tool_is_given_back(
    workers: Callable[..., Worker],
) -> None:
    calls: list[int] = []

    @tool(effect="transactional")
    def take(ctx: ToolContext) -> None:
        """Take one from the stock; the first time its session is ended."""
        calls.append(1)
        if len(calls) == 1:
            ctx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        deduct(ctx.connection)

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    assert len(calls) == 2
    assert (worker.row(run_id).status, worker.effect(run_id).state) == ("completed", "committed")
    assert worker.quantity() == 9


# A result that names code -----------------------------------------------------------------------

NAMES_CODE: JsonValue = {
    "py/object": "os._Environ",
    "py/reduce": [{"py/function": "os._exit"}, {"py/tuple": [3]}],
    "__reduce__": ["os._exit", [3]],
    "__class__": "subprocess.Popen",
    "!!python/object/apply:os._exit": [3],
    "pickle": "gASVHwAAAAAAAACMBXBvc2l4lIwFX2V4aXSUk5RLA4WUUpQu",  # os._exit(3)
}


# features: 000-40 (a payload with the tags of serializers)
def test_what_names_code_in_a_result_is_data(workers: Callable[..., Worker]) -> None:
    @tool(effect="none")
    def fetch() -> JsonValue:
        """Read a page."""
        return NAMES_CODE

    worker = workers(agent_that_calls(fetch))

    run_id = worker.run("clerk")

    assert worker.effect(run_id).result == NAMES_CODE
    assert worker.row(run_id).status == "completed"


# Arguments with a secret ------------------------------------------------------------------------

SECRET = "s3cret-Of-the-shop-77"


@pytest.fixture
def forgotten_secrets() -> Iterator[None]:
    forget_cached_secrets()
    yield
    forget_cached_secrets()


@pytest.fixture(params=["registered", "environment"])
def known_secret(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    forgotten_secrets: None,  # noqa: ARG001 - the environment is read anew
) -> str:
    if request.param == "registered":
        register_secret(SECRET)
    else:
        monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    return SECRET


@pytest.mark.parametrize("effect", list(EffectKind))
@pytest.mark.parametrize(
    "arguments",
    [{"key": SECRET}, {"key": f"before {SECRET} after"}],
    ids=["alone", "inside"],
)
def test_a_call_whose_arguments_hold_a_secret_is_invalid_and_never_executed(
    workers: Callable[..., Worker],
    known_secret: str,
    effect: EffectKind,
    arguments: dict[str, str],
) -> None:
    executed: list[str] = []

    @tool(effect=effect)
    def log_in(ctx: ToolContext, key: str) -> str:
        """Log in.

        Args:
            key: what opens the door.
        """
        executed.append(f"{ctx.call_id} {key}")
        return "in"

    worker = workers(agent_that_calls(log_in, call("log_in", **arguments)))

    run_id = worker.run("clerk")

    assert executed == []
    stored = worker.effect(run_id)
    assert (stored.state, stored.attempt) == ("invalid", 0)
    assert stored.error["kind"] == "invalid_arguments"
    assert "name the secret instead of sending it" in stored.error["message"]
    assert worker.row(run_id).status == "completed"
    with worker.database.connect() as connection:
        messages = connection.exec_driver_sql("SELECT body FROM celeriac.messages").scalars().all()
    assert known_secret not in dumps([stored.arguments, stored.error, *messages])


@pytest.mark.usefixtures("known_secret")
def test_a_call_without_a_secret_is_executed_as_it_was_asked_for(
    workers: Callable[..., Worker],
) -> None:
    executed: list[str] = []

    @tool(effect="none")
    def log_in(key: str) -> str:
        """Log in.

        Args:
            key: what opens the door.
        """
        executed.append(key)
        return "in"

    worker = workers(agent_that_calls(log_in, call("log_in", key="the one under the mat")))

    run_id = worker.run("clerk")

    assert executed == ["the one under the mat"]
    assert worker.effect(run_id).state == "committed"


# A transactional tool that takes too long -------------------------------------------------------


def test_a_statement_longer_than_the_tools_timeout_is_given_up_and_undone(
    workers: Callable[..., Worker],
) -> None:
    @tool(effect="transactional", timeout_seconds=0.2)
    def take(ctx: ToolContext) -> str:
        """Take one from the stock, slowly."""
        deduct(ctx.connection)
        ctx.connection.execute(text("SELECT pg_sleep(86400)"))
        return "taken"

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert (effect.state, effect.error["kind"]) == ("failed", "timeout")
    assert worker.quantity() == 10
    assert worker.row(run_id).status == "completed"
    worker.assert_connections_are_clean()


def test_a_wait_for_a_row_longer_than_the_tools_timeout_is_given_up(
    workers: Callable[..., Worker], database: Database
) -> None:
    @tool(effect="transactional", timeout_seconds=0.2)
    def take(ctx: ToolContext) -> str:
        """Take one from the stock."""
        deduct(ctx.connection)
        return "taken"

    worker = workers(agent_that_calls(take))

    with database.begin() as somebody:
        deduct(somebody)
        run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert (effect.state, effect.error["kind"]) == ("failed", "timeout")
    assert worker.quantity() == 9, "only what somebody else took"
    worker.assert_connections_are_clean()


def test_a_wait_before_the_tool_is_called_is_not_told_as_the_tools(
    workers: Callable[..., Worker], database: Database
) -> None:
    """As for a zombie, whose transaction holds the row of the call that it is making."""
    called = []

    @tool(effect="transactional", timeout_seconds=0.2)
    def take(ctx: ToolContext) -> str:
        """Take one from the stock."""
        called.append(1)
        deduct(ctx.connection)
        return "taken"

    worker = workers(agent_that_calls(take))
    run_id = worker.start("clerk")
    worker.step(run_id)

    with database.begin() as zombie:
        zombie.exec_driver_sql(
            "UPDATE celeriac.effects SET tool_version = tool_version WHERE run_id = %s", (run_id,)
        )
        worker.step(run_id)

    assert (worker.effect(run_id).state, called) == ("planned", [])
    assert worker.row(run_id).status == "queued"
    worker.step(run_id)
    assert (worker.effect(run_id).state, worker.quantity()) == ("committed", 9)


def test_a_tool_that_goes_on_after_an_error_learns_of_savepoints(
    workers: Callable[..., Worker],
) -> None:
    @tool(effect="transactional")
    def take(ctx: ToolContext) -> str:
        """Take one from the stock, and do not mind errors."""
        deduct(ctx.connection)
        with suppress(DBAPIError):
            ctx.connection.execute(text("SELECT 1 / 0"))
        return "taken"

    worker = workers(agent_that_calls(take))

    run_id = worker.run("clerk")

    effect = worker.effect(run_id)
    assert (effect.state, effect.error["kind"]) == ("failed", "tool_broke_transaction")
    assert "begin_nested" in effect.error["message"]
    assert (worker.quantity(), worker.row(run_id).status) == (10, "completed")
    worker.assert_connections_are_clean()


# A tool that runs beside no other ---------------------------------------------------------------


def effect_of(number: int, kind: EffectKind = EffectKind.NONE, *, exclusive: bool) -> Effect:
    return Effect(
        call_id(0, number), f"p{number}", "look", "1", kind, {}, EffectState.PLANNED,
        attempt=0, token=None, result=None, error=None, is_exclusive=exclusive,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "batches"),
    [
        ("rrr", ["rrr"]),
        ("x", ["x"]),
        ("xx", ["x", "x"]),
        ("xr", ["x", "r"]),
        ("rrxrr", ["rr", "x", "rr"]),
        ("rxe", ["r", "x", "e"]),
    ],
)
def test_an_exclusive_reading_call_is_a_batch_of_its_own(calls: str, batches: list[str]) -> None:
    """`r` reads, `x` reads exclusively, `e` is external."""
    pending: Sequence[Effect] = [
        effect_of(
            number,
            EffectKind.EXTERNAL if letter == "e" else EffectKind.NONE,
            exclusive=letter == "x",
        )
        for number, letter in enumerate(calls)
    ]
    made: list[str] = []
    while pending:
        batch = next_batch(pending)
        made.append("".join(calls[int(effect.call_id.split(".")[1])] for effect in batch.effects))
        pending = batch.remaining

    assert made == batches


def test_many_reading_calls_are_as_many_steps_as_they_need_rounds(
    workers: Callable[..., Worker],
) -> None:
    # A step has the time of one call, so it makes no more than it can make at once.
    inside: list[str] = []
    most: list[int] = []

    @tool(effect="none")
    def look(ctx: ToolContext) -> str:
        """Look beside others."""
        inside.append(ctx.call_id)
        most.append(len(inside))
        inside.remove(ctx.call_id)
        return "seen"

    turn = Turn(calls=tuple(ToolCall("look", {}) for _ in range(2 * MAX_PARALLEL_READS + 1)))
    worker = workers(agent_that_calls(look, turn))

    run_id = worker.run("clerk")

    assert worker.row(run_id).status == "completed"
    with worker.database.connect() as connection:
        messages = connection.exec_driver_sql(
            "SELECT jsonb_array_length(body -> 'calls') FROM celeriac.messages"
            " WHERE run_id = %s AND role = 'results' ORDER BY position",
            (run_id,),
        )
        assert [row[0] for row in messages] == [MAX_PARALLEL_READS, MAX_PARALLEL_READS, 1]
    assert max(most) <= MAX_PARALLEL_READS


@pytest.mark.parametrize("changes_worker", [False, True], ids=["same_worker", "another_worker"])
def test_an_exclusive_call_runs_beside_no_other_whoever_has_planned_it(
    workers: Callable[..., Worker], changes_worker: bool
) -> None:
    inside: list[str] = []
    together: list[list[str]] = []
    lock = threading.Lock()
    both_look = threading.Barrier(2)

    def note(name: str) -> None:
        with lock:
            inside.append(name)
            together.append(sorted(inside))

    @tool(effect="none")
    def look() -> str:
        """Look beside others."""
        note("look")
        both_look.wait(10)
        with lock:
            inside.remove("look")
        return "seen"

    @tool(effect="none", exclusive=True)
    def stare() -> str:
        """Look alone."""
        note("stare")
        threading.Event().wait(0.1)
        with lock:
            inside.remove("stare")
        return "seen"

    made = ["look", "look", "stare", "stare", "look", "look"]
    turn = Turn(calls=tuple(ToolCall(name, {}) for name in made))
    agent = agent_that_calls([look, stare], turn)
    planner = workers(agent)
    doer = workers(agent) if changes_worker else planner

    run_id = planner.start("clerk")
    planner.step(run_id)
    steps = 0
    while doer.row(run_id).phase == "waiting_tool":
        doer.step(run_id)
        steps += 1

    assert steps == 4
    assert all(seen in (["look"], ["look", "look"], ["stare"]) for seen in together)
    assert together.count(["stare"]) == 2
    assert together.count(["look", "look"]) == 2
