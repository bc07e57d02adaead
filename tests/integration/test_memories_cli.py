"""`celeriac memories`, as people type it."""

# features: 000-20, 000-37
import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac_storage.audit import audit
from celeriac_storage.database import Database

Celeriac = Callable[..., Result]


@pytest.fixture
def celeriac(database: Database) -> Celeriac:
    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, ["--database-url", database.url, "memories", *words])

    return invoke


def test_what_is_put_in_is_listed_shown_exported_and_forgotten(
    celeriac: Celeriac, database: Database
) -> None:
    put = celeriac("decide", "seat", "--value", "Prefers aisle seats", "--user", "alice", "--json")
    assert (put.exit_code, json.loads(put.stdout)["version"]) == (0, 1)

    (listed,) = celeriac("list", "--user", "alice", "--json").stdout.splitlines()
    assert (json.loads(listed)["key"], json.loads(listed)["origin"]) == ("seat", "person")
    assert celeriac("list", "--user", "bob", "--json").stdout == ""
    assert "Prefers aisle seats" in celeriac("show", "seat", "--user", "alice").stdout
    exported = json.loads(celeriac("export", "--user", "alice").stdout)
    assert [each["value"] for each in exported["memories"]] == ["Prefers aisle seats"]

    assert celeriac("forget", "seat", "--user", "bob").exit_code == 1
    assert celeriac("forget", "seat", "--user", "alice", "--as", "alice").exit_code == 0
    gone = celeriac("show", "seat", "--user", "alice")
    assert (gone.exit_code, "nothing is remembered" in gone.stderr) == (1, True)
    assert audit(database) == []


def test_a_refusal_is_told_and_a_change_names_its_version(celeriac: Celeriac) -> None:
    refused = celeriac("decide", "card", "--value", "4111 1111 1111 1111", "--user", "alice")
    assert (refused.exit_code, "sensitive" in refused.stderr) == (1, True)
    (decision,) = celeriac(
        "decisions", "--user", "alice", "--only", "refused", "--json"
    ).stdout.splitlines()
    assert json.loads(decision)["reason"] == "sensitive"
    assert "4111 1111" not in decision

    for words, code in (((), 0), ((), 1), (("--replaces-version", "1"), 0)):
        done = celeriac("decide", "seat", "--value", '"aisle"', "--user", "alice", *words)
        assert done.exit_code == code, done.stderr
