"""Whoever reads a run is told after each commit that adds to its history, and after no other."""

import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

import pytest
from sqlalchemy import Connection

import celeriac_storage
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac_storage import run_events
from celeriac_storage.database import Database
from tests.crash.agents import counter


class Told:
    """The runs that were told of, and how many events each had then for everybody to see."""

    def __init__(self, others: Database) -> None:
        self.runs: list[tuple[RunId, int]] = []
        self._others = others

    def __call__(self, run_id: RunId) -> None:
        with self._others.connect() as connection:
            count = connection.exec_driver_sql(
                "SELECT count(*) FROM celeriac.events WHERE run_id = %s", (run_id,)
            ).scalar_one()
        self.runs.append((run_id, count))


@pytest.fixture
def told(database: Database) -> Told:
    return Told(database)


@pytest.fixture
def telling(database: Database, told: Told) -> Iterator[Database]:
    telling = Database(database.url, connections=1, tell=told)
    yield telling
    telling.close()


@pytest.fixture
def run_id(database: Database) -> RunId:
    with Client(database.url) as client:
        return RunId(client.start(counter, "go").run_id)


def say(connection: Connection, run_id: RunId) -> None:
    run_events.append(connection, run_id, [("run.said", {"by": "alice"})], is_request=False)


def test_a_run_is_told_of_once_and_after_the_commit(
    telling: Database, told: Told, run_id: RunId
) -> None:
    with telling.begin() as connection:
        say(connection, run_id)
        say(connection, run_id)
        assert told.runs == []

    assert told.runs == [(run_id, 4)]


def test_nothing_is_told_of_what_was_rolled_back_then_or_later(
    telling: Database, told: Told, run_id: RunId
) -> None:
    with suppress(RuntimeError), telling.begin() as connection:
        say(connection, run_id)
        raise RuntimeError("rolled back")
    with telling.begin() as connection:
        connection.exec_driver_sql("SELECT 1")

    assert told.runs == []


def test_a_block_that_closes_its_connection_takes_no_news_from_its_next_user(
    database: Database, told: Told, run_id: RunId
) -> None:
    telling = Database(database.url, connections=1, tell=told)
    with telling.connect() as closed:
        closed.close()
        with telling.connect() as connection:
            say(connection, run_id)
    telling.close()

    assert told.runs == [(run_id, 3)]


def test_whoever_writes_an_event_says_so() -> None:
    """A statement that forgot it would leave readers to their poll, which no other test sees."""
    told_otherwise = {
        "starting",  # nobody reads a run that is not there yet
        "entries",  # the same, of activities
        "step_statement",  # the step wakes readers itself
    }
    silent = set()
    for module in pkgutil.iter_modules(celeriac_storage.__path__):
        if module.ispkg:
            continue
        source = inspect.getsource(import_module(f"celeriac_storage.{module.name}"))
        if source.count("INSERT INTO celeriac.events") > source.count("news.add("):
            silent.add(module.name)

    assert silent == told_otherwise
