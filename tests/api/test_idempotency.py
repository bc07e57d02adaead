"""`Idempotency-Key`: what is sent again is answered again, and done once."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx2
import psycopg
import pytest

from celeriac.ids import RunId, TenantId
from celeriac_storage import idempotency_keys
from celeriac_storage.database import Database, libpq_url
from celeriac_storage.idempotency_keys import Key
from tests.api.server import Api, key, problem, statuses
from tests.processes import Processes
from tests.talk import Talk
from tests.waiting import eventually

START = {"agent": "talker", "input": "hello"}


def runs(api: Api) -> int:
    return len(api.rows("SELECT FROM celeriac.runs"))


@pytest.mark.usefixtures("talk")
def test_twenty_at_once_start_one_run(api: Api) -> None:
    together = threading.Barrier(20)
    people = [api.person("alice") for _ in range(20)]

    def post(person: httpx2.Client) -> httpx2.Response:
        together.wait()
        return person.post("/v1/runs", json=START, headers=key("k"))

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, people))

    assert statuses(answers) == [201] * 20
    assert len({answer.text for answer in answers}) == 1
    assert len([each for each in answers if "idempotent-replayed" in each.headers]) == 19
    assert {each.headers["location"] for each in answers} == {
        f"/v1/runs/{answers[0].json()['run_id']}"
    }
    assert runs(api) == 1


@pytest.mark.usefixtures("talk")
def test_a_key_belongs_to_one_person_one_operation_and_one_request(api: Api) -> None:
    alice, bob = api.person("alice"), api.person("bob")
    first = alice.post("/v1/runs", json=START, headers=key("k")).json()["run_id"]
    second = alice.post("/v1/runs", json=START, headers=key("other")).json()["run_id"]

    reused = alice.post("/v1/runs", json={**START, "input": "bye"}, headers=key("k"))
    by_another = bob.post("/v1/runs", json=START, headers=key("k"))
    in_another_tenant = api.person("alice", tenant="rival").post(
        "/v1/runs", json=START, headers=key("k")
    )
    cancelled = alice.post(f"/v1/runs/{first}/cancel", headers=key("k"))
    other_run = alice.post(f"/v1/runs/{second}/cancel", headers=key("k"))
    reordered = alice.post(
        "/v1/runs",
        content=b' {"input":"hello" , "agent":"talker"}',
        headers={**key("k"), "Content-Type": "application/json"},
    )

    assert problem(reused) == problem(other_run) == (422, "key-reused")
    assert statuses([by_another, in_another_tenant]) == [201, 201]
    assert cancelled.status_code == 200
    assert reordered.json()["run_id"] == first
    assert runs(api) == 4


@pytest.mark.usefixtures("talk")
def test_the_key_may_stand_in_the_body(api: Api) -> None:
    alice = api.person("alice")
    body = {**START, "idempotency_key": "k"}

    first = alice.post("/v1/runs", json=body)
    again = alice.post("/v1/runs", json=START, headers=key("k"))
    both = alice.post("/v1/runs", json=body, headers=key("another"))

    assert first.status_code == 201
    assert again.headers["idempotent-replayed"] == "true"
    assert problem(both) == (400, "malformed-request")
    assert runs(api) == 1


@pytest.mark.parametrize("bad", ["", "a b", "é", "x" * 256, "a\tb"])
def test_a_key_is_visible_ascii(api: Api, bad: str) -> None:
    answer = api.person().post(
        "/v1/runs", json=START, headers={b"Idempotency-Key": bad.encode("latin-1")}
    )

    assert problem(answer) == (400, "malformed-request")
    assert runs(api) == 0


@pytest.mark.usefixtures("talk")
def test_two_keys_in_one_request_are_none(api: Api) -> None:
    headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]

    answer = api.person().post("/v1/runs", json=START, headers=headers)

    assert problem(answer) == (400, "malformed-request")


@pytest.mark.usefixtures("talk")
def test_what_would_be_done_twice_needs_a_key(api: Api) -> None:
    alice = api.person()
    run_id = alice.post("/v1/runs", json={**START, "run_id": "mine"}).json()["run_id"]

    assert problem(alice.post("/v1/runs", json=START)) == (400, "malformed-request")
    said = alice.post(f"/v1/runs/{run_id}/messages", json={"text": "x"})
    assert problem(said) == (400, "malformed-request")
    assert problem(alice.post("/v1/runs", json={**START, "run_id": "mine"})) == (409, "run-exists")
    assert (runs(api), api.rows("SELECT FROM celeriac.inbox")) == (1, [])


def test_what_is_said_twice_under_one_key_is_heard_once(api: Api, talk: Talk) -> None:
    alice = api.person()
    talk.run_id = RunId(alice.post("/v1/runs", json={**START, "run_id": "r"}).json()["run_id"])

    answers = [
        alice.post("/v1/runs/r/messages", json={"text": "hurry"}, headers=key("k"))
        for _ in range(3)
    ]

    assert statuses(answers) == [202] * 3
    assert api.rows("SELECT count(*) FROM celeriac.inbox") == [(1,)]


@pytest.mark.usefixtures("talk")
def test_a_refusal_is_not_remembered(api: Api) -> None:
    alice = api.person()
    busy = {**START, "thread_id": "dogs", "on_busy": "reject"}
    first = alice.post("/v1/runs", json=busy, headers=key("first")).json()["run_id"]

    refused = alice.post("/v1/runs", json=busy, headers=key("k"))
    alice.post(f"/v1/runs/{first}/cancel")
    again = alice.post("/v1/runs", json=busy, headers=key("k"))

    assert problem(refused) == (409, "thread-busy")
    assert (again.status_code, "idempotent-replayed" in again.headers) == (201, False)


@pytest.mark.usefixtures("talk")
def test_a_repeat_that_comes_too_early_is_told_to_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_keys, "WAIT_SECONDS", 0.05)
    alice = api.person()
    alice.post("/v1/runs", json={**START, "run_id": "r"})
    # The first request is at work, and waits: somebody else holds the run.
    with closing(psycopg.connect(libpq_url(api.database.url))) as holder:
        holder.execute("SELECT FROM celeriac.runs FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(alice.post, "/v1/runs/r/cancel", headers=key("k"))
            eventually(lambda: _waiting_for_lock(api), what="the first request waits")

            again = api.person().post("/v1/runs/r/cancel", headers=key("k"))

            holder.rollback()
            assert first.result().status_code == 200

    assert problem(again) == (409, "key-in-use")
    assert again.headers["retry-after"] == "1"
    repeated = alice.post("/v1/runs/r/cancel", headers=key("k"))
    assert repeated.headers["idempotent-replayed"] == "true"


@pytest.mark.usefixtures("talk")
def test_a_key_whose_answer_was_pruned_never_acts_again(api: Api) -> None:
    alice = api.person()
    alice.post("/v1/runs", json=START, headers=key("old"))
    with api.database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.idempotency_keys SET created_at = created_at - interval '3 days'"
        )
    alice.post("/v1/runs", json=START, headers=key("new"))

    with api.database.begin() as connection:
        assert idempotency_keys.prune(connection) == 1
        assert idempotency_keys.prune(connection) == 0

    assert problem(alice.post("/v1/runs", json=START, headers=key("old"))) == (410, "key-pruned")
    other = alice.post("/v1/runs", json={**START, "input": "x"}, headers=key("old"))
    assert problem(other) == (422, "key-reused")
    replayed = alice.post("/v1/runs", json=START, headers=key("new"))
    assert "idempotent-replayed" in replayed.headers
    assert runs(api) == 2


def test_the_database_takes_no_claim_without_an_answer(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.tenants VALUES ('t')")

    with (
        pytest.raises(psycopg.Error, match="claimed and not answered"),
        database.begin() as connection,
    ):
        idempotency_keys.claim(connection, Key(TenantId("t"), "p", "o", "k", bytes(32)))


@pytest.mark.processes
@pytest.mark.crash
@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize(("point", "left"), [("api.before_commit", 0), ("api.after_commit", 1)])
def test_a_process_that_is_killed_leaves_all_of_it_or_nothing(
    api: Api, processes: Processes, point: str, left: int
) -> None:
    token = api.token("alice")
    address = api.url.replace("http://", "")
    api.stop()  # its place is taken by a process that can be killed
    port = address.rpartition(":")[2]
    killed = processes.start(["api", "--port", port], test_points=f"{point}=kill")
    send: dict[str, Any] = {
        "json": START,
        "headers": {"Authorization": f"Bearer {token}", **key("k")},
    }
    eventually(lambda: httpx2.get(f"{api.url}/healthz"), what="it serves")

    with pytest.raises(httpx2.TransportError):
        httpx2.post(f"{api.url}/v1/runs", **send)

    assert killed.wait() == -signal.SIGKILL
    assert runs(api) == left
    processes.start(["api", "--port", port])
    eventually(lambda: httpx2.get(f"{api.url}/healthz"), what="it serves")
    repeated = httpx2.post(f"{api.url}/v1/runs", **send)
    assert repeated.status_code == 201
    assert ("idempotent-replayed" in repeated.headers) == bool(left)
    assert [row[0] for row in api.rows("SELECT run_id FROM celeriac.runs")] == [
        repeated.json()["run_id"]
    ]


def _waiting_for_lock(api: Api) -> bool:
    return bool(
        api.rows(
            "SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
    )
