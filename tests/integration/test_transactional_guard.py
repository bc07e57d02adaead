"""A tool that ends the step's transaction itself is refused by the database, writes and all."""

# features: 002-11, 002-16
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.errors import Fenced
from celeriac.ids import CallId, RunId, call_id
from celeriac.states import EffectKind, EffectState, Phase, StepKind
from celeriac_storage import effects, steps
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database, driver_of, ends_transaction, sqlstate
from celeriac_storage.step_record import Message, Next, PlannedEffect, SettledEffect, StepRecord
from tests.steps_by_hand import Hand

TOOL_ENDED_TRANSACTION = "CE004"


@pytest.fixture
def hand(database: Database) -> Hand:
    with database.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (sku text PRIMARY KEY, quantity int)")
        connection.exec_driver_sql("INSERT INTO stock VALUES ('lamp', 10)")
    return Hand(database)


@pytest.fixture
def act(hand: Hand) -> Claim:
    """A claimed act step, about to make one transactional call."""
    run_id = hand.start()
    call = call_id(0, 0)
    hand.commit(
        hand.claim(run_id),
        StepRecord(
            Next.queued(Phase.WAITING_TOOL),
            StepKind.THINK,
            "before_tools",
            state={"phase": Phase.WAITING_TOOL, "pending": [call]},
            messages=[Message("assistant", {"kind": "response", "parts": []})],
            planned=[
                PlannedEffect(call, 0, "p0", "deduct", "1", EffectKind.TRANSACTIONAL, {"sku": 1})
            ],
        ),
    )
    return hand.claim(run_id)


def deduct(connection: Connection) -> None:
    connection.exec_driver_sql("UPDATE stock SET quantity = quantity - 1 WHERE sku = 'lamp'")


def quantity(database: Database) -> int:
    with database.connect() as connection:
        return int(connection.exec_driver_sql("SELECT quantity FROM stock").scalar_one())


def finished(call: CallId) -> StepRecord:
    return StepRecord(
        Next.queued(Phase.WAITING_MODEL),
        StepKind.ACT,
        "after_tools",
        state={"phase": Phase.WAITING_MODEL},
        messages=[Message("results", {"calls": [call]})],
        settled=[SettledEffect(call, EffectState.IN_FLIGHT, EffectState.COMMITTED, {"left": 9})],
    )


def untouched(hand: Hand, run_id: RunId) -> bool:
    """Whether the run stands where the claim found it, and the stock is as it was."""
    row, effect = hand.row(run_id), hand.effect(run_id, call_id(0, 0))
    return (
        (row.status, row.step) == ("running", 1)
        and (effect.state, effect.attempt, effect.token) == ("planned", 0, None)
        and quantity(hand.database) == 10
    )


def test_the_tools_writes_and_the_step_commit_together(hand: Hand, act: Claim) -> None:
    call = call_id(0, 0)
    with hand.database.begin() as connection:
        effects.begin_transactional(connection, act, call, 60)
        deduct(connection)
        steps.commit(connection, act, finished(call))

    assert quantity(hand.database) == 9
    effect = hand.effect(act.run_id, call)
    assert (effect.state, effect.attempt, effect.result) == ("committed", 1, {"left": 9})
    with hand.database.connect() as connection:
        writers = connection.exec_driver_sql(
            "SELECT xmin::text FROM stock"
            " UNION SELECT xmin::text FROM celeriac.effects"
            " UNION SELECT xmin::text FROM celeriac.checkpoints WHERE step = 1"
        ).all()
    assert len(writers) == 1, "all of it is the work of one transaction"


def commit_as_a_tool_would(connection: Connection) -> None:
    connection.exec_driver_sql("COMMIT")


def commit_through_the_driver(connection: Connection) -> None:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    driver.commit()


def commit_and_go_on_in_a_new_transaction(connection: Connection) -> None:
    connection.exec_driver_sql("COMMIT AND CHAIN")


@pytest.mark.parametrize(
    "end",
    [
        commit_as_a_tool_would,
        commit_through_the_driver,
        commit_and_go_on_in_a_new_transaction,
    ],
)
def test_a_tool_that_commits_is_refused_with_all_it_wrote(
    hand: Hand, act: Claim, end: Callable[[Connection], None]
) -> None:
    def call_tool(connection: Connection) -> None:
        effects.begin_transactional(connection, act, call_id(0, 0), 60)
        deduct(connection)
        end(connection)

    with pytest.raises((DBAPIError, psycopg.Error)) as refused, hand.database.begin() as connection:
        call_tool(connection)

    error = refused.value
    assert (sqlstate(error) or getattr(error, "sqlstate", None)) == TOOL_ENDED_TRANSACTION
    assert "the tool deduct ended the step's transaction" in str(error)
    assert untouched(hand, act.run_id)


def test_no_savepoint_can_go_on_after_the_refusal(hand: Hand, act: Claim) -> None:
    with hand.database.begin() as connection:
        effects.begin_transactional(connection, act, call_id(0, 0), 60)
        with pytest.raises(DBAPIError) as refused:
            connection.exec_driver_sql("COMMIT")

        assert ends_transaction(refused.value, driver_of(connection))


def test_a_tool_that_rolls_back_takes_the_mark_with_it(hand: Hand, act: Claim) -> None:
    """Then the step's commit does not find the effect in flight, and refuses as well."""
    call = call_id(0, 0)

    def call_tool(connection: Connection) -> None:
        effects.begin_transactional(connection, act, call, 60)
        deduct(connection)
        connection.exec_driver_sql("ROLLBACK")
        deduct(connection)
        steps.commit(connection, act, finished(call))

    with pytest.raises(psycopg.DatabaseError) as refused, hand.database.begin() as connection:
        call_tool(connection)

    assert sqlstate(refused.value) == "CE005"
    assert untouched(hand, act.run_id)


def test_a_tools_constraint_made_immediate_is_refused_at_once(hand: Hand, act: Claim) -> None:
    """`SET CONSTRAINTS ALL IMMEDIATE` cannot be used to get around the guard."""

    def call_tool(connection: Connection) -> None:
        effects.begin_transactional(connection, act, call_id(0, 0), 60)
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    with pytest.raises(DBAPIError) as refused, hand.database.begin() as connection:
        call_tool(connection)

    assert sqlstate(refused.value) == TOOL_ENDED_TRANSACTION


def test_a_failed_call_is_recorded_without_its_writes(hand: Hand, act: Claim) -> None:
    call = call_id(0, 0)
    failed = SettledEffect(
        call, EffectState.IN_FLIGHT, EffectState.FAILED, error={"kind": "tool_error"}
    )
    with hand.database.begin() as connection:
        effects.begin_transactional(connection, act, call, 60)
        savepoint = connection.begin_nested()
        deduct(connection)
        savepoint.rollback()
        record = StepRecord(
            Next.queued(Phase.WAITING_MODEL), StepKind.ACT, "after_tools", settled=[failed]
        )
        steps.commit(connection, act, record)

    assert quantity(hand.database) == 10
    assert hand.effect(act.run_id, call).state == "failed"


def test_a_fenced_worker_does_not_begin_the_call(hand: Hand, act: Claim) -> None:
    with hand.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET status = 'queued', claim_token = NULL WHERE run_id = %s",
            (act.run_id,),
        )

    with pytest.raises(Fenced), hand.database.begin() as connection:
        effects.begin_transactional(connection, act, call_id(0, 0), 60)

    assert hand.effect(act.run_id, call_id(0, 0)).state == "planned"


def test_what_a_tool_wrote_is_lost_with_the_claim(hand: Hand, act: Claim) -> None:
    """The claim goes to another worker while the tool works: its writes go with the fence."""
    call = call_id(0, 0)

    def call_tool(connection: Connection) -> None:
        effects.begin_transactional(connection, act, call, 60)
        deduct(connection)
        with hand.database.connect() as others:
            others.exec_driver_sql(
                "UPDATE celeriac.runs SET status = 'queued', claim_token = NULL WHERE run_id = %s",
                (act.run_id,),
            )
        steps.commit(connection, act, finished(call))

    with pytest.raises(Fenced), hand.database.begin() as connection:
        call_tool(connection)

    assert quantity(hand.database) == 10
    assert hand.effect(act.run_id, call).state == "planned"
    assert hand.row(act.run_id).step == 1
