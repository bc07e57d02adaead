"""No memory without a decision: refused to whoever works, and seen by the audit where it is so."""

# features: 000-16, 000-19, 000-20
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac_storage.audit import audit
from celeriac_storage.database import Database, sqlstate
from tests.rememberer import ASKS, Rememberer, wish

PERMISSION_DENIED, FOREIGN_KEY = "42501", "23503"
NOT_NULL, CHECK = "23502", "23514"
APPEND_ONLY, FIXED, UNDECIDED = "CE001", "CE003", "CE006"

OWN = "'default', 'alice', 'default', 'seat'"


VECTOR = (
    "INSERT INTO celeriac.memory_vectors"
    " (tenant_id, user_id, namespace, memory_key, embedder, version, embedding)"
    " VALUES ('default', 'alice', 'default', 'seat', 'hashing', {version}, '{{1}}')"
)


@pytest.fixture(params=["celeriac_worker", "celeriac_api"])
def login(request: pytest.FixtureRequest, database_url: str) -> Iterator[Database]:
    """Connections that have the rights of that role and no others; it sees Alice's memories."""
    options = "%20".join(
        f"-c{name}%3D{value}"
        for name, value in {
            "role": request.param,
            "celeriac.tenant": "default",
            "celeriac.owner": "alice",
        }.items()
    )
    database = Database(f"{database_url}?options={options}")
    yield database
    database.close()


@pytest.fixture
def kept(rememberer: Rememberer) -> Rememberer:
    """One memory and its vector, one refused candidate, and a recall."""
    rememberer.talk(ASKS, wish())
    with rememberer.database.begin() as connection:
        connection.exec_driver_sql(VECTOR.format(version=1))
    rememberer.talk("I am in Kyoto.", wish(key="place", value="Kyoto", user_said="I am in Kyoto."))
    assert rememberer.violations() == []
    return rememberer


def refusal(database: Database, sql: str) -> str | None:
    with pytest.raises(DBAPIError) as refused, database.begin() as connection:
        connection.exec_driver_sql(sql)
    return sqlstate(refused.value)


def insert(decision: str, content: str = '"x"', key: str = "new", kind: str = "semantic") -> str:
    return (
        "INSERT INTO celeriac.memories (tenant_id, user_id, namespace, memory_key, kind, version,"
        " content, content_hash, search, decision_id)"
        f" VALUES ('default', 'alice', 'default', '{key}', '{kind}', 1, '{content}', '', '',"
        f" {decision})"
    )


THE_ALLOWED = "(SELECT decision_id FROM celeriac.memory_decisions WHERE verdict = 'allow')"
THE_REFUSED = "(SELECT decision_id FROM celeriac.memory_decisions WHERE verdict = 'refuse')"


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        (insert("NULL"), NOT_NULL),
        (insert("4711"), FOREIGN_KEY),
        (insert(THE_REFUSED, '"Kyoto"', key="place"), FOREIGN_KEY),
        (insert(THE_ALLOWED), FOREIGN_KEY),  # decided about another key
        (insert(THE_ALLOWED, key="../x"), CHECK),
        (insert(THE_ALLOWED, kind="wisdom"), CHECK),
        ("UPDATE celeriac.memories SET content = '\"other\"'", FIXED),
        ("UPDATE celeriac.memories SET content = '\"other\"', version = version + 1", UNDECIDED),
        (
            "UPDATE celeriac.memories SET expires_at = now(), version = version + 1",
            UNDECIDED,
        ),
        (
            f"UPDATE celeriac.memories SET version = version + 1, decision_id = {THE_REFUSED}",
            FOREIGN_KEY,
        ),
        ("UPDATE celeriac.memories SET user_id = 'bob'", PERMISSION_DENIED),
        ("UPDATE celeriac.memories SET verdict = 'refuse'", PERMISSION_DENIED),
        ("UPDATE celeriac.memory_decisions SET verdict = 'allow'", PERMISSION_DENIED),
        ("DELETE FROM celeriac.memories", PERMISSION_DENIED),
        ("DELETE FROM celeriac.memory_decisions", PERMISSION_DENIED),
        ("TRUNCATE celeriac.memories", PERMISSION_DENIED),
        ("UPDATE celeriac.recalls SET selection = '{}'", PERMISSION_DENIED),
        ("DELETE FROM celeriac.memory_vectors", PERMISSION_DENIED),
        ("UPDATE celeriac.memory_vectors SET user_id = 'bob'", PERMISSION_DENIED),
        ("ALTER TABLE celeriac.memories DISABLE TRIGGER guard_memory", PERMISSION_DENIED),
    ],
)
def test_whoever_works_cannot_write_what_nobody_allowed(
    kept: Rememberer, login: Database, sql: str, code: str
) -> None:
    assert refusal(login, sql) == code
    assert kept.memories() == {"seat": "Prefers aisle seats"}
    assert kept.violations() == []


def procedural(approval: str) -> str:
    return (
        "INSERT INTO celeriac.memory_decisions (tenant_id, user_id, verdict, reason, namespace,"
        " memory_key, kind, content_hash, origin, run_id, call_id, approval_id, proposed_by,"
        " policy_version) SELECT 'default', 'alice', 'allow', 'approved', 'default', 'way',"
        f" 'procedural', sha256('x'), 'user', run_id, '9.9', {approval}, 'x', 'x'"
        " FROM celeriac.runs LIMIT 1"
    )


def test_whoever_works_cannot_allow_what_changes_agents(kept: Rememberer, login: Database) -> None:
    assert refusal(login, procedural("NULL")) == UNDECIDED
    assert refusal(login, procedural("'a0'")) == UNDECIDED
    assert kept.violations() == []


def test_a_decision_about_a_call_names_the_owner_of_its_run(kept: Rememberer) -> None:
    with kept.database.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.users VALUES ('default', 'bob')")
    sql = procedural("NULL").replace("'alice'", "'bob'").replace("'procedural'", "'semantic'")

    assert refusal(kept.database, sql) == UNDECIDED


def test_a_deleted_memory_does_not_come_back_on_its_old_decision(kept: Rememberer) -> None:
    kept.client.forget("seat", user_id="alice", by="alice")

    back = (
        "UPDATE celeriac.memories SET content = '\"Prefers aisle seats\"', search = '',"
        " version = version + 1, deleted_at = NULL, deleted_by = NULL"
    )
    assert refusal(kept.database, back) == UNDECIDED
    assert kept.memories() == {}
    assert kept.violations() == []


def test_whoever_forgets_takes_the_vectors_along(kept: Rememberer, login: Database) -> None:
    """Neither role may delete a vector by itself, and none is left."""
    with login.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.memories SET content = NULL, search = NULL, version = version + 1,"
            " deleted_at = now(), deleted_by = 'alice'"
        )

    assert kept.rows("SELECT FROM celeriac.memory_vectors") == []
    assert kept.violations() == []


@pytest.mark.parametrize("table", ["memory_decisions", "recalls"])
def test_the_owner_of_the_tables_may_not_change_history(kept: Rememberer, table: str) -> None:
    column = "tenant_id" if table == "memory_decisions" else "run_id"
    for sql in (
        f"UPDATE celeriac.{table} SET {column} = {column}",
        f"DELETE FROM celeriac.{table}",
        f"TRUNCATE celeriac.{table} CASCADE",
    ):
        assert refusal(kept.database, sql) == APPEND_ONLY


DELETED_IN_PART = """
ALTER TABLE celeriac.memories DROP CONSTRAINT memories_deleted;
UPDATE celeriac.memories SET deleted_at = now()
"""


@pytest.mark.parametrize(
    ("sql", "invariant", "detail"),
    [
        ("DELETE FROM celeriac.memory_decisions WHERE verdict = 'allow'", 6, "seat of alice: no d"),
        ("UPDATE celeriac.memory_decisions SET verdict = 'refuse'", 6, "it was refused"),
        ("UPDATE celeriac.memory_decisions SET user_id = 'bob'", 6, "decided for another owner"),
        ("UPDATE celeriac.memory_decisions SET user_id = 'bob'", 6, "the decision names bob"),
        ("UPDATE celeriac.memory_decisions SET memory_key = 'x'", 6, "under another key"),
        ("UPDATE celeriac.memory_decisions SET content_hash = sha256('')", 6, "other content"),
        ("UPDATE celeriac.memories SET content = '\"other\"'", 7, "default/seat of alice"),
        ("UPDATE celeriac.memory_vectors SET version = 2", 6, "by hashing: of version 2"),
        ("UPDATE celeriac.memory_vectors SET memory_key = 'x'", 6, "by hashing: it is forgotten"),
        (DELETED_IN_PART, 6, "deleted in part"),
        ("DELETE FROM celeriac.memory_decisions WHERE verdict = 'refuse'", 6, "call 0.0: no decis"),
        ("UPDATE celeriac.recalls SET run_id = 'x' || run_id", 8, "rows in recalls"),
    ],
)
def test_the_audit_sees_the_damage(kept: Rememberer, sql: str, invariant: int, detail: str) -> None:
    with kept.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(sql)

    found = [each for each in audit(kept.database) if detail in each.detail]

    assert {each.invariant for each in found} == {invariant}
