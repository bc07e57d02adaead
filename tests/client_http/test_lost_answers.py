"""What a client asks for is done once, whatever becomes of the answer; and its token stays its own.

The proxy between client and service ends a connection when the answer comes: the service has done
it, and the client cannot know.
"""

# features: 003-09
import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from celeriac import AsyncClient, Client, errors
from celeriac.client.over_http.request import get, post
from celeriac.client.over_http.tries import Tries
from tests.api.server import Api
from tests.client_http.conftest import PersonClient
from tests.crash.proxy import Proxy, proxy_to
from tests.crash.servers import free_port
from tests.review_desk import Desk
from tests.talk import Talk

TOKEN = "cel_" + "s3cret" * 8


@pytest.fixture
def proxy(api: Api) -> Iterator[Proxy]:
    with proxy_to(api.url) as proxy:
        yield proxy


@pytest.fixture
def alice(api: Api, proxy: Proxy) -> Iterator[Client]:
    with Client(url=proxy.url, token=api.token("alice", "operator")) as client:
        yield client


def test_nothing_that_a_run_is_told_is_told_twice(
    api: Api, proxy: Proxy, alice: Client, talk: Talk
) -> None:
    proxy.lose_answers(1)
    talk.run_id = alice.start("talker", "hello").run_id
    proxy.lose_answers(2)
    alice.say(talk.run_id, "hurry")
    talk.go_on()
    proxy.lose_answers(1)
    alice.submit(talk.run_id, {talk.client.get(talk.run_id).effects[0].call_id: 3})
    talk.go_on()
    proxy.lose_answers(1)
    other = alice.start("talker", "hello").run_id
    proxy.lose_answers(1)
    assert alice.interrupt(other) == "paused"
    proxy.lose_answers(1)
    assert alice.cancel(other) == "cancelled"

    assert api.rows("SELECT count(*) FROM celeriac.runs") == [(2,)]
    assert api.rows("SELECT count(*) FROM celeriac.inbox WHERE run_id = %s", talk.run_id) == [(1,)]
    types = [event.type for run in (talk.run_id, other) for event in talk.client.events(run)]
    for once in ("run.said", "run.interrupt_requested", "run.cancelled"):
        assert types.count(once) == 1, once
    assert api.denials() == []


# features: 004-22
def test_a_decision_counts_once(api: Api, proxy: Proxy, desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()
    with Client(url=proxy.url, token=api.token("bob")) as bob:
        shown = bob.approval(proposal.approval_id)
        proxy.lose_answers(2)
        assert bob.approve(shown.approval_id, hash=shown.arguments_hash).status == "approved"
    desk.go_on(run_id)

    assert desk.ledger.amounts() == ["80.00"]
    assert api.rows("SELECT reviewer FROM celeriac.approval_decisions") == [("bob",)]
    assert api.denials() == []


def test_a_token_whose_answer_was_lost_was_made_once_and_is_told_of(api: Api, proxy: Proxy) -> None:
    with Client(url=proxy.url, token=api.token("ada", "admin")) as ada:
        proxy.lose_answers(1)
        with pytest.raises(errors.KeyPruned, match="was carried out"):
            ada.create_token("alice")

        assert [token.user_id for token in ada.tokens()] == ["ada", "alice"]
        proxy.lose_answers(1)
        assert ada.set_principal("carl", roles=["cashier"]).version == 1


def test_an_awaited_call_is_done_once_as_well(api: Api, proxy: Proxy, talk: Talk) -> None:
    async def talk_to_it() -> None:
        async with AsyncClient(proxy.url, api.token()) as client:
            proxy.lose_answers(1)
            talk.run_id = (await client.start("talker", "hello")).run_id
            proxy.lose_answers(1)
            await client.say(talk.run_id, "hurry")

    asyncio.run(talk_to_it())

    assert api.rows("SELECT count(*) FROM celeriac.runs") == [(1,)]
    assert api.rows("SELECT count(*) FROM celeriac.inbox") == [(1,)]


def test_two_at_once_decide_and_one_of_them_wins(desk: Desk, client_of: PersonClient) -> None:
    run_id, (proposal,) = desk.propose()
    people = [client_of(name) for name in ("bob", "carl", "dora")]
    at_once = threading.Barrier(len(people))

    def decide(person: Client) -> str:
        at_once.wait()
        try:
            return person.approve(proposal.approval_id).status
        except errors.DecisionRefused:
            return "too late"

    with ThreadPoolExecutor() as threads:
        said = sorted(threads.map(decide, people))
    desk.go_on(run_id)

    assert said == ["approved", "too late", "too late"]
    assert desk.ledger.amounts() == ["80.00"]


# Giving up --------------------------------------------------------------------------------------


def test_a_service_that_is_not_there_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url=url, token=TOKEN, patience_seconds=0.5) as client:
        with pytest.raises(errors.Unavailable, match=r"does not answer \(ConnectError"):
            client.runs()
        with pytest.raises(errors.Unavailable, match="not known whether run mine was accepted"):
            client.start("talker", "hello", run_id="mine")
        with pytest.raises(errors.Unavailable):
            list(client.events("mine", follow=True))

    assert TOKEN not in caplog.text
    assert "trying again for 0.5 s" in caplog.text


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tries(patience_seconds: float = 10.0) -> tuple[Tries, Clock]:
    clock = Clock()
    return Tries(post("/v1/runs"), "http://x", patience_seconds, clock), clock


def test_pauses_grow_and_are_bounded_by_the_patience() -> None:
    attempts, clock = tries()
    pauses: list[float] = []

    def try_for_ever() -> None:
        while True:
            pauses.append(attempts.lost(OSError("reset")))
            clock.now += pauses[-1]

    with pytest.raises(errors.Unavailable):
        try_for_ever()

    assert 0.05 <= pauses[0] <= 0.1
    assert 1.5 <= max(pauses) <= 3.0
    assert clock.now <= 10.0


@pytest.mark.parametrize("asked", ["2", "Fri, 31 Dec 9999 23:59:59 GMT", "soon"])
def test_a_service_says_when_to_come_again(asked: str) -> None:
    attempts, _ = tries()
    busy = {"type": "urn:celeriac:problem:rate-limited", "detail": "wait a little"}

    if asked.startswith("Fri"):  # longer than anybody waits
        with pytest.raises(errors.RateLimited, match="wait a little"):
            attempts.refused(429, busy, asked)
    else:
        assert (attempts.refused(429, busy, asked) >= 2) is (asked == "2")


@pytest.mark.parametrize(
    ("status", "again"),
    [(429, True), (502, True), (503, True), (504, True), (500, False), (409, False), (400, False)],
)
def test_only_what_may_be_different_next_time_is_asked_again(status: int, again: bool) -> None:
    attempts, _ = tries()

    if again:
        assert attempts.refused(status, "away", None) > 0
    else:
        with pytest.raises(errors.CeleriacError):
            attempts.refused(status, "no", None)


def test_our_own_request_that_is_still_at_work_is_waited_for() -> None:
    attempts, _ = tries()

    assert attempts.refused(409, {"type": "urn:celeriac:problem:key-in-use"}, "1") >= 1


def test_a_key_is_made_before_the_first_try_and_belongs_to_one_request() -> None:
    assert post("/x").key != post("/x").key
    assert get("/x").key is None


# The token --------------------------------------------------------------------------------------


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes = b"") -> Iterator[Any]:
    """A server that always says the same; `seen` are the requests' headers."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_token_follows_no_redirect() -> None:
    with (
        answering(200, {}) as (elsewhere, stolen),
        answering(307, {"Location": elsewhere}) as (url, _),
        Client(url=url, token=TOKEN) as client,
    ):
        with pytest.raises(errors.UnexpectedAnswer, match=f"a redirect to {elsewhere}"):
            client.runs()
        with pytest.raises(errors.UnexpectedAnswer, match="a redirect to"):
            list(client._desk.events("r1", 0))  # type: ignore[call-arg,arg-type]

    assert stolen == []


@pytest.mark.parametrize(
    "body", [b"<html>welcome</html>", b"[1, 2]", b'{"runs": [{}]}', b"\xff", b"{}"]
)
def test_what_is_no_api_is_told_of(body: bytes) -> None:
    with (
        answering(200, {"Content-Type": "text/html"}, body) as (url, _),
        Client(url=url, token=TOKEN) as client,
    ):
        for ask in (client.runs, client.principals):
            with pytest.raises(errors.UnexpectedAnswer):
                ask()


def test_a_client_shows_its_token_nowhere(caplog: pytest.LogCaptureFixture, api: Api) -> None:
    caplog.set_level(logging.DEBUG)
    client = Client(url=api.url, token=TOKEN)
    shown = [repr(client), str(vars(client._desk)), repr(client._desk)]

    with client, pytest.raises(errors.Unauthenticated) as refused:
        client.runs()
    async_client = AsyncClient(api.url, TOKEN)
    shown += [repr(async_client), repr(async_client._desk), str(refused.value)]
    asyncio.run(async_client.close())

    assert repr(client) == f"<Client of {api.url}>"
    assert TOKEN not in "".join([*shown, caplog.text])


@pytest.mark.parametrize(
    "make",
    [
        Client,
        lambda: Client(url="http://x"),
        lambda: Client("postgresql://x/y", url="http://x", token=TOKEN),
        lambda: Client("postgresql://x/y", token=TOKEN),
        lambda: Client(url="http://x", token=TOKEN, tenant="shop"),
        lambda: Client(None, "redis://x", url="http://x", token=TOKEN),
        lambda: Client(url="ftp://x", token=TOKEN),
        lambda: Client(url="x:80", token=TOKEN),
        lambda: Client(url=f"http://u:{TOKEN}@x", token=TOKEN),
        lambda: Client(url="http://x", token=f"{TOKEN}\r\nX-Evil: 1"),
        lambda: Client(url="http://x", token=""),
        lambda: AsyncClient("http://x?a=b", TOKEN),
        lambda: Client("postgresql://x/y", tenant="a,b"),
    ],
)
def test_what_no_client_can_be_made_of_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        make()

    assert TOKEN not in str(refused.value)
