"""Readers are woken through Redis, and do without it."""

import time
from collections.abc import Iterator

import pytest

from celeriac.client import Client
from celeriac.ids import RunId
from celeriac_storage.database import Database
from celeriac_tasks.bell import Bell, Ear, listening
from tests.crash import agents
from tests.processes import Processes

PATIENCE_SECONDS = 60.0
"""What an ear waits that nobody wakes; being woken takes a moment, on the slowest machine too."""

RUN, OTHER = RunId("bell-1"), RunId("bell-2")
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


@pytest.fixture
def bell(broker_url: str) -> Iterator[Bell]:
    bell = Bell(broker_url)
    yield bell
    bell.close()


def has_heard(ear: Ear) -> bool:
    began = time.monotonic()
    ear.wait(PATIENCE_SECONDS)
    return time.monotonic() - began < PATIENCE_SECONDS


def test_a_reader_hears_what_was_rung_since_it_listens(broker_url: str, bell: Bell) -> None:
    with listening(broker_url, RUN) as ear:
        for _ in range(100):
            bell.ring(RUN)

        assert has_heard(ear)


def test_a_reader_does_not_hear_of_other_runs(broker_url: str, bell: Bell) -> None:
    with listening(broker_url, RUN) as ear, listening(broker_url, OTHER) as other:
        bell.ring(OTHER)
        assert has_heard(other)

        began = time.monotonic()
        ear.wait(0.1)
        assert time.monotonic() - began >= 0.1


def test_closing_the_bell_rings_what_is_left(broker_url: str) -> None:
    with listening(broker_url, RUN) as ear:
        bell = Bell(broker_url)
        bell.ring(RUN)
        bell.close()

        assert has_heard(ear)


@pytest.mark.parametrize("broker_url", [NOBODY_LISTENS, "amqp://127.0.0.1:1//", None])
def test_without_a_redis_an_ear_only_waits(broker_url: str | None) -> None:
    with listening(broker_url, RUN) as ear:
        began = time.monotonic()
        ear.wait(0.1)
        assert time.monotonic() - began >= 0.1


def test_a_bell_without_a_redis_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bell = Bell(NOBODY_LISTENS)

    bell.ring(RUN)
    bell.close()

    assert caplog.text == ""


@pytest.mark.processes
def test_a_worker_wakes_the_readers_of_the_run_it_commits_for(
    processes: Processes, database: Database, broker_url: str
) -> None:
    processes.start_scheduler()
    processes.start_worker("tests.crash.agents")
    with Client(database.url) as client, listening(broker_url, RUN) as ear:
        client.start(agents.counter, "go", run_id=RUN)

        assert has_heard(ear)
