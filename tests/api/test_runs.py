"""Starting runs over HTTP, looking at them, and telling them something while they go on."""

# features: 000-06, 000-07, 003-05, 003-08
import pytest

from celeriac.ids import RunId, new_run_id
from celeriac.reports import to_json
from celeriac_storage.database import Database
from tests.api.server import Api, key, problem, serving
from tests.talk import Talk

pytestmark = pytest.mark.usefixtures("talk")  # a worker has its agent

START = {"agent": "talker", "input": "hello"}


def start(api: Api, user: str = "alice", **more: object) -> RunId:
    answer = api.person(user).post("/v1/runs", json={**START, **more}, headers=key(new_run_id()))
    assert answer.status_code == 201, answer.text
    return RunId(answer.json()["run_id"])


def test_a_run_is_started_and_found_at_its_location(api: Api) -> None:
    alice = api.person("alice")

    answer = alice.post(
        "/v1/runs",
        json={**START, "thread_id": "dogs", "run_id": "walk-1", "limits": {"steps": 7}},
    )

    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/runs/walk-1"
    assert answer.json() == {
        "run_id": "walk-1",
        "thread_id": "dogs",
        "status": "queued",
        "phase": "waiting_model",
    }
    found = alice.get(answer.headers["location"]).json()
    assert (found["user_id"], found["agent"], found["input"]) == ("alice", "talker", "hello")
    ((limits, is_published),) = api.rows(
        "SELECT limits, published_at IS NOT NULL FROM celeriac.runs"
    )
    assert (limits["steps"], limits["tool_calls"], is_published) == (7, 200, True)


def test_what_is_shown_is_the_json_of_the_command_line(api: Api, talk: Talk) -> None:
    run_id = start(api)
    talk.run_id = run_id
    talk.go_on()

    shown = api.person("alice").get(f"/v1/runs/{run_id}").json()

    assert shown == to_json(talk.client.get(run_id))
    assert [effect["tool"] for effect in shown["effects"]] == ["scan"]


def test_a_broker_that_is_away_is_no_error(database: Database) -> None:
    with serving(database, "redis://127.0.0.1:1/0") as api:
        run_id = start(api)

        assert api.rows("SELECT run_id FROM celeriac.runs WHERE published_at IS NULL") == [
            (run_id,)
        ]
        assert api.holder_of(None).get("/readyz").json() == {
            "status": "ready",
            "database": "ok",
            "broker": "does not answer",
        }


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"agent": "nobody"}, (422, "unknown-agent")),
        ({"on_busy": "perhaps"}, (422, "invalid-request")),
        ({"run_id": "a b"}, (422, "invalid-request")),
        ({"limits": {"steps": 0}}, (422, "invalid-request")),
        ({"limits": {"hops": 3}}, (422, "invalid-request")),
        ({"inputs": "x"}, (422, "invalid-request")),
        ({"user_id": "bob"}, (403, "role-missing")),
        ({"thread_id": "alice"}, (404, "unknown-thread")),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_run_that_cannot_be_is_refused_and_leaves_no_row(
    api: Api, more: dict[str, object], expected: tuple[int, str]
) -> None:
    answer = api.person("alice").post("/v1/runs", json={**START, **more}, headers=key("k"))

    assert problem(answer) == expected
    assert api.rows("SELECT FROM celeriac.runs UNION ALL SELECT FROM celeriac.threads") == []
    assert api.rows("SELECT FROM celeriac.idempotency_keys") == []


def test_a_thread_of_another_user_takes_no_run_and_the_refusal_is_recorded(api: Api) -> None:
    mine = start(api, "alice", thread_id="dogs")

    for thread_id in ("dogs", "alice", mine):
        answer = api.person("bob").post(
            "/v1/runs", json={**START, "thread_id": thread_id}, headers=key(f"k-{thread_id}")
        )
        assert problem(answer) == (404, "unknown-thread")

    assert [row[0] for row in api.rows("SELECT run_id FROM celeriac.runs")] == [mine]
    assert [row[0] for row in api.rows("SELECT thread_id FROM celeriac.threads")] == ["dogs"]
    assert api.denials() == [("bob", "run.start", thread) for thread in ("dogs", "alice", mine)]


def test_an_operator_starts_a_run_for_another_user(api: Api) -> None:
    answer = api.person("olga", "operator").post(
        "/v1/runs", json={**START, "user_id": "bob"}, headers=key("k")
    )

    assert api.person("bob").get(answer.headers["location"]).json()["user_id"] == "bob"


def test_a_list_is_paged_without_a_gap_while_runs_are_added(api: Api) -> None:
    alice = api.person("alice")
    made = [start(api, run_id=f"run-{number}") for number in range(5)]

    seen: list[str] = []
    cursor: str | None = None
    for number in range(3):
        asked = {"limit": "2", **({} if cursor is None else {"cursor": cursor})}
        page = alice.get("/v1/runs", params=asked).json()
        seen += [line["run_id"] for line in page["runs"]]
        cursor = page["next_cursor"]
        start(api, run_id=f"later-{number}")

    assert seen == made[::-1]
    assert cursor is None


def test_a_list_is_filtered(api: Api) -> None:
    alice, olga = api.person("alice"), api.person("olga", "operator")
    mine = start(api, "alice", thread_id="dogs")
    other = start(api, "bob", thread_id="cats")
    alice.post(f"/v1/runs/{mine}/cancel")

    def found(asked: str, person: object = olga) -> set[str]:
        assert isinstance(person, type(olga))
        return {line["run_id"] for line in person.get(f"/v1/runs?{asked}").json()["runs"]}

    assert found("") == {mine, other}
    assert found("status=cancelled") == {mine}
    assert found("status=queued") == {other}
    assert found("thread_id=cats") == found("user_id=bob") == {other}
    assert found("agent=nobody") == set()
    assert found("", alice) == found("user_id=alice", alice) == {mine}
    assert problem(alice.get("/v1/runs?user_id=bob")) == (403, "role-missing")


@pytest.mark.parametrize(
    "asked",
    ["cursor=x", "cursor=%00", "cursor=WzEsMl0", "limit=0", "limit=201", "limit=x",
     "status=gone", "agent=%00", "thread_id=%20"],
)  # fmt: skip
def test_a_list_that_cannot_be_asked_for_is_refused(api: Api, asked: str) -> None:
    assert problem(api.person().get(f"/v1/runs?{asked}"))[0] == 422


def test_a_conversation_through_all_that_can_be_asked(api: Api, talk: Talk) -> None:
    alice = api.person("alice")
    run_id = talk.run_id = start(api)
    at = f"/v1/runs/{run_id}"
    assert talk.go_on() == "paused"  # for somebody to scan the shelf

    (call,) = alice.get(f"{at}/calls").json()["calls"]
    assert (call["tool"], call["arguments"]) == ("scan", {"shelf": "A"})
    said = alice.post(f"{at}/messages", json={"text": "hurry"}, headers=key("say-1"))
    assert (said.status_code, said.json()) == (202, {"run_id": run_id, "status": "paused"})
    told = {"results": [{"call_id": call["call_id"], "result": {"books": 3}}]}
    assert alice.post(f"{at}/results", json=told).json()["status"] == "queued"
    assert alice.post(f"{at}/results", json=told).json()["status"] == "queued"  # no news
    told["results"][0]["result"] = {"books": 4}
    assert problem(alice.post(f"{at}/results", json=told)) == (409, "conflict")
    assert alice.post(f"{at}/interrupt").json()["status"] == "paused"
    alice.post(f"{at}/messages", json={"text": "go on"}, headers=key("say-2"))
    assert talk.go_on() == "completed"

    assert problem(alice.post(f"{at}/cancel")) == (409, "conflict")
    assert problem(alice.post(f"{at}/retry")) == (409, "conflict")
    assert "hurry" in talk.shown[-1]
    assert "go on" in talk.shown[-1]


def test_of_an_id_that_another_user_has_taken_no_more_is_told(api: Api) -> None:
    """Whether a run has it, or what it was to start from was told to another run."""
    alice, bob = api.person("alice"), api.person("bob")
    in_thread = {**START, "thread_id": "dogs", "on_busy": "say"}
    alice.post("/v1/runs", json={**in_thread, "run_id": "active"})
    alice.post("/v1/runs", json={**in_thread, "run_id": "told"})
    assert "active" in alice.post("/v1/runs", json={**START, "run_id": "told"}).text

    answers = [
        bob.post("/v1/runs", json={**START, **more, "run_id": run_id})
        for run_id in ("active", "told")
        for more in ({}, {"on_busy": "say", "thread_id": "cats"})
    ]

    assert [problem(each) for each in answers] == [(409, "run-exists")] * 4
    texts = {
        each.json()["detail"].replace("active", "ID").replace("told", "ID") for each in answers
    }
    assert len(texts) == 1
    assert api.rows("SELECT count(*) FROM celeriac.inbox") == [(1,)]


def test_say_on_busy_tells_the_active_run(api: Api) -> None:
    first = start(api, thread_id="dogs")
    busy = {**START, "thread_id": "dogs", "on_busy": "say", "run_id": "other"}

    told = api.person().post("/v1/runs", json=busy)
    again = api.person().post("/v1/runs", json=busy)

    assert told.json()["run_id"] == again.json()["run_id"] == first
    assert api.rows("SELECT count(*) FROM celeriac.inbox") == [(1,)]


def test_a_thread_shows_its_latest_runs(api: Api) -> None:
    first = start(api, thread_id="dogs")
    second = start(api, thread_id="dogs", run_id="second")

    shown = api.person().get("/v1/threads/dogs").json()

    assert (shown["thread_id"], shown["user_id"]) == ("dogs", "alice")
    assert [line["run_id"] for line in shown["runs"]] == [second, first]
    for thread_id in ("cats", first, "alice", "%00"):
        assert problem(api.person().get(f"/v1/threads/{thread_id}")) == (404, "unknown-thread")


def test_an_unknown_outcome_is_resolved_by_an_operator_alone(api: Api, talk: Talk) -> None:
    run_id = talk.run_id = start(api)
    talk.go_on()
    api.person().post(f"/v1/runs/{run_id}/cancel")  # the call is unknown from now on
    answer = {"call_id": "0.0", "committed": "3 books"}
    at = f"/v1/runs/{run_id}/resolve"
    olga = api.person("olga", "operator")

    assert problem(api.person("alice").post(at, json=answer)) == (403, "role-missing")
    misfit = olga.post(at, json={**answer, "committed": {"books": 3}})
    resolved = olga.post(at, json=answer)

    assert problem(misfit) == (422, "invalid-input")
    assert '{"books": 3} is not a string' in misfit.json()["detail"]

    assert resolved.json() == {"run_id": run_id, "status": "cancelled"}
    assert talk.states == ["committed"]
    ((evidence,),) = api.rows(
        "SELECT evidence FROM celeriac.effect_attempts WHERE outcome = 'committed'"
    )
    assert evidence == {"by": "olga"}
