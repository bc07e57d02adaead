"""Runs at the console: which are listed, what a run's page tells, what its user does there."""

# features: 000-06, 000-07
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from celeriac import Approval
from celeriac.codec import JsonValue
from celeriac.events import event_types
from celeriac.ids import RunId
from celeriac.reports import Event
from celeriac.states import RunStatus
from celeriac_api.console.words import EVENTS, event_words
from celeriac_storage import run_list
from celeriac_storage.database import Database
from tests.api.server import Api, key
from tests.console.visitor import Visitor, Visitors
from tests.crash.stack import Stack
from tests.review_desk import REFUND, Desk, Ledger, refund_tool


@pytest.fixture
def desk(api: Api, database: Database, broker_url: str) -> Iterator[Desk]:  # noqa: ARG001
    ledger = Ledger()
    desk = Desk(
        database, broker_url, ledger, [refund_tool(ledger, Approval())], [("refund", REFUND)]
    )
    yield desk
    desk.close()


def start(api: Api, user: str, **more: Any) -> str:
    body = {"agent": "desk", "input": "refund it", **more}
    started = api.person(user).post("/v1/runs", json=body, headers=key(str(uuid4())))
    assert started.status_code == 201, started.text
    return str(started.json()["run_id"])


def test_the_list_is_filtered_and_searched_within_what_one_may_see(
    api: Api, visitors: Visitors, desk: Desk
) -> None:
    alices = start(api, "alice", input="my parrot is DEAD, 100%", run_id="first")
    others = start(api, "alice", input="something else", thread_id="chat")
    bobs = start(api, "bob", input="my parrot is asleep")
    desk.client.cancel(others)
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")
    runs = (alices, others, bobs)

    def listed(visitor: Any, query: str) -> set[str]:
        page = visitor.read(f"/runs?{query}")
        return {run for run in runs if f'href="/runs/{run}"' in page}

    assert listed(alice, "") == {alices, others}
    assert listed(olga, "") == set(runs)
    assert listed(olga, "user_id=bob") == {bobs}
    assert listed(olga, "status=queued") == {alices, bobs}
    assert listed(olga, "outcome=cancelled") == {others}
    assert listed(olga, "thread_id=chat") == {others}
    assert listed(olga, "agent=desk&search=&status=") == set(runs)
    assert listed(olga, "agent=nobody") == set()
    assert listed(olga, "search=PARROT") == {alices, bobs}
    assert listed(olga, "search=dead,+100%25") == {alices}
    assert listed(olga, "search=d%25d") == set()  # no pattern
    assert listed(olga, "search=firs") == {alices}
    assert listed(alice, "search=parrot") == {alices}
    assert alice.get("/runs?user_id=bob").status_code == 403
    assert olga.get("/runs?status=lost").status_code == 400
    assert olga.get("/runs?cursor=nonsense").status_code == 422


def test_the_api_searches_as_well(api: Api, desk: Desk) -> None:  # noqa: ARG001
    first = start(api, "alice", input="my parrot is dead")
    start(api, "alice", input="something else")
    alice = api.person("alice")

    found = alice.get("/v1/runs", params={"search": "Parrot"}).json()["runs"]

    assert [run["run_id"] for run in found] == [first]
    assert alice.get("/v1/runs", params={"outcome": "cancelled"}).json()["runs"] == []


def test_a_search_that_takes_too_long_is_given_up(
    alice: Visitor, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_list, "SEARCH_SECONDS", 0.05)
    with database.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE celeriac.runs")

        response = alice.get("/runs?search=parrot")

    assert response.status_code == 422
    assert "narrow it" in response.text
    assert alice.get("/runs?search=parrot").status_code == 200


def test_pages_of_the_list_follow_each_other(api: Api, visitors: Visitors, desk: Desk) -> None:  # noqa: ARG001
    runs = [start(api, "alice", run_id=f"run-{number}") for number in range(55)]
    alice = visitors.signed_in("alice")

    first = alice.read("/runs?agent=desk")
    address = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = alice.read(address)

    assert [run for run in runs if f'href="/runs/{run}"' in first] == runs[5:]
    assert [run for run in runs if f'href="/runs/{run}"' in second] == runs[:5]
    assert "agent=desk" in address


def test_a_run_is_told_something_interrupted_and_cancelled_once_each(
    api: Api, visitors: Visitors, desk: Desk
) -> None:
    run_id = start(api, "alice")
    alice = visitors.signed_in("alice")
    at = f"/runs/{run_id}"

    say = alice.form(at, f"{at}/messages")
    told = [alice.send(say, text="line\r\nend") for _ in range(2)]
    stop = alice.send(alice.form(at, f"{at}/interrupt"))
    end = alice.send(alice.form(at, f"{at}/cancel"))

    assert [(each.status_code, each.headers["location"]) for each in (*told, stop, end)] == [
        (303, at)
    ] * 4
    assert api.rows("SELECT author, body -> 'parts' -> 0 ->> 'content' FROM celeriac.inbox") == [
        ("alice", "line\nend")
    ]
    assert desk.row(RunId(run_id)).status == RunStatus.CANCELLED
    told_by = {event.type: event.data.get("by") for event in desk.client.events(run_id)}
    assert told_by["run.said"] == told_by["run.interrupt_requested"] == "alice"
    assert told_by["run.cancelled"] == "alice"
    again = alice.send(say, text="too late", idempotency_key="another")
    assert again.status_code == 409


def test_another_users_run_does_not_exist_and_is_not_touched(
    api: Api, visitors: Visitors, desk: Desk
) -> None:
    run_id = start(api, "alice")
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    at = f"/runs/{run_id}"
    csrf = bob.form("/runs", "/sign-out").fields["csrf"]

    told = [
        bob.get(at),
        bob.get(f"{at}/events"),
        *(
            bob.send(alice.form(at, f"{at}/{act}"), csrf=csrf, text="hello")
            for act in ("cancel", "interrupt", "messages")
        ),
    ]

    assert [each.status_code for each in told] == [404] * 5
    assert desk.row(RunId(run_id)).last_event_seq == 1
    assert [actor for actor, _, _ in api.denials()] == ["bob"] * 5


def test_the_page_follows_the_apis_own_stream(api: Api, visitors: Visitors, desk: Desk) -> None:
    run_id = start(api, "alice")
    alice = visitors.signed_in("alice")
    at = f"/runs/{run_id}"
    desk.client.cancel(run_id)

    streamed = alice.get(f"{at}/events?after=0")

    assert streamed.headers["content-type"].startswith("text/event-stream")
    of_api = httpx2.get(
        f"{api.url}/v1{at}/events", headers={"Authorization": f"Bearer {api.token('alice')}"}
    )
    assert streamed.text == of_api.text
    last = desk.row(RunId(run_id)).last_event_seq
    assert alice.get(f"{at}/events?after={last}").status_code == 204


def test_operators_alone_see_workers_and_settle_calls(visitors: Visitors) -> None:
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")

    for path in ("/workers", "/unsettled"):
        assert alice.get(path).status_code == 403
        assert olga.get(path).status_code == 200


@pytest.mark.crash
@pytest.mark.processes
def test_a_call_that_nobody_knows_of_is_settled_and_the_run_rolled_back(
    visitors: Visitors, stack: Stack
) -> None:
    stack.processes.environment["ORDER_DESK_NOTIFY_URL"] = "http://127.0.0.1:9"
    stack.start_scheduler()
    stack.start_worker(test_points="act.before_call=kill")
    run_id = stack.client.start("notifier", "O-1", user_id="alice").run_id
    stack.start_worker()
    run = stack.wait(run_id)
    assert run.status is RunStatus.NEEDS_ATTENTION, run
    at = f"/runs/{run_id}"
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")
    assert "An operator says what came of it" in alice.read(at)
    (call,) = run.effects
    assert call.key in olga.read("/unsettled")
    form = olga.form("/unsettled", f"{at}/resolve", outcome="committed")

    assert olga.send(form, committed="sent").status_code == 422  # no JSON
    assert alice.send(form, csrf=alice.form(at, f"{at}/cancel").fields["csrf"]).status_code in (
        403, 422,
    )  # fmt: skip
    assert stack.run(run_id).status is RunStatus.NEEDS_ATTENTION
    assert olga.send(form, committed='"sent"').status_code == 303
    assert stack.completed(run_id).result == "done"
    assert "Every call is accounted for" in olga.read("/unsettled")

    undone = alice.send(alice.form(at, f"{at}/rollback"))
    rollback = undone.headers["location"]
    assert rollback in alice.read(at)
    assert run_id in alice.read(rollback)
    assert stack.wait(rollback.rpartition("/")[2]).status is RunStatus.NEEDS_ATTENTION
    not_undone = olga.form(rollback, f"{rollback}/resolve", outcome="not_done")
    assert olga.send(not_undone).status_code == 303
    stack.completed(rollback.rpartition("/")[2])
    workers = olga.read("/workers")
    assert "by its lifeline" in workers
    assert "celeriac" in workers


def test_every_type_of_event_has_words() -> None:
    assert EVENTS.keys() == event_types().keys()


def test_an_event_with_less_or_more_than_is_known_has_words_as_well() -> None:
    data: dict[str, JsonValue] = {"by": "bob"}
    event = Event(RunId("r1"), 1, "run.failed", datetime.now(UTC), data)

    assert event_words(event) == "failed (?): ?"
    assert event_words(replace(event, type="effect.committed")) == "? (?) took effect"
    assert event_words(replace(event, type="new.kind")) == "new.kind"
    assert event_words(replace(event, data={"error": "{by.__class__}", "outcome": "x"})) == (
        "failed (x): {by.__class__}"
    )
