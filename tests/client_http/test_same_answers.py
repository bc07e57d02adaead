"""A client over HTTP, one that is awaited and one of the database answer the same."""

# features: 003-05, 003-09
import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celeriac import AsyncClient, Client, errors
from celeriac.client import Failed, NewSchedule, NotDone, TookEffect
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.problems import URN, error_of, name_of
from celeriac.conditions import When
from celeriac.events.types import RunCreated
from celeriac.reports import Event, to_json
from celeriac.states import RunStatus
from celeriac_api.problems import KINDS
from tests.api.server import Api
from tests.client_http.conftest import PersonClient
from tests.review_desk import Desk
from tests.talk import Talk

Look = Callable[[Any], Any]


def awaited(api: Api, token: str, look: Look) -> Any:
    """What an `AsyncClient` answers."""

    async def ask() -> Any:
        async with AsyncClient(api.url, token) as client:
            found = look(client)
            return await found if inspect.isawaitable(found) else [each async for each in found]

    return asyncio.run(ask())


def test_every_report_is_the_same(api: Api, desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()
    desk.client.start("desk", "later", delay=timedelta(hours=1))
    desk.client.set_principal("carl", roles=["cashier"], permissions={"*": [When("x", "==", 1)]})
    token = api.token("ada", "admin")
    thread_id = desk.client.get(run_id).thread_id
    looks: dict[str, Look] = {
        "get": lambda client: client.get(run_id),
        "replay": lambda client: client.replay(run_id),
        "replay of a step": lambda client: client.replay(run_id, step=0),
        "diff": lambda client: client.diff(run_id, run_id),
        "runs": lambda client: client.runs(status=RunStatus.PAUSED, agent="desk"),
        "no runs": lambda client: client.runs(status=RunStatus.FAILED),
        "threads": lambda client: client.threads(),
        "no threads": lambda client: client.threads(user_id="nobody"),
        "thread": lambda client: client.thread(thread_id),
        "timers": lambda client: client.timers(),
        "waits_for": lambda client: client.waits_for(run_id),
        "approvals": lambda client: client.approvals(status=None, run_id=run_id),
        "approval": lambda client: client.approval(proposal.approval_id),
        "principals": lambda client: client.principals(),
        "tokens": lambda client: client.tokens(),
        "calls": lambda client: client.requested_calls(),
        "events": lambda client: client.events(run_id, 1),
    }
    with Client(url=api.url, token=token) as over_http:
        over_http.get(run_id)  # which shows the proposal to its user, and that is an event

        for name, look in looks.items():
            told = [look(desk.client), look(over_http), awaited(api, token, look)]
            database, http, later = (list(each) if name == "events" else each for each in told)
            assert database == http == later, name
            assert type(database) is type(http) is type(later)
            assert to_json(database) == to_json(http)


def test_both_clients_over_http_ask_the_same() -> None:
    def shapes(client: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(getattr(client, name))).replace(
                "AsyncGenerator", "Iterator"
            )
            for name in dir(client)
            if not name.startswith("_")
        }

    blocking = shapes(Client)
    del blocking["workers"]
    assert shapes(AsyncClient) == blocking


def test_what_a_program_tells_a_run_arrives(talk: Talk, client_of: PersonClient) -> None:
    client = client_of("alice")
    started = client.start("talker", "hello", thread_id="chat", run_id="mine")
    assert (started.run_id, started.thread_id, started.status) == ("mine", "chat", "queued")
    talk.run_id = started.run_id
    talk.go_on()

    (call,) = client.requested_calls("mine")
    assert client.requested_calls() == [call] == talk.client.requested_calls()
    assert client.say("mine", "hurry", key="k") == client.say("mine", "hurry", key="k") == "paused"
    assert client.submit("mine", {call.call_id: {"found": 3}}) == "queued"
    talk.go_on()

    run = client.wait("mine", timeout_seconds=30)
    assert (run.status, run.effects[0].result) == ("completed", {"found": 3})
    assert [event.type for event in client.events("mine")].count("run.said") == 1
    first = next(client.events("mine")).typed()
    assert isinstance(first, RunCreated)
    assert first.data.agent == "talker"


def test_a_run_is_interrupted_and_cancelled(talk: Talk, client_of: PersonClient) -> None:
    client = client_of("alice")
    run_id = client.start("talker", "hello").run_id

    assert client.interrupt(run_id) == "paused"
    assert client.cancel(run_id) == "cancelled" == client.cancel(run_id)
    assert client.wait(run_id, timeout_seconds=30).status == "cancelled"
    with pytest.raises(errors.Conflict, match="nothing to interrupt"):
        client.interrupt(run_id)
    assert talk.noted == []


def test_a_run_is_forked_and_retried_over_http(talk: Talk, client_of: PersonClient) -> None:
    alice = client_of("alice")
    failed = alice.start("talker", "hello", thread_id="chat").run_id
    talk.run_id = failed
    talk.go_on()
    talk.fail()

    fork = alice.fork(failed, 0)
    retried = alice.retry(failed)

    assert (alice.get(fork.run_id).forked_step, fork.status) == (0, "queued")
    assert alice.retry(failed) == retried == talk.client.retry(failed)
    assert alice.get(failed).forks == [fork.run_id, retried.run_id]
    assert alice.get(retried.run_id).thread_id == "chat"
    with pytest.raises(errors.InvalidInput, match="the steps 0 to 1"):
        alice.fork(failed, 2)
    asks: list[Look] = [
        lambda by: by.fork(failed, 0),
        lambda by: by.retry(failed),
        lambda by: by.replay(failed),
        lambda by: by.diff(fork.run_id, failed),
    ]
    for stranger in (client_of("bob"), client_of("alice", tenant="rival")):
        for ask in asks:
            with pytest.raises(errors.UnknownRun):
                ask(stranger)


@pytest.mark.parametrize(
    "way", ["approve", "approve what was shown", "edit", "edit text", "reject"]
)
def test_a_person_decides(desk: Desk, client_of: PersonClient, way: str) -> None:
    run_id, (proposal,) = desk.propose()
    bob, at = client_of("bob"), proposal.approval_id
    ways: dict[str, Callable[[], object]] = {
        "approve": lambda: bob.approve(at),
        "approve what was shown": lambda: bob.approve(at, hash=bob.approval(at).arguments_hash),
        "edit": lambda: bob.edit(at, {"order_id": "O-1", "amount": "5.00"}, reason="half"),
        "edit text": lambda: bob.edit(at, '{"order_id": "O-1", "amount": "5.00"}'),
        "reject": lambda: bob.reject(at, "too old"),
    }

    ways[way]()
    desk.go_on(run_id)

    verb = way.partition(" ")[0]
    assert desk.ledger.amounts() == {"approve": ["80.00"], "edit": ["5.00"], "reject": []}[verb]
    assert bob.approvals(status="pending") == []
    assert ("bob", f"approval.{verb}", "allowed") in desk.trail(at)


def test_what_the_state_of_a_run_does_not_allow_is_a_conflict(
    desk: Desk, client_of: PersonClient
) -> None:
    run_id, (proposal,) = desk.propose()
    olga = client_of("olga", "operator")

    refused: list[Callable[[], object]] = [
        lambda: olga.resolve(run_id, "0.0", TookEffect({"id": 1})),
        lambda: olga.resolve(run_id, "0.0", NotDone()),
        lambda: olga.retry(run_id),
        lambda: olga.rollback(run_id),
    ]
    for ask in refused:
        with pytest.raises(errors.Conflict):
            ask()
    with pytest.raises(errors.UnknownCall):
        olga.submit(run_id, {"9.9": Failed("no")})
    assert desk.client.approval(proposal.approval_id).status == "pending"


def test_tokens_are_made_and_revoked_over_http(api: Api, client_of: PersonClient) -> None:
    ada = client_of("ada", "admin")

    made = ada.create_token("alice", roles=["operator"], name="laptop", expires_days=1)

    assert made.token not in repr(made)
    with Client(url=api.url, token=made.token) as alice:
        assert alice.runs() == []
        assert ada.revoke_token(made.token_id).revoked_at is not None
        with pytest.raises(errors.Unauthenticated):
            alice.runs()
    assert ada.set_principal("carl", roles=["cashier"]).version == 1
    with pytest.raises(errors.UnknownToken):
        ada.revoke_token("k1")
    with pytest.raises(errors.RoleMissing):
        client_of("bob").tokens()


def test_a_schedule_is_kept_over_http(talk: Talk, client_of: PersonClient) -> None:
    alice = client_of("alice")

    added = alice.add_schedule("nightly", NewSchedule("talker", "30 2 * * *", "hello"))
    fire = alice.trigger_schedule("nightly")

    assert (added.user_id, added.paused) == ("alice", False)
    assert [alice.schedule("nightly")] == alice.schedules() == talk.client.schedules()
    assert alice.schedules()[0].fires == [fire]
    assert alice.pause_schedule("nightly").paused
    assert not alice.resume_schedule("nightly").paused
    with pytest.raises(errors.UnknownSchedule):
        client_of("bob").pause_schedule("nightly")
    assert alice.remove_schedule("nightly").schedule_id == "nightly"
    for client in (alice, talk.client):
        for name in ("nightly", "no name!"):
            with pytest.raises(errors.UnknownSchedule):
                client.schedule(name)


def test_a_run_is_delayed_and_has_a_deadline(talk: Talk, client_of: PersonClient) -> None:
    alice, hour = client_of("alice"), timedelta(hours=1)
    later = datetime.now(UTC) + hour
    times: list[dict[str, Any]] = [
        {"start_at": later, "deadline": later + hour},
        {"delay": hour, "deadline": hour},
    ]

    for given in times:
        ours = talk.client.get(talk.client.start("talker", "hello", **given).run_id)
        theirs = alice.get(alice.start("talker", "hello", **given).run_id)

        assert ours.phase == theirs.phase == "waiting_timer"
        for run in (ours, theirs):
            assert run.start_at is not None
            assert run.deadline_at is not None
            assert abs(run.start_at - later) < hour / 2
            assert abs(run.deadline_at - run.start_at - hour) < timedelta(seconds=1)
    with pytest.raises(errors.InvalidInput):
        alice.start("talker", "hello", start_at=datetime(2030, 1, 1))
    with pytest.raises(errors.InvalidInput):
        alice.start("talker", "hello", start_at=later, delay=hour)


# Errors -----------------------------------------------------------------------------------------


def test_every_problem_is_the_error_that_it_was_made_from() -> None:
    for error, kind in KINDS.items():
        if error is errors.CeleriacError:
            continue
        assert name_of(error) == kind.name
        told = {
            "type": URN + kind.name,
            "title": kind.title,
            "detail": "why",
            "status": kind.status,
        }
        made = error_of("POST /x", kind.status, told)
        assert (type(made), str(made)) == (error, "why")


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, "InvalidInput"), (409, "Conflict"), (418, "UnexpectedAnswer"), (503, "Unavailable"),
     (500, "UnexpectedAnswer"), (429, "RateLimited"), (404, "InvalidInput")],
)  # fmt: skip
def test_a_problem_that_is_not_known_stays_readable(status: int, expected: str) -> None:
    told = {"type": "urn:celeriac:problem:of-tomorrow", "title": "Too new", "detail": "do this"}

    made = error_of("GET /x", status, told)

    assert type(made).__name__ == expected
    assert str(made) == f"do this ({status}, urn:celeriac:problem:of-tomorrow)"


@pytest.mark.parametrize("told", ["<html>Bad gateway", None, [], {"type": 7}, {"error": "x"}])
def test_what_is_no_problem_is_shown(told: object) -> None:
    assert "answered by no problem of the API, but with 500" in str(error_of("GET /x", 500, told))


@pytest.mark.usefixtures("talk")
def test_the_same_errors_are_raised_as_by_the_database(talk: Talk, client_of: PersonClient) -> None:
    alice = client_of("alice")
    alice.start("talker", "hello", run_id="r1", thread_id="chat")
    cases: list[tuple[type[Exception], Look]] = [
        (errors.UnknownRun, lambda client: client.get("nope")),
        (errors.UnknownRun, lambda client: client.get("no id!")),
        (errors.UnknownRun, lambda client: list(client.events("nope"))),
        (errors.UnknownRun, lambda client: client.wait("nope")),
        (errors.UnknownAgent, lambda client: client.start("nobody", "x")),
        (errors.RunExists, lambda client: client.start("talker", "x", run_id="r1")),
        (errors.UnknownApproval, lambda client: client.approve("nope")),
        (errors.UnknownApproval, lambda client: client.approval("a1")),
        (errors.InvalidInput, lambda client: client.start("talker", {1, 2})),
        (errors.InvalidInput, lambda client: client.say("r1", " ")),
        (errors.InvalidInput, lambda client: client.approvals(status="perhaps")),
        (errors.InvalidInput, lambda client: client.start("talker", "x", thread_id="a b")),
        (errors.Conflict, lambda client: client.retry("r1")),
        (TimeoutError, lambda client: client.wait("r1", timeout_seconds=0.2)),
        (TimeoutError, lambda client: list(client.watch("r1", timeout_seconds=0.2))),
    ]  # fmt: skip

    for expected, ask in cases:
        for client in (talk.client, alice):
            with pytest.raises(expected) as raised:
                ask(client)
            assert type(raised.value) is expected, raised.value


def test_who_else_says_so_cannot_be_named(talk: Talk, client_of: PersonClient) -> None:
    alice = client_of("alice")
    run_id = alice.start("talker", "hello").run_id

    with pytest.raises(errors.InvalidInput, match="use a token of bob"):
        alice.cancel(run_id, by="bob")

    assert talk.client.get(run_id).status == "queued"


def test_a_field_of_tomorrow_is_left_out_and_a_missing_one_is_told() -> None:
    sent = {"run_id": "r", "seq": 1, "type": "x.y", "at": "2026-11-30T08:00:00Z", "data": {}}

    event = reader(Event)({**sent, "mood": "good"})

    assert to_json(event) == sent
    assert event.typed() is None
    with pytest.raises(KeyError):
        reader(Event)({"run_id": "r"})
