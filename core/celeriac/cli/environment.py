"""Where a command finds the servers and the agents.

The global options say it, else the environment, else the stack that runs in the data folder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from celeriac.cli.group import WrongUsage
from celeriac.errors import InvalidInput
from celeriac.stack.description import DESCRIPTION, is_running, read_description

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.settings import Settings
    from celeriac_storage.database import Database


@dataclass(frozen=True, slots=True)
class Environment:
    """What the global options said; None where they said nothing."""

    url: str | None = None
    tenant: str | None = None
    database_url: str | None = None
    broker_url: str | None = None
    data: str | None = None
    agents: str | None = None

    def settings(self, **given: object) -> "Settings":
        """All settings: `given` and the global options first, then `CELERIAC_*`, then the servers
        of the stack that runs in the data folder.

        For what is done in the database, or by servers. Raises `WrongUsage`, also if the options
        name the HTTP API, and `StackFailed` if the stack's description cannot be read.
        """
        if self.url is not None:
            raise WrongUsage(
                "this command works on the database itself, and cannot be given to the HTTP API: "
                "leave --url out, and name the database with --database-url or "
                "CELERIAC_DATABASE_URL"
            )
        return _with_servers_of_stack(self.named_settings(**given))

    def named_settings(self, **given: object) -> "Settings":
        """The same without the stack's servers. Raises `WrongUsage`."""
        from celeriac.settings import load_settings

        try:
            return load_settings(
                url=self.url,
                tenant=self.tenant,
                database_url=self.database_url,
                broker_url=self.broker_url,
                data=self.data,
                agents=self.agents,
                **given,
            )
        except InvalidInput as error:
            raise WrongUsage(str(error)) from error

    def client(self) -> "Client":
        """A client of the HTTP API if one is named, else of the servers; the broker is optional.

        What an option names goes before what the environment names.
        """
        from celeriac.client import Client

        named = self.named_settings()
        if self.url is not None and self.database_url is not None:
            raise WrongUsage("name either the HTTP API with --url, or a database, not both")
        if named.url is not None and self.database_url is None:
            return Client(url=named.url, token=self._token(named))
        settings = _with_servers_of_stack(named)
        broker = settings.broker_url
        return Client(
            database_url(settings),
            broker.get_secret_value() if broker else None,
            tenant=settings.tenant,
        )

    def _token(self, settings: "Settings") -> str:
        if self.tenant is not None:
            raise WrongUsage("--tenant: over HTTP the token says whose runs you see")
        if settings.token is None:
            raise WrongUsage(
                f"the HTTP API at {settings.url} asks who you are: set CELERIAC_TOKEN to a token "
                "that `celeriac token create` has made"
            )
        return settings.token.get_secret_value()


def environment(context: typer.Context) -> Environment:
    found = context.find_object(Environment)
    assert found is not None, "the application's callback has made it"
    return found


def database_url(settings: "Settings") -> str:
    """The database's URL. Raises `WrongUsage` if none was given."""
    if settings.database_url is None:
        if settings.url is not None:
            raise WrongUsage(
                "this command works on the database itself, and CELERIAC_URL names the HTTP API "
                "alone: set CELERIAC_DATABASE_URL or give --database-url as well"
            )
        raise WrongUsage(
            f"no database was named, and {_no_stack(settings)}: start one with `celeriac up`, or "
            "set CELERIAC_DATABASE_URL or give --database-url, for example "
            "postgresql://user:password@host:5432/name"
        )
    return settings.database_url.get_secret_value()


@contextmanager
def open_database(context: typer.Context) -> Iterator["Database"]:
    """The database, for what is no client's: it must be at the schema that this code expects."""
    from celeriac_storage.database import Database
    from celeriac_storage.schema import check_schema

    database = Database(database_url(environment(context).settings()), connections=1)
    try:
        check_schema(database)
        yield database
    finally:
        database.close()


def require_servers(settings: "Settings") -> None:
    """Raise `WrongUsage` unless both a database and a broker were named."""
    database_url(settings)
    require_broker(settings)


def require_broker(settings: "Settings") -> None:
    """Raise `WrongUsage` unless a broker was named."""
    if settings.broker_url is None:
        raise WrongUsage(
            "no broker was named: set CELERIAC_BROKER_URL or give --broker-url, for example "
            "redis://host:6379/0 or amqp://user:password@host:5672//"
        )


def _with_servers_of_stack(settings: "Settings") -> "Settings":
    """What was not named is filled in from a running stack, unless what was named is not its own:
    a message for one database must never wait in another's broker."""
    database, broker = settings.database_url, settings.broker_url
    data = Path(settings.data)
    if database and broker:
        return settings
    stack = read_description(data)
    if stack is None or not is_running(data):
        return settings
    if database and database.get_secret_value() != stack.database_url:
        return settings
    if broker and broker.get_secret_value() != stack.broker_url:
        return settings
    from pydantic import SecretStr

    return settings.model_copy(
        update={
            "database_url": SecretStr(stack.database_url),
            "broker_url": SecretStr(stack.broker_url),
            "database_direct_url": settings.database_direct_url if database else None,
        }
    )


def _no_stack(settings: "Settings") -> str:
    data = Path(settings.data).absolute()
    is_described = (data / DESCRIPTION).exists()
    if is_running(data) and is_described:
        return (
            f"the broker that was named is not that of the stack in {data}, so that its database "
            "is not used either (name both, or neither)"
        )
    if is_running(data):
        return f"the stack in {data} is not ready yet"
    if is_described:
        return f"the stack in {data} does not run any more, it was killed"
    usual = Path(str(type(settings).model_fields["data"].default))
    if is_running(data / usual):
        return f"no stack runs in {data}, but one runs in {data / usual}"
    if data == usual.absolute():
        return f"no stack runs in {data} (--data names another folder than the one you are in)"
    return f"no stack runs in {data}"
