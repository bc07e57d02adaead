"""Erasing a user over HTTP: by an administrator, of his tenant, through a login that may."""

from collections.abc import Iterator

import pytest

from celeriac import Client
from celeriac.errors import NotSetUp
from celeriac_storage.database import Database
from tests.api.server import Api, key, problem, serving
from tests.talk import Talk

pytestmark = pytest.mark.usefixtures("talk")  # a worker has its agent

SECRET = "ZANZIBAR"
ERASE = "/v1/users/alice/erase"


def as_role(database: Database, role: str) -> str:
    return f"{database.url}?options=-crole%3D{role}"


@pytest.fixture
def web(database: Database, broker_url: str) -> Iterator[Api]:
    """An API whose own login may not erase, as `celeriac_web`, and another one that may."""
    restricted = Database(as_role(database, "celeriac_api"))
    with serving(
        restricted,
        broker_url,
        retention_database_url=as_role(database, "celeriac_retention"),
    ) as api:
        api.database = database  # for what the test itself reads and makes
        yield api
    restricted.close()


def say_the_secret(api: Api, tenant: str = "default") -> None:
    started = api.person("alice", tenant=tenant).post(
        "/v1/runs", json={"agent": "talker", "input": f"it is {SECRET}"}, headers=key("k")
    )
    assert started.status_code == 201, started.text


def told(api: Api) -> dict[str, bool]:
    """By tenant, whether a run still says it."""
    return dict(
        api.rows(
            "SELECT tenant_id, bool_or(coalesce(input::text LIKE %s, false))"
            " FROM celeriac.runs GROUP BY 1",
            f"%{SECRET}%",
        )
    )


@pytest.mark.parametrize("role", ["user", "operator"])
def test_only_an_administrator_erases(api: Api, role: str) -> None:
    say_the_secret(api)

    for user in ("alice", "olga"):
        assert problem(api.person(user, role).post(ERASE)) == (403, "role-missing")

    assert told(api) == {"default": True}
    assert {each[:2] for each in api.denials()} == {
        ("alice", "http.erase_user"),
        ("olga", "http.erase_user"),
    }


def test_a_user_is_erased_and_the_one_of_that_name_elsewhere_is_not(web: Api) -> None:
    say_the_secret(web)
    say_the_secret(web, "rival")
    ada = web.person("ada", "admin")

    restless = ada.post(ERASE)
    done = ada.post(ERASE, json={"cancel": True})
    again = ada.post(ERASE)

    assert problem(restless) == (409, "conflict")
    assert (done.status_code, done.json()["runs"], again.json()["runs"]) == (200, 1, 0)
    assert told(web) == {"default": False, "rival": True}
    assert SECRET not in str(
        web.rows(
            "SELECT m::text FROM celeriac.messages AS m JOIN celeriac.runs USING (run_id)"
            " WHERE tenant_id = 'default'"
        )
    )
    trail = web.rows(
        "SELECT DISTINCT actor, action, object, tenant_id FROM celeriac.audit"
        " WHERE action LIKE 'user.%%' ORDER BY 2"
    )
    assert trail == [
        ("ada", "user.erase", "alice", "default"),
        ("ada", "user.erased", "alice", "default"),
    ]
    assert problem(ada.post("/v1/users/nobody/erase")) == (422, "invalid-input")
    assert problem(ada.post("/v1/users/a%20b/erase")) == (422, "invalid-input")


def test_an_api_whose_login_may_not_erase_says_so_and_erases_nothing(
    database: Database, broker_url: str
) -> None:
    restricted = Database(as_role(database, "celeriac_api"))
    with serving(restricted, broker_url) as api:
        api.database = database
        say_the_secret(api)
        ada = api.person("ada", "admin")

        assert problem(ada.post(ERASE)) == (501, "not-set-up")

        assert told(api) == {"default": True}
        with (
            Client(url=api.url, token=api.token("ada", "admin")) as client,
            pytest.raises(NotSetUp, match="celeriac_retention"),
        ):
            client.erase_user("alice")
    restricted.close()


def test_clients_erase_alike(api: Api, talk: Talk) -> None:
    for user in ("alice", "bob"):
        talk.client.start("talker", SECRET, user_id=user)
    with Client(url=api.url, token=api.token("ada", "admin")) as over_http:
        first = over_http.erase_user("alice", cancel=True)
        second = talk.client.erase_user("bob", cancel=True, by="ada")

    assert (first, first.runs) == (second, 1)
    assert told(api) == {"default": False}
