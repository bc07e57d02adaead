"""Who may use the API, as an operator types it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac.secrets import redact
from celeriac_storage import tokens
from celeriac_storage.database import Database

Cli = Callable[..., Result]
FIELDS = ["token_id", "tenant_id", "user_id", "name", "prefix", "roles", "created_at", "expires_at",
          "revoked_at", "last_used_at"]  # fmt: skip


@pytest.fixture
def cli(database_url: str) -> Cli:
    return lambda *arguments: CliRunner().invoke(
        app, ["--database-url", database_url, "token", *arguments]
    )


def printed(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_token_is_printed_once_and_known_by_its_hash(cli: Cli, database: Database) -> None:
    made = printed(
        cli("create", "--user", "alice", "--role", "operator", "--role", "user", "--name", "laptop",
            "--tenant", "shop", "--expires-days", "30", "--as", "boss", "--json")
    )  # fmt: skip

    assert list(made) == [*FIELDS, "token"]
    assert (made["user_id"], made["tenant_id"], made["roles"]) == (
        "alice", "shop", ["operator", "user"],
    )  # fmt: skip
    assert made["token"].startswith(made["prefix"])
    assert len(made["token"]) == len(tokens.SCHEME) + 43  # 256 bits
    with database.begin() as connection:
        found = tokens.find(connection, made["token"])
        assert found is not None
        assert (found.user_id, found.refused_because) == ("alice", None)
        assert tokens.find(connection, made["token"][:-1]) is None
        row = connection.exec_driver_sql("SELECT t::text FROM celeriac.tokens AS t").scalar_one()
    assert made["token"] not in row
    (listed,) = map(json.loads, cli("list", "--tenant", "shop", "--json").stdout.splitlines())
    assert list(listed) == FIELDS
    assert cli("list", "--json").stdout == ""  # another tenant's


def test_without_json_the_token_stands_alone_on_standard_output(cli: Cli) -> None:
    made = cli("create", "--user", "alice")

    assert made.stdout.strip().startswith(tokens.SCHEME)
    assert made.stdout.strip() not in made.stderr
    shown = cli("list").stdout
    assert "token of alice" in shown
    assert made.stdout.strip() not in shown


def test_a_revoked_token_stays_in_the_list_and_in_the_trail(cli: Cli, database: Database) -> None:
    made = printed(cli("create", "--user", "alice", "--as", "boss", "--json"))

    revoked = printed(cli("revoke", made["token_id"], "--as", "boss", "--json"))
    again = printed(cli("revoke", made["token_id"], "--as", "other", "--json"))

    assert revoked["revoked_at"] is not None
    assert again["revoked_at"] == revoked["revoked_at"]
    assert "revoked" in cli("list").stdout
    with database.connect() as connection:
        trail = connection.exec_driver_sql(
            "SELECT actor, action FROM celeriac.audit ORDER BY audit_id"
        ).all()
    assert [tuple(row) for row in trail] == [
        ("boss", "token.create"), ("boss", "token.revoke"), ("other", "token.revoke"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["create", "--user", "a b"], 1, "cannot be a user id"),
        (["create", "--user", "a", "--tenant", "x,y"], 1, "cannot be a tenant id"),
        (["create", "--user", "a", "--role", "king"], 2, "the roles are user, operator, admin"),
        (["create"], 2, "--user"),
        (["revoke", "k1"], 1, "there is no token k1"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, arguments: list[str], code: int, says: str) -> None:
    refused = cli(*arguments)

    assert (refused.exit_code, says in refused.stderr) == (code, True), refused.stderr
    assert cli("list", "--json").stdout == ""


def test_a_token_is_redacted_wherever_it_turns_up(cli: Cli) -> None:
    token = cli("create", "--user", "alice").stdout.strip()

    assert token not in redact(f'{{"note": "it is {token}."}}')
    assert token not in redact(f"used {token} just now")
