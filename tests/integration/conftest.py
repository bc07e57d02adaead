"""The command line, asked in this process about the test's database; agents that are retold."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac_storage.database import Database
from tests.retold import Retold

Cli = Callable[..., Result]


@pytest.fixture
def cli(database_url: str) -> Cli:
    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["--database-url", database_url, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def retold(database: Database, broker_url: str) -> Iterator[Retold]:
    retold = Retold(database, broker_url)
    yield retold
    retold.close()


@pytest.fixture
def made(database: Database, broker_url: str) -> Iterator[Callable[..., Retold]]:
    """Other agents of the name."""
    with ExitStack() as stack:

        def make(**more: Any) -> Retold:
            retold = Retold(database, broker_url, **more)
            stack.callback(retold.close)
            return retold

        yield make
