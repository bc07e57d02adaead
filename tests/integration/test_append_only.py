"""History is written once: refused by trigger to whoever owns it, by rights to whoever works."""

# features: 002-05
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac.ids import CallId, RunId
from celeriac.states import EffectState, Phase, StepKind
from celeriac_storage import artifacts, claims, effects
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.schema import check_schema
from celeriac_storage.step_record import Message, Next, SettledEffect, StepRecord
from tests.steps_by_hand import AGENT, Hand

APPEND_ONLY = "CE001"
PERMISSION_DENIED = "42501"

HISTORY = ["checkpoints", "messages", "events", "effect_attempts", "model_calls"]
KEPT = ["runs", "effects"]
CHANGES = {
    "update": "UPDATE celeriac.{table} SET run_id = run_id",
    "update without rows": "UPDATE celeriac.{table} SET run_id = run_id WHERE false",
    "delete": "DELETE FROM celeriac.{table}",
    "truncate": "TRUNCATE celeriac.{table} CASCADE",
}


@pytest.fixture
def worker_database(database_url: str) -> Iterator[Database]:
    """Connections that have the rights of `celeriac_worker` and no others."""
    database = Database(f"{database_url}?options=-crole%3Dceleriac_worker")
    yield database
    database.close()


def refusal(database: Database, sql: str) -> str | None:
    with pytest.raises(DBAPIError) as refused, database.connect() as connection:
        connection.exec_driver_sql(sql)
    return sqlstate(refused.value)


def through_all_kinds_of_steps(hand: Hand) -> RunId:
    """A run that asked for a call, made it, was told, and ended."""
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    claim = hand.begin_call(run_id, call)
    hand.commit(
        claim,
        StepRecord(
            Next.queued(Phase.WAITING_MODEL),
            StepKind.ACT,
            "after_tools",
            state={"phase": Phase.WAITING_MODEL},
            messages=[Message("results", {"calls": [call]})],
            settled=[
                SettledEffect(
                    call, EffectState.IN_FLIGHT, EffectState.COMMITTED, "done", is_attempt=True
                )
            ],
        ),
    )
    hand.complete(run_id)
    return run_id


@pytest.mark.parametrize("table", HISTORY)
def test_the_owner_may_not_change_history(database: Database, table: str) -> None:
    through_all_kinds_of_steps(Hand(database))

    codes = {name: refusal(database, sql.format(table=table)) for name, sql in CHANGES.items()}

    assert codes == dict.fromkeys(CHANGES, APPEND_ONLY)


@pytest.mark.parametrize("table", KEPT)
def test_the_owner_may_not_delete_runs_or_effects(database: Database, table: str) -> None:
    through_all_kinds_of_steps(Hand(database))

    codes = {
        name: refusal(database, CHANGES[name].format(table=table))
        for name in ("delete", "truncate")
    }

    assert codes == dict.fromkeys(["delete", "truncate"], APPEND_ONLY)


@pytest.mark.parametrize("table", HISTORY)
def test_a_worker_has_no_right_to_change_history(worker_database: Database, table: str) -> None:
    codes = {
        name: refusal(worker_database, sql.format(table=table)) for name, sql in CHANGES.items()
    }

    assert codes == dict.fromkeys(CHANGES, PERMISSION_DENIED)


@pytest.mark.parametrize("table", KEPT)
def test_a_worker_has_no_right_to_delete(worker_database: Database, table: str) -> None:
    assert refusal(worker_database, f"DELETE FROM celeriac.{table}") == PERMISSION_DENIED
    assert refusal(worker_database, f"TRUNCATE celeriac.{table} CASCADE") == PERMISSION_DENIED


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE celeriac.events DISABLE TRIGGER append_only",
        "DROP TRIGGER append_only ON celeriac.events",
        "SET session_replication_role = replica",
        "CREATE TABLE celeriac.mine (id int)",
        "UPDATE celeriac.artifacts SET content = ''",
        "UPDATE celeriac.agents SET definition = '{}'",
        "DELETE FROM celeriac.workers",
        "UPDATE celeriac.budgets SET hard_limit = 1000000",
        "INSERT INTO celeriac.budget_changes SELECT",
        "UPDATE celeriac.budget_entries SET reserved = 0",
        "DELETE FROM celeriac.budget_entries",
        "UPDATE celeriac.selections SET selection = '{}'",
    ],
)
def test_a_worker_cannot_get_around_that(worker_database: Database, change: str) -> None:
    # features: 002-06
    assert refusal(worker_database, change) == PERMISSION_DENIED


def test_the_rights_of_a_worker_are_enough_for_its_work(worker_database: Database) -> None:
    check_schema(worker_database)

    hand = Hand(worker_database)
    run_id = through_all_kinds_of_steps(hand)
    with worker_database.connect() as connection:
        artifacts.store(connection, '"a large value"')
        effects.load(connection, run_id, [CallId("0.0")])
    released = hand.start()
    held = hand.claim(released)
    with worker_database.connect() as connection:
        assert claims.release(connection, held)
    hand.poisoned(released)

    assert hand.row(run_id).status == "completed"
    assert hand.row(released).agent == AGENT
