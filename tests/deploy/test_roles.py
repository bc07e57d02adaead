"""`deploy/postgres/roles.sql` where the owner of the database is an ordinary login."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest
from alembic import command
from alembic.config import Config

from celeriac.errors import SchemaMismatch
from celeriac.ids import DEFAULT_TENANT, UserId
from celeriac_storage import agents, console_sessions, schema
from celeriac_storage.database import Database
from celeriac_storage.schema import check_schema, migrate
from celeriac_storage.tenancy import TenantDatabase, may_restrict
from tests.api.server import serving
from tests.console.visitor import Visitors
from tests.crash.servers import postgres_cluster
from tests.deploy.roles import run_script
from tests.streaming.subscriber import Subscriber

pytestmark = pytest.mark.processes


@pytest.fixture
def server_url() -> Iterator[str]:
    """A server of the test's own: roles belong to a whole cluster."""
    with postgres_cluster() as cluster:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE celeriac_owner LOGIN")
            connection.execute("CREATE DATABASE celeriac OWNER celeriac_owner")
        yield cluster.url.removesuffix("postgres")


def login(server_url: str, name: str) -> Database:
    return Database(f"{server_url}celeriac".replace("postgres@", f"{name}@"), connections=1)


Logins: TypeAlias = tuple[Database, Database]


@pytest.fixture
def logins(server_url: str) -> Iterator[Logins]:
    """Of the owner, who has made the schema, and of the API, as the script makes it."""
    assert run_script(f"{server_url}celeriac", {"APP_PASSWORD": "x", "API_PASSWORD": "y"}) == 0
    owner, web = login(server_url, "celeriac_owner"), login(server_url, "celeriac_web")
    migrate(owner)
    yield owner, web
    owner.close()
    web.close()


def test_an_owner_that_may_create_no_roles_grants_what_the_script_made(server_url: str) -> None:
    assert run_script(f"{server_url}celeriac", {"APP_PASSWORD": 'it\'s "quoted"'}) == 0
    owner, app = login(server_url, "celeriac_owner"), login(server_url, "celeriac_app")
    with pytest.raises(SchemaMismatch, match="run `celeriac migrate`"):
        check_schema(app)

    migrate(owner)

    check_schema(app)
    with app.connect() as connection:
        connection.exec_driver_sql("SELECT FROM celeriac.runs")
        connection.exec_driver_sql("CREATE SCHEMA shop")
    owner.close()
    app.close()


def test_a_login_that_may_create_roles_migrates_after_one_that_may_not(server_url: str) -> None:
    owner, superuser = login(server_url, "celeriac_owner"), login(server_url, "postgres")
    with owner.begin() as connection:
        config = Config()
        config.set_main_option(
            "script_location", str(Path(schema.__file__).with_name("migrations"))
        )
        config.attributes["connection"] = connection
        command.upgrade(config, "0007")
    owner.close()

    assert migrate(superuser) == schema.head()

    check_schema(superuser)
    superuser.close()


def test_the_login_of_the_api_sees_one_tenant_and_the_owner_may_not_be_it(
    logins: Logins,
) -> None:
    owner, web = logins
    with owner.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.tenants VALUES ('default')")

    check_schema(web)
    with web.connect() as connection:
        assert may_restrict(connection)
        assert connection.exec_driver_sql("SELECT * FROM celeriac.tenants").all() == []
    with TenantDatabase(web, [DEFAULT_TENANT]).begin() as connection:
        assert len(connection.exec_driver_sql("SELECT * FROM celeriac.tenants").all()) == 1
    with owner.connect() as connection:
        assert not may_restrict(connection)


def test_a_run_is_started_and_followed_over_the_login_of_the_api(logins: Logins) -> None:
    owner, web = logins
    with owner.begin() as connection:
        agents.register_agent(connection, "talker", "hash", {})

    with serving(owner) as by_owner, serving(web) as api:
        alice = api.holder_of(by_owner.token("alice"))
        alice.post("/v1/runs", json={"agent": "talker", "input": "hello", "run_id": "r1"})
        with Subscriber(api.url, by_owner.token("alice"), "r1") as subscriber:
            subscriber.wait(lambda each: each.seqs == [1, 2])
            alice.post("/v1/runs/r1/cancel")
            assert subscriber.wait_for_end().seqs == [1, 2, 3]
        visitors = Visitors(api)
        visitor = visitors.stranger()
        assert visitor.sign_in(by_owner.token("olga", "operator")).status_code == 303
        for path in ("/runs?search=hello", "/runs/r1", "/approvals", "/unsettled", "/workers"):
            visitor.read(path)
        visitor.send(visitor.form("/runs", "/sign-out"))
        with owner.begin() as connection:
            code = console_sessions.make_one_time_token(
                connection, DEFAULT_TENANT, UserId("local"), ["admin"]
            )
        assert visitor.sign_in(code).status_code == 303
        assert "r1" in visitor.read("/runs")
        visitors.close()
        stranger = by_owner.token("alice", tenant="rival")
        with Subscriber(api.url, stranger, "r1") as subscriber:
            assert subscriber.wait_for_end().status == 404


def test_the_login_of_the_api_tells_how_full_budgets_are_and_reads_none_of_them(
    logins: Logins,
) -> None:
    owner, web = logins
    with owner.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.tenants VALUES ('default'), ('rival')")
        connection.exec_driver_sql(
            "INSERT INTO celeriac.budgets (tenant_id, scope, subject, measure, hard_limit,"
            " on_exceeded, used) SELECT tenant_id, 'user', 'alice', 'usd', 10, 'pause', 4"
            " FROM celeriac.tenants"
        )

    with serving(web) as api:
        told = api.holder_of(None).get("/metrics").text

    assert 'celeriac_budgets{measure="usd",scope="user",state="open"} 2.0' in told
    assert 'celeriac_budget_use_ratio{measure="usd",scope="user"} 0.4' in told
    assert "alice" not in told
    assert "rival" not in told
    with web.connect() as connection:
        for table in ("budgets", "budget_entries", "budget_changes"):
            rows = connection.exec_driver_sql(f"SELECT * FROM celeriac.{table}").all()
            assert rows == [], table
    with TenantDatabase(web, [DEFAULT_TENANT]).begin() as connection:
        seen = connection.exec_driver_sql("SELECT tenant_id FROM celeriac.budgets").all()
    assert seen == [("default",)]


def test_tokens_and_principals_are_administered_over_the_login_of_the_api(logins: Logins) -> None:
    owner, web = logins

    with serving(owner) as by_owner, serving(web) as api:
        ada = api.holder_of(by_owner.token("ada", "admin"))
        made = ada.post("/v1/tokens", json={"user_id": "bob"}, headers={"Idempotency-Key": "k"})
        revoked = ada.post(f"/v1/tokens/{made.json()['token_id']}/revoke")
        set_twice = [ada.put("/v1/principals/bob", json={"roles": ["cashier"]}) for _ in range(2)]

        assert (made.status_code, revoked.status_code) == (201, 200)
        assert [said.json()["version"] for said in set_twice] == [1, 2]


def test_the_script_can_be_run_again_and_changes_the_password(server_url: str) -> None:
    stored = "SELECT rolpassword FROM pg_authid WHERE rolname = 'celeriac_app'"
    passwords = []
    for password in ("first", "second"):
        assert run_script(f"{server_url}celeriac", {"APP_PASSWORD": password}) == 0
        with psycopg.connect(f"{server_url}celeriac") as connection:
            passwords.append(connection.execute(stored).fetchone())

    assert passwords[0] != passwords[1]


def test_the_script_makes_no_login_without_a_password(server_url: str) -> None:
    assert run_script(f"{server_url}celeriac", {}) != 0
    with psycopg.connect(f"{server_url}celeriac") as connection:
        found = connection.execute(
            "SELECT FROM pg_roles WHERE rolname = 'celeriac_app' AND rolcanlogin"
        ).fetchone()
    assert found is None
