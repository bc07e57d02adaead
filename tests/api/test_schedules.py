"""Schedules over HTTP: whose they are, who may change them, and what is on record."""

import pytest

from tests.api.server import Api, key, problem

pytestmark = pytest.mark.usefixtures("talk")  # a worker has its agent

NIGHTLY = {"schedule_id": "nightly", "agent": "talker", "input": "hello", "cron": "30 2 * * *",
           "time_zone": "Europe/Berlin"}  # fmt: skip


def test_a_schedule_is_added_shown_paused_triggered_and_removed(api: Api) -> None:
    alice = api.person("alice")

    added = alice.post("/v1/schedules", json=NIGHTLY)
    assert added.status_code == 201, added.text
    place = added.headers["location"]
    assert place == "/v1/schedules/nightly"
    shown = alice.get(place).json()
    assert shown == added.json()
    assert (shown["user_id"], shown["created_by"]) == ("alice", "alice")
    assert len(shown["next_times"]) == 3

    assert alice.post(f"{place}/pause").json()["paused"] is True
    assert alice.post(f"{place}/resume").json()["paused"] is False
    fire = alice.post(f"{place}/trigger", headers=key("now")).json()
    assert fire["outcome"] == "started"
    again = alice.post(f"{place}/trigger", headers=key("now"))
    assert (again.json(), again.headers["idempotent-replayed"]) == (fire, "true")
    assert alice.get(f"/v1/runs/{fire['run_id']}").json()["user_id"] == "alice"
    assert [each["schedule_id"] for each in alice.get("/v1/schedules").json()["schedules"]] == [
        "nightly"
    ]
    assert alice.delete(place).status_code == 200
    assert problem(alice.get(place)) == (404, "unknown-schedule")
    told = api.rows("SELECT actor, action FROM celeriac.audit ORDER BY audit_id")
    assert [(row[0], row[1]) for row in told if row[1].startswith("schedule.")] == [
        ("alice", f"schedule.{what}") for what in ("add", "pause", "resume", "trigger", "remove")
    ]


def test_what_is_anothers_does_not_exist_for_a_user(api: Api) -> None:
    api.person("alice").post("/v1/schedules", json=NIGHTLY)
    bob = api.person("bob")

    assert bob.get("/v1/schedules").json() == {"schedules": []}
    for answer in (
        bob.get("/v1/schedules/nightly"),
        bob.post("/v1/schedules/nightly/pause"),
        bob.post("/v1/schedules/nightly/resume"),
        bob.post("/v1/schedules/nightly/trigger", headers=key("k")),
        bob.delete("/v1/schedules/nightly"),
    ):
        assert problem(answer) == (404, "unknown-schedule")
    assert len(api.denials()) == 5
    assert api.rows("SELECT paused_at, removed_at FROM celeriac.schedules") == [(None, None)]


def test_only_an_operator_adds_one_for_another_user_and_changes_anothers(api: Api) -> None:
    for_alice = {**NIGHTLY, "user_id": "alice"}
    assert problem(api.person("bob").post("/v1/schedules", json=for_alice)) == (403, "role-missing")

    olga = api.person("olga", "operator")
    assert olga.post("/v1/schedules", json=for_alice).json()["user_id"] == "alice"
    assert olga.post("/v1/schedules/nightly/pause").status_code == 200
    assert len(olga.get("/v1/schedules").json()["schedules"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "often"},
        {"time_zone": "Mars/Base"},
        {"overlap": "perhaps"},
        {"catch_up_limit": 0},
        {"jitter_seconds": -1},
        {"agent": "nobody"},
        {"schedule_id": "no name"},
        {"every": "day"},
    ],
)
def test_what_cannot_be_scheduled_is_refused(api: Api, change: dict[str, object]) -> None:
    answer = api.person("alice").post("/v1/schedules", json={**NIGHTLY, **change})

    assert answer.status_code in (404, 422)
    assert api.rows("SELECT FROM celeriac.schedules") == []


def test_a_run_may_start_later_and_have_a_deadline(api: Api) -> None:
    alice = api.person("alice")
    later = {"agent": "talker", "input": "hello", "run_id": "later",
             "start_at": "2090-01-01T00:00:00Z", "deadline": "2090-01-01T01:00:00Z"}  # fmt: skip

    assert alice.post("/v1/runs", json=later).json()["phase"] == "waiting_timer"

    shown = alice.get("/v1/runs/later").json()
    assert (shown["start_at"], shown["deadline_at"]) == (later["start_at"], later["deadline"])
    naive = {**later, "run_id": "naive", "start_at": "2090-01-01T00:00:00"}
    assert alice.post("/v1/runs", json=naive).status_code == 422
