"""Tokens that open nothing: few looks, one row an address, and never the token itself."""

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac_api import strangers as guard
from celeriac_api.strangers import BURST_LOOKS, MOST_HELD, Strangers, _network
from celeriac_storage import strangers
from celeriac_storage.database import Database, sqlstate
from tests.api.server import Api, problem, serving
from tests.waiting import eventually

GARBAGE = "cel_" + "x" * 43


def rows(database: Database) -> dict[str, int]:
    with database.connect() as connection:
        found = connection.exec_driver_sql("SELECT address, attempts FROM celeriac.strangers")
        return {row[0]: row[1] for row in found}


def test_an_address_gets_so_many_looks_and_whoever_is_known_goes_on(
    database: Database, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BURST_LOOKS", 5)
    monkeypatch.setattr(guard, "LOOKS_PER_SECOND", 0.001)
    with serving(database, broker_url) as api:
        alice = api.person("alice")
        assert alice.get("/v1/runs").status_code == 200  # takes one of the five

        answers = [api.holder_of(f"cel_{number}").get("/v1/runs") for number in range(9)]

        told = [problem(answer) for answer in answers]
        assert told == [(401, "unauthenticated")] * 4 + [(429, "rate-limited")] * 5
        assert answers[-1].headers["retry-after"] == "1"
        assert alice.get("/v1/runs").status_code == 200
        # Somebody whom this process does not know yet waits, and so does a second process's.
        assert api.person("bob").get("/v1/runs").status_code == 429
        with serving(database, broker_url) as other:
            assert other.holder_of(GARBAGE).get("/v1/runs").status_code == 429
    assert rows(database) == {"127.0.0.1": 9 + 2}


def test_attempts_are_counted_by_address_and_no_token_is_stored(api: Api) -> None:
    stranger = api.holder_of(GARBAGE)
    for _ in range(3):
        assert stranger.get("/v1/runs").status_code == 401
    api.holder_of("not.a.jwt").get("/v1/runs")
    api.app.state.service.strangers.close()

    assert rows(api.database) == {"127.0.0.1": 4}
    with api.database.connect() as connection:
        everything = connection.exec_driver_sql(
            "SELECT string_agg(s::text, '') || (SELECT coalesce(string_agg(a::text, ''), '')"
            " FROM celeriac.audit AS a) FROM celeriac.strangers AS s"
        ).scalar_one()
    assert "xxx" not in everything
    assert api.denials() == []


def test_however_many_addresses_there_are_rows_are_bounded(database: Database) -> None:
    for hundred in range(30):
        with database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL ROLE celeriac_api")
            strangers.note(connection, {f"192.0.{hundred}.{number}": 2 for number in range(100)})

    found = rows(database)
    assert len(found) == 1001
    assert found[strangers.OTHERS] == 2 * 2000
    assert sum(found.values()) == 2 * 3000


def test_what_is_not_written_yet_is_bounded_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "WRITE_SECONDS", 3600.0)
    held = Strangers(database.begin, None)

    for number in range(MOST_HELD + 500):
        held.note_refused(GARBAGE, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")

    assert len(rows(database)) == 1  # the first at once, and then nothing for as long as that
    assert len(held._held) == MOST_HELD + 1
    held.close()
    assert sum(rows(database).values()) == MOST_HELD + 500


def test_a_token_that_is_revoked_is_no_friend_any_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BURST_LOOKS", 2)
    monkeypatch.setattr(guard, "LOOKS_PER_SECOND", 0.001)
    with serving(database) as api:
        alice = api.person("alice")
        assert alice.get("/v1/runs").status_code == 200
        with database.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.tokens SET revoked_at = now(), revoked_by = 'boss'"
            )

        told = [alice.get("/v1/runs").status_code for _ in range(4)]

    assert told == [401, 401, 429, 429]


def test_the_first_attempt_is_seen_while_the_api_runs(api: Api) -> None:
    api.holder_of(GARBAGE).get("/v1/runs")

    eventually(lambda: rows(api.database), until=bool, what="the row")


@pytest.mark.parametrize("statement", ["SELECT", "DELETE"])
def test_nobody_reads_or_changes_the_rows_over_the_login_of_the_api(
    database: Database, statement: str
) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE celeriac_api")

        with pytest.raises(DBAPIError) as refused:
            connection.exec_driver_sql(f"{statement} FROM celeriac.strangers")

    assert sqlstate(refused.value) == "42501"


@pytest.mark.parametrize(
    ("peer", "named"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", "unknown"),
        ("'; DROP TABLE", "unknown"),
    ],
)
def test_an_address_is_what_somebody_has_one_of(peer: str, named: str) -> None:
    assert _network(peer) == named


def test_an_office_behind_one_address_comes_in() -> None:
    assert BURST_LOOKS >= 100
