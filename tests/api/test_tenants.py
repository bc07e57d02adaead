"""What one tenant's transaction sees, by raw SQL: nothing of another's, whatever is asked."""

# features: 000-06, 000-20
from collections.abc import Iterator
from datetime import timedelta

import httpx2
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac import Approval
from celeriac.ids import TenantId
from celeriac.schedule import NewSchedule
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.tenancy import EVERY_OWNER, TenantDatabase, may_restrict
from tests.api.server import Api, key
from tests.console.visitor import Visitors
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

OURS, RIVAL = TenantId("default"), TenantId("rival")
ROW_SECURITY = "42501"
READABLE = {"tokens": "token_id", "console_sessions": "session_id"}  # but no hash
SHARED = {"agents", "workers", "leaders", "strangers"}  # what serves every tenant
TOKEN_OF_OURS = """
INSERT INTO celeriac.tokens (token_id, tenant_id, user_id, name, prefix, hash, roles, created_by)
VALUES ('k1', 'default', 'mallory', 'n', 'cel_', sha256('x'), '{{}}', 'mallory')
"""


@pytest.fixture
def desk(api: Api, database: Database, broker_url: str) -> Iterator[Desk]:
    """A run of ours that waits for a decision, and all kinds of rows that it leaves."""
    ledger = Ledger()
    desk = Desk(
        database, broker_url, ledger, [refund_tool(ledger, Approval())], [("refund", REFUND)]
    )
    desk.client.set_budget("tenant", "default", "steps", hard_limit=100)
    run_id, _ = desk.propose()
    desk.client.set_principal("carl", roles=["cashier"])
    carl = api.person("carl", "operator")
    carl.post(f"/v1/runs/{run_id}/messages", json={"text": "hurry"}, headers=key("k"))
    (proposal,) = carl.get("/v1/approvals").json()["approvals"]
    carl.post(
        f"/v1/approvals/{proposal['approval_id']}/decision",
        json={"decision": "approve", "arguments_hash": proposal["arguments_hash"]},
    )
    desk.go_on(run_id)
    visitors = Visitors(api)
    visitors.signed_in("carl", "operator")
    visitors.close()
    desk.client.remember("seat", "aisle", user_id="alice")
    with database.connect() as connection:
        for table in ("recalls", "selections"):
            connection.exec_driver_sql(
                f"INSERT INTO celeriac.{table} (run_id, step, selection) VALUES (%s, 9, '{{}}')",
                (run_id,),
            )
        connection.exec_driver_sql(
            "INSERT INTO celeriac.memory_vectors SELECT tenant_id, user_id, namespace, memory_key,"
            " 'hashing', version, '{1}' FROM celeriac.memories"
        )
    yield desk
    desk.close()


OF_A_WORKFLOW = """
WITH run AS (SELECT run_id FROM celeriac.runs LIMIT 1), log AS (
    INSERT INTO celeriac.activities (run_id, generation, number, kind, name, fingerprint, step,
        result, result_hash)
    SELECT run_id, 0, 0, 'value', 'random', sha256('random'), 0, '1', sha256('1') FROM run
), plan AS (
    INSERT INTO celeriac.plans (run_id, version, body, hash)
    SELECT run_id, 1, '1', sha256('1') FROM run
)
INSERT INTO celeriac.mailbox (run_id, name, body, hash, sent_by)
SELECT run_id, 'paid', '1', sha256('1'), 'shop' FROM run
"""


def tables(connection: Connection) -> list[str]:
    return list(
        connection.exec_driver_sql(
            "SELECT relname::text FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'celeriac'::regnamespace ORDER BY 1"
        ).scalars()
    )


def counts(transactions: TenantDatabase | Database, names: list[str]) -> dict[str, int]:
    with transactions.begin() as connection:
        return {
            name: connection.exec_driver_sql(
                f"SELECT count({READABLE.get(name, '*')}) FROM celeriac.{name}"
            ).scalar_one()
            for name in names
        }


def test_another_tenant_sees_no_row_of_any_table(database: Database, desk: Desk) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("SELECT FROM celeriac.artifacts")
        names = [name for name in tables(connection) if name not in SHARED]
    agent = desk.rows("SELECT agent FROM celeriac.runs")[0][0]
    desk.client.add_schedule("nightly", NewSchedule(agent, "@daily", "x"))
    desk.client.trigger_schedule("nightly")
    desk.client.start(agent, "x", delay=timedelta(hours=1))
    with database.begin() as connection:
        connection.exec_driver_sql(OF_A_WORKFLOW)

    all_rows = counts(database, names)
    seen_by_us = counts(TenantDatabase(database, [OURS], owners=EVERY_OWNER), names)
    seen_by_rival = counts(TenantDatabase(database, [RIVAL], owners=EVERY_OWNER), names)
    seen_by_nobody = counts(TenantDatabase(database, []), names)

    empty = {name for name, count in all_rows.items() if count == 0}
    assert empty <= {"artifacts"}, "the test needs a row of each kind"
    assert seen_by_us == all_rows
    assert seen_by_rival == seen_by_nobody == dict.fromkeys(names, 0)
    assert desk.violations() == []


def test_every_table_is_behind_a_policy_or_serves_all(database: Database) -> None:
    with database.connect() as connection:
        guarded = set(
            connection.exec_driver_sql(
                "SELECT tablename::text FROM pg_policies WHERE schemaname = 'celeriac'"
                " AND permissive = 'RESTRICTIVE' AND roles = '{celeriac_api}'"
            ).scalars()
        )
        assert set(tables(connection)) - guarded == SHARED


def test_two_tenants_at_once_see_both_and_no_third(database: Database, desk: Desk) -> None:
    ours = counts(TenantDatabase(database, [OURS]), ["runs"])

    assert counts(TenantDatabase(database, [RIVAL, OURS]), ["runs"]) == ours == {"runs": 1}
    assert desk.violations() == []


@pytest.mark.parametrize(
    "write",
    [
        "UPDATE celeriac.runs SET cancel_requested_at = now()",
        "UPDATE celeriac.effects SET attempt = 9",
        "UPDATE celeriac.approvals SET status = 'cancelled'",
        "UPDATE celeriac.threads SET next_position = 9",
    ],
)
def test_another_tenant_changes_no_row(database: Database, desk: Desk, write: str) -> None:
    with TenantDatabase(database, [RIVAL]).begin() as connection:
        assert connection.exec_driver_sql(write).rowcount == 0
    assert desk.violations() == []


@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO celeriac.users VALUES ('default', 'mallory')",
        "INSERT INTO celeriac.events (run_id, seq, type, data) SELECT '{run}', 99, 'x', '{{}}'",
        "INSERT INTO celeriac.inbox (run_id, author, body) VALUES ('{run}', 'mallory', '{{}}')",
        "INSERT INTO celeriac.threads VALUES ('default', 'chat', 'mallory')",
        "DELETE FROM celeriac.runs",
        "SELECT hash FROM celeriac.tokens",
        "SELECT FROM celeriac.strangers",
        "INSERT INTO celeriac.principals (tenant_id, user_id) VALUES ('default', 'mallory')",
        "DELETE FROM celeriac.principals",
        TOKEN_OF_OURS,
        "UPDATE celeriac.tokens SET roles = '{{admin}}'",
        "UPDATE celeriac.events SET type = 'x'",
    ],
)
def test_the_role_of_the_api_may_not(database: Database, desk: Desk, write: str) -> None:
    run_id = desk.rows("SELECT run_id FROM celeriac.runs")[0][0]

    with (
        pytest.raises(DBAPIError) as refused,
        TenantDatabase(database, [RIVAL]).begin() as connection,
    ):
        connection.exec_driver_sql(write.format(run=run_id))

    assert sqlstate(refused.value) == ROW_SECURITY


def test_the_role_ends_with_its_transaction(database: Database) -> None:
    with TenantDatabase(database, [RIVAL]).begin() as connection:
        assert connection.exec_driver_sql("SELECT current_user").scalar() == "celeriac_api"

    for _ in range(8):  # whichever of the pool's it was
        with database.begin() as connection:
            assert connection.exec_driver_sql("SELECT current_user").scalar() != "celeriac_api"
            assert connection.exec_driver_sql(
                "SELECT celeriac.current_tenants()"
            ).scalar_one() is None  # fmt: skip
            assert may_restrict(connection)


def test_no_answer_tells_which_run_ids_another_tenant_has_taken(api: Api, desk: Desk) -> None:
    ours, theirs = api.person("alice", "operator"), api.person("eve", "operator", tenant=RIVAL)
    minted = desk.propose()[0]

    def start(person: httpx2.Client, run_id: str) -> tuple[int, str]:
        response = person.post(
            "/v1/runs", json={"agent": desk.agent.name, "input": "hello", "run_id": run_id}
        )
        return response.status_code, response.text.replace(run_id.partition("@")[0], "ID")

    assert [start(ours, "order-7")[0], start(ours, "order-7@default")[0]] == [201, 201]
    assert [start(theirs, "order-7@rival")[0], start(theirs, "order-7@rival")[0]] == [201, 409]
    assert start(ours, "order-7@rival") == start(ours, "order-8@rival")
    taken, free = start(theirs, "order-7"), start(theirs, "order-8")
    assert taken == free
    assert start(theirs, minted)[1] == free[1]  # known to them, however they learned of it
    assert start(ours, "order-7@rival")[0] == free[0] == 422
    assert start(ours, "order-7")[0] == start(ours, minted)[0] == 409
