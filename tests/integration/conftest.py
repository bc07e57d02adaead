"""The command line, asked in this process about the test's database."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app

Cli = Callable[..., Result]


@pytest.fixture
def cli(database_url: str) -> Cli:
    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, ["--database-url", database_url, *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
