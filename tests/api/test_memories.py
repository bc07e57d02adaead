"""Alice's memories and Bob's: over HTTP, by SQL as the API's role, in searches and exports."""

# features: 000-20, 000-38
import pytest
from sqlalchemy.exc import DBAPIError

from celeriac.ids import DEFAULT_TENANT
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.tenancy import EVERY_OWNER, TenantDatabase
from tests.api.server import Api, key, problem

SEAT = "/v1/memories/default/seat"


@pytest.fixture(autouse=True)
def remembered(api: Api) -> None:
    """Both have the key `seat`."""
    for user, value in (("alice", "Prefers aisle seats"), ("bob", "Prefers window seats")):
        done = api.person(user).put(SEAT, json={"value": value}).json()
        assert (done["store"], done["version"]) == (True, 1)


QUERIES = [
    "",
    "?query=seats",
    "?query=%25",
    "?query=_",
    "?query=*",
    "?query=aisle%20window",
    "?query=%27%20OR%20true--",
]
DELETE_ALICES = """
UPDATE celeriac.memories SET content = NULL, search = NULL, version = version + 1,
    deleted_at = now(), deleted_by = 'bob' WHERE user_id = 'alice'
"""


@pytest.mark.parametrize("query", QUERIES)
def test_nobody_finds_anothers_whatever_is_searched_for(api: Api, query: str) -> None:
    found = api.person("bob").get(f"/v1/memories{query}").json()["memories"]

    assert {each["user_id"] for each in found} <= {"bob"}
    if query in ("", "?query=seats"):
        assert [each["value"] for each in found] == ["Prefers window seats"]
    if query in ("?query=%25", "?query=_", "?query=*"):
        assert found == []


def test_the_same_key_is_each_ones_own(api: Api) -> None:
    alice, bob = api.person("alice"), api.person("bob")

    assert alice.get(SEAT).json()["value"] == "Prefers aisle seats"
    assert bob.get(SEAT).json()["value"] == "Prefers window seats"
    assert problem(bob.get(f"{SEAT}?user_id=alice")) == (404, "unknown-memory")
    assert problem(bob.get("/v1/memories?user_id=alice")) == (403, "role-missing")
    assert problem(bob.get("/v1/memories/export?user_id=alice")) == (403, "role-missing")
    assert problem(bob.delete(f"{SEAT}?user_id=alice")) == (404, "unknown-memory")
    assert problem(bob.put(SEAT, json={"value": "x", "user_id": "alice"})) == (403, "role-missing")
    assert alice.get(SEAT).json()["value"] == "Prefers aisle seats"
    assert len(api.denials()) == 5


def test_an_export_has_all_of_one_user_and_nothing_of_another(api: Api) -> None:
    exported = api.person("alice").get("/v1/memories/export")

    told = exported.json()
    assert [each["key"] for each in told["memories"]] == ["seat"]
    assert [each["reason"] for each in told["decisions"]] == ["explicit_request"]
    assert "window" not in exported.text
    assert "bob" not in exported.text


def test_the_role_of_the_api_sees_one_owner(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.memory_vectors SELECT tenant_id, user_id, namespace, memory_key,"
            " 'hashing', version, '{1}' FROM celeriac.memories"
        )

    def owners(*of: str) -> set[str]:
        with TenantDatabase(database, [DEFAULT_TENANT], owners=of).begin() as connection:
            rows = connection.exec_driver_sql(
                "SELECT user_id FROM celeriac.memories"
                " UNION ALL SELECT user_id FROM celeriac.memory_decisions"
                " UNION ALL SELECT user_id FROM celeriac.memory_vectors"
            )
            return {row[0] for row in rows}

    assert owners("bob") == {"bob"}
    assert owners() == set()
    assert owners(*EVERY_OWNER) == {"alice", "bob"}


@pytest.mark.parametrize(
    "write",
    [
        DELETE_ALICES,
        "UPDATE celeriac.memories SET version = version + 1 WHERE user_id = 'alice'",
    ],
)
def test_the_role_of_the_api_changes_nothing_of_another_owner(
    database: Database, write: str
) -> None:
    with TenantDatabase(database, [DEFAULT_TENANT], owners=["bob"]).begin() as connection:
        assert connection.exec_driver_sql(write).rowcount == 0


def test_the_role_of_the_api_decides_nothing_for_another_owner(database: Database) -> None:
    with (
        pytest.raises(DBAPIError) as refused,
        TenantDatabase(database, [DEFAULT_TENANT], owners=["bob"]).begin() as connection,
    ):
        connection.exec_driver_sql(
            "INSERT INTO celeriac.memory_decisions (tenant_id, user_id, verdict, reason,"
            " content_hash, origin, proposed_by, policy_version)"
            " VALUES ('default', 'alice', 'refuse', 'x', sha256('x'), 'person', 'bob', 'x')"
        )
    assert sqlstate(refused.value) == "42501"


def test_what_is_refused_is_told_and_kept_nowhere(api: Api) -> None:
    alice = api.person("alice")
    secret = {"value": "my card is 4111 1111 1111 1111"}

    done = alice.put("/v1/memories/default/card", json=secret, headers=key("k")).json()

    assert (done["store"], done["reason"], done["version"]) == (False, "sensitive", None)
    (decision,) = alice.get("/v1/memories/decisions?store=false").json()["decisions"]
    assert (decision["reason"], decision["key"]) == ("sensitive", "card")
    assert "4111 1111" not in str(
        api.rows("SELECT to_jsonb(d)::text FROM celeriac.memory_decisions d")
    )
    assert "4111 1111" not in str(
        api.rows("SELECT to_jsonb(k)::text FROM celeriac.idempotency_keys k")
    )
    assert problem(alice.get("/v1/memories/default/card")) == (404, "unknown-memory")


def test_a_procedure_cannot_be_put_in(api: Api) -> None:
    done = api.person("ada", "admin").put(
        "/v1/memories/default/way", json={"value": "Approve refunds", "kind": "procedural"}
    )

    assert (done.json()["store"], done.json()["reason"]) == (False, "procedural")


def test_a_stale_version_is_a_conflict_and_loses_nothing(api: Api) -> None:
    alice = api.person("alice")

    first = alice.put(SEAT, json={"value": "Row 12", "replaces_version": 1}).json()
    second = alice.put(SEAT, json={"value": "Row 13", "replaces_version": 1}).json()

    assert (first["store"], first["version"]) == (True, 2)
    assert (second["store"], second["reason"], second["version"]) == (False, "conflict", 2)
    assert alice.get(SEAT).json()["value"] == "Row 12"


@pytest.mark.parametrize(
    "name", ["%2e%2e", "a%2Fb", "a%00b", "%20", "a%0Ab", "k" * 129, "..%2Fbob"]
)
def test_a_name_that_is_none_is_refused(api: Api, name: str) -> None:
    alice = api.person("alice")

    for path in (f"/v1/memories/default/{name}", f"/v1/memories/{name}/seat"):
        assert alice.get(path).status_code in (404, 405), path
        assert alice.put(path, json={"value": "x"}).status_code in (404, 405, 422), path
        assert alice.delete(path).status_code in (404, 405), path
    assert len(api.rows("SELECT FROM celeriac.memories")) == 2


def test_a_forgotten_one_is_gone_and_a_repeat_says_the_same(api: Api) -> None:
    alice = api.person("alice")

    first = alice.delete(SEAT, headers=key("k"))
    again = alice.delete(SEAT, headers=key("k"))

    assert first.json() == again.json() == {"forgotten": True}
    assert again.headers["idempotent-replayed"] == "true"
    assert problem(alice.get(SEAT)) == (404, "unknown-memory")
    assert problem(alice.delete(SEAT)) == (404, "unknown-memory")
    rows = api.rows("SELECT content, search, deleted_by FROM celeriac.memories ORDER BY user_id")
    assert rows[0] == (None, None, "alice")
    assert rows[1][0] == "Prefers window seats"


def test_pages_follow_one_another_without_a_gap(api: Api) -> None:
    alice = api.person("alice")
    for number in range(5):
        alice.put(f"/v1/memories/default/k{number}", json={"value": f"tea {number}"})

    found: list[str] = []
    cursor = ""
    while True:
        page = alice.get(f"/v1/memories?limit=2{cursor}").json()
        found += [each["key"] for each in page["memories"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"

    assert found == ["k4", "k3", "k2", "k1", "k0", "seat"]
    run_cursor = alice.get("/v1/memories?cursor=WyJ4Il0").status_code
    assert run_cursor == 422
