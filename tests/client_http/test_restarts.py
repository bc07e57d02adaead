"""Clients of an API process that is killed and started again, on connections that die."""

# features: 003-07, 003-09
import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from itertools import islice

import pytest

from celeriac import AsyncClient, Client
from celeriac.client.over_http import connection
from celeriac.reports import Event
from celeriac_storage.audit import audit
from tests.crash.agents import counter
from tests.crash.proxy import Proxy, proxy_to
from tests.crash.servers import free_port
from tests.review_desk import Desk
from tests.streaming.conftest import Service, make_token
from tests.streaming.test_events import say
from tests.waiting import eventually

pytestmark = pytest.mark.processes

RESTART_SECONDS = 60.0
PATIENCE_SECONDS = 60.0  # a process takes its time to start while others test as well

Follow = Callable[[str, str, str, list[Event]], None]


def follow(url: str, token: str, run_id: str, told: list[Event]) -> None:
    with Client(url=url, token=token, patience_seconds=PATIENCE_SECONDS) as client:
        tell = told.append  # one by one, since others look on
        for event in client.events(run_id, follow=True):
            tell(event)


def follow_awaited(url: str, token: str, run_id: str, told: list[Event]) -> None:
    async def read() -> None:
        tell = told.append
        async with AsyncClient(url, token, patience_seconds=PATIENCE_SECONDS) as client:
            async for event in client.events(run_id, follow=True):
                tell(event)

    asyncio.run(read())


@contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[Future[object]]:
    with ThreadPoolExecutor() as threads:
        future = threads.submit(do)
        yield future
        future.result(RESTART_SECONDS)


@pytest.fixture
def proxy(service: Service) -> Iterator[Proxy]:
    _, url = service.start_api()
    with proxy_to(url) as proxy:
        yield proxy


@pytest.mark.parametrize("read", [follow, follow_awaited])
def test_a_reader_gets_each_event_once_though_the_api_is_killed(
    service: Service, read: Follow
) -> None:
    port = free_port()
    api, url = service.start_api(port)
    run_id = service.stack.client.start(counter, "go").run_id
    told: list[Event] = []

    with meanwhile(lambda: read(url, service.token, run_id, told)):
        say(service.stack, run_id, 5)
        eventually(lambda: len(told) >= 7, what="seven events")
        for _ in range(2):
            api.kill_group()
            say(service.stack, run_id, 300)
            api, _ = service.start_api(port)
            say(service.stack, run_id, 5)
        service.stack.client.cancel(run_id)

    assert [event.seq for event in told] == service.seqs(run_id)
    assert told == list(service.stack.client.events(run_id))


def test_a_reader_that_comes_back_with_its_last_seq_loses_nothing(service: Service) -> None:
    _, url = service.start_api()
    run_id = service.stack.client.start(counter, "go").run_id
    say(service.stack, run_id, 10)

    with Client(url=url, token=service.token) as client:
        first = [event.seq for event in islice(client.events(run_id, follow=True), 4)]
    say(service.stack, run_id, 10)
    service.stack.client.cancel(run_id)
    with Client(url=url, token=service.token) as client:
        rest = [event.seq for event in client.events(run_id, first[-1], follow=True)]

        assert first + rest == service.seqs(run_id)
        assert list(client.events(run_id, rest[-1], follow=True)) == []


@pytest.mark.parametrize("read", [follow, follow_awaited])
def test_a_connection_that_died_without_a_word_is_noticed(
    service: Service, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, read: Follow
) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)
    run_id = service.stack.client.start(counter, "go").run_id
    told: list[Event] = []

    with meanwhile(lambda: read(proxy.url, service.token, run_id, told)):
        eventually(lambda: len(told) >= 2, what="two events")
        assert proxy.strand() > 0
        service.stack.client.cancel(run_id)

    assert [event.seq for event in told] == service.seqs(run_id)


@pytest.mark.parametrize("point", ["api.before_commit", "api.after_commit"])
def test_a_start_is_done_once_though_the_api_dies_in_it(service: Service, point: str) -> None:
    port = free_port()
    service.start_worker()  # which registers the agent, and dies of nothing
    dying, url = service.start_api(port, test_points=f"{point}=kill")
    client = Client(url=url, token=service.token, patience_seconds=PATIENCE_SECONDS)

    with client, meanwhile(lambda: client.start("counter", "go", run_id="mine")) as started:
        dying.wait()
        service.start_api(port)
        assert started.result(RESTART_SECONDS).run_id == "mine"  # type: ignore[attr-defined]

    assert service.stack.query("SELECT run_id FROM celeriac.runs") == [("mine",)]
    assert audit(service.stack.database) == []


@pytest.mark.parametrize("point", ["api.before_commit", "api.after_commit"])
def test_an_approval_counts_once_though_the_api_dies_in_it(
    service: Service, desk: Desk, point: str
) -> None:
    run_id, (proposal,) = desk.propose()
    port, token = free_port(), make_token(desk.database, "bob")
    dying, url = service.start_api(port, test_points=f"{point}=kill")
    bob = Client(url=url, token=token, patience_seconds=PATIENCE_SECONDS)

    with bob, meanwhile(lambda: bob.approve(proposal.approval_id)) as decided:
        dying.wait()
        service.start_api(port)
        assert decided.result(RESTART_SECONDS).status == "approved"  # type: ignore[attr-defined]
    desk.go_on(run_id)

    assert desk.ledger.amounts() == ["80.00"]
    assert desk.trail(proposal.approval_id).count(("bob", "approval.approve", "allowed")) == 1


def test_a_run_is_waited_for_over_the_death_of_the_api(service: Service) -> None:
    port = free_port()
    api, url = service.start_api(port)
    run_id = service.stack.client.start(counter, "go").run_id
    client = Client(url=url, token=service.token, patience_seconds=PATIENCE_SECONDS)

    with client, meanwhile(lambda: client.wait(run_id)) as waited:
        api.kill_group()
        service.stack.client.cancel(run_id)
        service.start_api(port)
        assert waited.result(RESTART_SECONDS) == service.stack.run(run_id)


def test_watching_shows_the_run_at_its_end(service: Service) -> None:
    _, url = service.start_api()
    service.stack.start_scheduler()

    with Client(url=url, token=service.token) as client:
        run_id = service.stack.client.start(counter, "go").run_id
        watched = client.watch(run_id, timeout_seconds=60)
        first = next(watched)
        service.start_worker()
        seen = [first, *watched]

    assert (first.step, seen[-1].status) == (0, "completed")
    assert seen[-1] == service.stack.run(run_id)
    steps = [run.step for run in seen]
    assert steps == sorted(steps)


def test_to_cancel_a_task_closes_its_connection(service: Service, proxy: Proxy) -> None:
    run_id = service.stack.client.start(counter, "go").run_id

    async def read_and_be_cancelled() -> None:
        client = AsyncClient(proxy.url, service.token)
        is_reading = asyncio.Event()

        async def read() -> None:
            async with aclosing(client.events(run_id, follow=True)) as events:
                async for _ in events:
                    is_reading.set()

        tasks = [asyncio.create_task(read()), asyncio.create_task(client.wait(run_id))]
        await is_reading.wait()
        await asyncio.to_thread(eventually, lambda: proxy.open_links >= 2, what="two streams")
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        # An idle connection is kept for the next request; one in the middle of a stream is not.
        await asyncio.to_thread(
            eventually, lambda: proxy.open_links <= 1, what="the streams' connections closed"
        )
        assert (await client.get(run_id)).status == "paused"
        await client.close()

    asyncio.run(read_and_be_cancelled())

    eventually(lambda: proxy.open_links == 0, what="no connection open")
