"""How often somebody may ask, with Redis and without, and what an outage is answered by."""

import logging

import pytest

from celeriac_api.limits import RateLimit
from celeriac_storage.database import Database, driver_url
from tests.api.server import Api, problem, serving, statuses

AWAY = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("is_redis_there", [True, False])
def test_one_caller_is_held_back_and_no_other(
    database: Database, broker_url: str, is_redis_there: bool
) -> None:
    limits = {"api_requests_per_second": 0.01, "api_burst_requests": 3}
    with serving(database, broker_url if is_redis_there else None, **limits) as api:
        alice, same = api.person("alice"), api.person("alice")
        bob, rival = api.person("bob"), api.person("alice", tenant="rival")

        answers = [each.get("/v1/runs") for each in (alice, same, alice, same, alice)]

        assert statuses(answers) == [200, 200, 200, 429, 429]
        assert problem(answers[-1]) == (429, "rate-limited")
        assert answers[-1].headers["retry-after"] == "1"
        assert statuses([bob.get("/v1/runs"), rival.get("/v1/runs")]) == [200, 200]
        assert alice.get("/healthz").status_code == 200


def test_two_processes_count_together(broker_url: str) -> None:
    first, second = (RateLimit(0.01, 3, broker_url) for _ in range(2))

    taken = [limit.is_taken("t:alice") for limit in (first, second, first, second, first)]

    assert taken == [True, True, True, False, False]
    first.close()
    second.close()


def test_redis_away_costs_a_warning_and_no_request(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "celeriac_api.limits")
    with serving(database, AWAY, api_burst_requests=2, api_requests_per_second=0.01) as api:
        alice = api.person("alice")

        answers = [alice.get("/v1/runs") for _ in range(3)]

    assert statuses(answers) == [200, 200, 429]
    told = [each.message for each in caplog.records if "Redis is away" in each.message]
    assert len(told) == 2  # one of those that count callers, one of those that count strangers


def test_a_database_that_is_away_is_a_503_that_names_no_address(database: Database) -> None:
    with serving(database) as api:
        token = api.token("alice")
    with_no_server = driver_url(database.url).set(port=1).render_as_string(hide_password=False)
    away = Database(with_no_server)
    with serving(away) as api:
        person = api.holder_of(token)

        answer = person.get("/v1/runs")
        ready = person.get("/readyz")

        assert problem(answer) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert "postgres" not in answer.text
        assert (ready.status_code, ready.json()["database"]) == (503, "does not answer")
        assert person.get("/healthz").json() == {"status": "ok"}
    away.close()


def test_a_database_that_was_not_migrated_is_not_ready(empty_database_url: str) -> None:
    empty = Database(empty_database_url)
    with serving(empty) as api:
        ready = api.holder_of("cel_x").get("/readyz")
        answer = api.holder_of("cel_x").get("/v1/runs")

    assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
    assert "celeriac migrate" in ready.json()["database"]
    assert problem(answer) == (503, "schema-mismatch")
    empty.close()


def test_ready_says_what_is_there(api: Api) -> None:
    told = api.holder_of(None).get("/readyz").json()

    assert told == {"status": "ready", "database": "ok", "broker": "ok"}
