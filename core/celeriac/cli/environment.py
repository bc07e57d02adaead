"""Where a command finds the servers and the agents: the global options, else the environment."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from celeriac.cli.group import WrongUsage
from celeriac.errors import InvalidInput

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.settings import Settings


@dataclass(frozen=True, slots=True)
class Environment:
    """What the global options said; None where they said nothing."""

    database_url: str | None = None
    broker_url: str | None = None
    agents: str | None = None

    def settings(self, **given: object) -> "Settings":
        """All settings: `given` and the global options first, then `CELERIAC_*`.

        Raises `WrongUsage`.
        """
        from celeriac.settings import load_settings

        try:
            return load_settings(
                database_url=self.database_url,
                broker_url=self.broker_url,
                agents=self.agents,
                **given,
            )
        except InvalidInput as error:
            raise WrongUsage(str(error)) from error

    def client(self) -> "Client":
        """A client of the configured servers; the broker is optional."""
        from celeriac.client import Client

        settings = self.settings()
        broker = settings.broker_url
        return Client(database_url(settings), broker.get_secret_value() if broker else None)


def environment(context: typer.Context) -> Environment:
    found = context.find_object(Environment)
    assert found is not None, "the application's callback has made it"
    return found


def database_url(settings: "Settings") -> str:
    """The database's URL. Raises `WrongUsage` if none was given."""
    if settings.database_url is None:
        raise WrongUsage(
            "no database was named: set CELERIAC_DATABASE_URL or give --database-url, for example "
            "postgresql://user:password@host:5432/name"
        )
    return settings.database_url.get_secret_value()


def require_servers(settings: "Settings") -> None:
    """Raise `WrongUsage` unless both a database and a broker were named."""
    database_url(settings)
    if settings.broker_url is None:
        raise WrongUsage(
            "no broker was named: set CELERIAC_BROKER_URL or give --broker-url, for example "
            "redis://host:6379/0 or amqp://user:password@host:5672//"
        )
