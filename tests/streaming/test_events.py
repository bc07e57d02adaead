"""The event stream: each event once, in order, to everybody who may read it, whatever happens."""

import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

import httpx2
import pytest
import redis
from sqlalchemy import Connection

from celeriac.client import Client
from celeriac.codec import JsonValue
from celeriac.ids import RunId
from celeriac_api.streaming import hub
from celeriac_storage import run_events
from tests.api.server import Api, serving
from tests.crash.agents import counter
from tests.crash.stack import Stack
from tests.streaming.conftest import Service, make_token
from tests.streaming.subscriber import Subscriber, port_of
from tests.waiting import eventually

LAST = "run.cancelled"
BEGIN = ["run.created", "run.paused"]  # of a run for which there is no worker


def say(stack: Stack, run_id: str, count: int, size: int = 0) -> None:
    """So many events, which need no worker."""
    with stack.database.begin() as connection:
        append(connection, run_id, count, "alice" + "." * size)


def append(connection: Connection, run_id: str, count: int, by: str = "alice") -> None:
    data: dict[str, JsonValue] = {"by": by}
    run_events.append(connection, RunId(run_id), [("run.said", data)] * count, is_request=False)


def start(stack: Stack) -> str:
    """A run that no worker takes, since there is none."""
    return stack.client.start(counter, "go").run_id


def ring(service: Service, run_id: str) -> None:
    with redis.Redis.from_url(service.stack.broker.url) as client:
        client.publish(f"celeriac:run:{run_id}", "")


def get(url: str, token: str | None, run_id: str, **headers: str) -> httpx2.Response:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    address = f"{url}/v1/runs/{run_id}/events"
    return httpx2.get(address, headers=headers, timeout=30)


@pytest.fixture
def ended(service: Service) -> str:
    """A run with 13 events, which nobody works on."""
    run_id = start(service.stack)
    say(service.stack, run_id, 10)
    service.stack.client.cancel(run_id)
    return run_id


# features: 003-07
def test_who_comes_late_gets_all_from_any_position_and_the_stream_ends(
    service: Service, ended: str
) -> None:
    _, url = service.start_api()
    seqs = service.seqs(ended)
    assert seqs == list(range(1, 14))

    for position in range(13):
        read = [
            service.subscribe(url, ended, last_event_id=str(position)),
            service.subscribe(url, ended, after=position),
            service.subscribe(url, ended, after=3, last_event_id=str(position)),
        ]
        for each in read:
            assert each.wait_for_end().seqs == seqs[position:]
            assert each.names[-1] == LAST

    told = service.subscribe(url, ended).wait_for_end()
    assert [event["type"] for event in told.events] == told.names
    assert told.events[0].keys() == {"run_id", "seq", "type", "at", "data"}
    # And then there is nothing: the status that tells a browser not to come back.
    nothing = get(url, service.token, ended, **{"Last-Event-ID": "13"})
    assert (nothing.status_code, nothing.content) == (204, b"")


def test_nobody_follows_what_is_not_his_to_see_or_from_where_nobody_can_be(
    service: Service, ended: str
) -> None:
    _, url = service.start_api()
    mallory = make_token(service.stack.database, "mallory")

    answers = [
        get(url, service.token, "r-unknown"),
        get(url, mallory, ended),
        get(url, None, ended),
        get(url, "clt_nobody", ended),
    ]

    assert [each.status_code for each in answers] == [404, 404, 401, 401]
    unknown, hidden = (each.json()["detail"] for each in answers[:2])
    assert unknown.replace("r-unknown", ended) == hidden
    wrong = ["x", "-1", "1.5", "+1", "99999999999", "2147483648", "14", "1 2"]
    for position in wrong:
        refused = get(url, service.token, ended, **{"Last-Event-ID": position})
        assert refused.status_code == 400, position
        assert refused.headers["content-type"] == "application/problem+json"
    owner = make_token(service.stack.database, "local")
    assert service.subscribe(url, ended, token=owner).wait_for_end().status == 200


# features: 003-07, 003-04
def test_every_reader_on_every_process_gets_the_table_while_four_workers_write(
    service: Service,
) -> None:
    service.stack.start_scheduler()
    api, url = service.start_api()
    _, other_url = service.start_api()
    for _ in range(4):
        service.start_worker()
    runs = [service.stack.start("counter") for _ in range(12)]
    held = service.stack.start("waiter")
    addresses = (url, other_url)
    first = [service.subscribe(address, run) for run in [*runs, held] for address in addresses]
    eventually(lambda: first[-1].seqs, what="the first events")

    with service.stack.database.begin() as connection:
        # A transaction that has taken a seq and is slow to commit. None may be seen after it first.
        append(connection, held, 1)
        for each in first[:-2]:
            each.wait(lambda each: each.seqs, "events of other runs")
        eventually(
            lambda: connection.exec_driver_sql(
                "SELECT clock_timestamp() - transaction_timestamp() > interval '2 s'"
            ).scalar_one(),
            what="it has been open for two seconds of the database's time",
        )
        last_committed = service.seqs(held)[-1]
        assert {seq for each in first[-2:] for seq in each.seqs} <= set(
            range(1, last_committed + 1)
        )
    api.kill_group()
    back = [
        service.subscribe(other_url, run, last_event_id=str(each.seqs[-1] if each.seqs else 0))
        for run, each in zip([*runs, held], first[::2], strict=True)
    ]
    _, url = service.start_api(port_of(url))
    service.stack.open_gate("gate")
    late = [service.subscribe(url, run) for run in [*runs, held]]

    for each in (*back, *late, *first[1::2]):
        each.wait_for_end()
    for number, run in enumerate([*runs, held]):
        table = service.seqs(run)
        assert first[2 * number].seqs + back[number].seqs == table
        assert first[2 * number + 1].seqs == table
        assert late[number].seqs == table
        for each in (first[2 * number], first[2 * number + 1], back[number], late[number]):
            assert {event["run_id"] for event in each.events} <= {run}
    assert service.stack.violations() == []


def test_events_come_without_redis_and_through_its_loss(service: Service) -> None:
    _, deaf_url = service.start_api(broker_url="amqp://127.0.0.1:1")
    _, url = service.start_api()
    run_id = start(service.stack)
    both = [service.subscribe(deaf_url, run_id), service.subscribe(url, run_id)]
    for each in both:
        each.wait(lambda each: each.names == BEGIN, "the first event")

    with redis.Redis.from_url(service.stack.broker.url) as client:
        client.flushdb()
        for found in client.client_list(_type="pubsub"):
            client.client_kill_filter(_id=found["id"])
    say(service.stack, run_id, 3)  # and nobody rings
    service.stack.client.cancel(run_id)

    for each in both:
        assert each.wait_for_end().seqs == service.seqs(run_id)


def test_events_come_through_the_loss_of_the_database_sessions(service: Service) -> None:
    _, url = service.start_api()
    run_id = start(service.stack)
    subscriber = service.subscribe(url, run_id).wait(lambda each: each.names == BEGIN)

    for number in range(5):
        service.stack.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'celeriac-api' AND datname = current_database()"
        )
        say(service.stack, run_id, 1)
        ring(service, run_id)
        eventually(lambda: subscriber.seqs[-1], until=(number + 3).__le__, what="the next event")
    service.stack.client.cancel(run_id)

    assert subscriber.wait_for_end().seqs == service.seqs(run_id)


# features: 003-07
def test_a_reader_that_does_not_read_holds_nobody_and_no_connection(service: Service) -> None:
    _, url = service.start_api()
    run_id = start(service.stack)
    fast = [service.subscribe(url, run_id) for _ in range(3)]
    for each in fast:
        each.wait(lambda each: each.seqs, "the first event")
    slow = _connected(url, service.token, run_id)

    # More than the sockets and the reader's queue can hold.
    for _ in range(30):
        say(service.stack, run_id, 100, size=10_000)
        ring(service, run_id)
    service.stack.client.cancel(run_id)
    for each in fast:
        assert each.wait_for_end().seqs == service.seqs(run_id)
    # The API asks for itself every now and then; what the reader held would stay.
    eventually(
        lambda: service.stack.query(
            "SELECT pid, state, query FROM pg_stat_activity WHERE application_name = 'celeriac-api'"
            " AND datname = current_database() AND state <> 'idle'"
        ),
        until=lambda held: held == [],
        what="no connection in use",
    )

    assert _ids(slow) == service.seqs(run_id)


def _connected(url: str, token: str, run_id: str) -> socket.socket:
    address = urlsplit(url)
    reader = socket.create_connection((address.hostname or "", address.port or 0), timeout=30)
    reader.sendall(
        f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    assert reader.recv(1) == b"H"
    return reader


def _ids(reader: socket.socket) -> list[int]:
    """Read to the end, and take the ids out of it."""
    received = b""
    while piece := reader.recv(1 << 20):
        received += piece
    reader.close()
    lines = received.replace(b"\r\n", b"\n").split(b"\n")
    return [int(line[4:]) for line in lines if line.startswith(b"id: ")]


def test_many_readers_of_ten_runs_get_what_one_would(service: Service) -> None:
    _, url = service.start_api()
    runs = [start(service.stack) for _ in range(10)]
    address = urlsplit(url)
    readers = [
        _connected(f"http://{address.hostname}:{address.port}", service.token, runs[number % 10])
        for number in range(300)
    ]

    for run in runs:
        say(service.stack, run, 20)
        service.stack.client.cancel(run)
        ring(service, run)
    read: dict[int, Sequence[int]] = {}

    def read_all(numbers: Sequence[int]) -> None:
        for number in numbers:
            read[number] = _ids(readers[number])

    threads = [threading.Thread(target=read_all, args=(range(n, 300, 4),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(map(tuple, read.values())) == {tuple(range(1, 24))}
    assert len(read) == 300


@pytest.fixture
def never_polling(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An API whose readers hear of what rings, and of nothing else."""
    monkeypatch.setattr(hub, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(hub, "DEAF_POLL_SECONDS", 3600.0)
    with serving(service.stack.database, service.stack.broker.url) as api:
        yield api


def listen(service: Service, api: Api, run_id: str) -> Subscriber:
    subscriber = service.subscribe(api.url, run_id)
    subscriber.wait(lambda each: each.seqs == service.seqs(run_id), "the first events")
    eventually(lambda: service.listeners(run_id), what="the API listens for the run")
    return subscriber


def test_what_is_asked_over_http_wakes_readers_at_once(
    service: Service, never_polling: Api
) -> None:
    run_id = start(service.stack)
    subscriber = listen(service, never_polling, run_id)
    olga = never_polling.holder_of(service.token)

    olga.post(f"/v1/runs/{run_id}/cancel")

    assert subscriber.wait_for_end().names == [*BEGIN, LAST]


def test_what_a_client_of_the_database_asks_wakes_readers_at_once(
    service: Service, never_polling: Api
) -> None:
    run_id = start(service.stack)
    subscriber = listen(service, never_polling, run_id)

    with Client(service.stack.database.url, service.stack.broker.url) as client:
        client.cancel(run_id)

    assert subscriber.wait_for_end().names == [*BEGIN, LAST]


def test_what_a_scheduler_does_wakes_readers_at_once(service: Service, never_polling: Api) -> None:
    stack = service.stack
    overdue = stack.client.start(counter, "go", deadline=timedelta(hours=1)).run_id
    delayed = stack.client.start(counter, "go", delay=timedelta(hours=1)).run_id
    readers = [listen(service, never_polling, run) for run in (overdue, delayed)]
    stack.start_scheduler()

    stack.execute("UPDATE celeriac.runs SET deadline_at = now() WHERE deadline_at IS NOT NULL")
    readers[0].wait(lambda each: "run.failed" in each.names, "the end by its deadline")
    stack.execute("UPDATE celeriac.timers SET due_at = now()")
    readers[1].wait(lambda each: "run.woken" in each.names, "the begin by its timer")
    service.start_worker(test_points="step.after_claim=kill")
    readers[1].wait(lambda each: "run.recovered" in each.names, "the verdict about its worker")


def test_what_rang_while_the_database_was_away_is_looked_at_later(
    service: Service, never_polling: Api
) -> None:
    run_id = start(service.stack)
    subscriber = listen(service, never_polling, run_id)
    for count in range(3, 6):
        service.stack.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'celeriac-api' AND datname = current_database()"
        )
        say(service.stack, run_id, 1)
        ring(service, run_id)  # once, and nobody looks if this look fails

        eventually(lambda: subscriber.seqs[-1], until=count.__eq__, what="the next event")


def test_a_poll_in_many_looks_leaves_no_run_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "POLLED_AT_ONCE", 3)
    runs = [start(service.stack) for _ in range(10)]
    with serving(service.stack.database, broker_url=None) as api:
        readers = [service.subscribe(api.url, run) for run in runs]
        for each in readers:
            each.wait(lambda each: each.names == BEGIN, "the first events")

        for run in runs:
            service.stack.client.cancel(run)  # and nobody rings

        for each in readers:
            assert each.wait_for_end().names == [*BEGIN, LAST]


def test_a_silent_stream_is_kept_alive(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from celeriac_api.streaming import routes

    monkeypatch.setattr(routes, "HEARTBEAT_SECONDS", 0.05)
    run_id = start(service.stack)
    with serving(service.stack.database, service.stack.broker.url) as api:
        subscriber = service.subscribe(api.url, run_id)
        subscriber.wait(lambda each: each.comments >= 3, "comments")
        service.stack.client.cancel(run_id)
        assert subscriber.wait_for_end().names == [*BEGIN, LAST]


def test_a_stream_that_has_lasted_its_time_ends_and_is_gone_on_with(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celeriac_api.streaming import routes

    monkeypatch.setattr(routes, "LASTS_SECONDS", 0.2)
    run_id = start(service.stack)
    with serving(service.stack.database, service.stack.broker.url) as api:
        assert service.subscribe(api.url, run_id).wait_for_end().names == BEGIN
        service.stack.client.cancel(run_id)
        back = service.subscribe(api.url, run_id, last_event_id="2")
        assert back.wait_for_end().names == [LAST]
