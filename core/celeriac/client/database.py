"""Answers what a client asks for from the database itself, as one tenant sees it."""

from collections.abc import Callable, Iterator

from sqlalchemy import Connection

from celeriac.client.ask import Answer, Ask
from celeriac.client.first_step import FirstStep
from celeriac.client.operation import Operation, perform
from celeriac.client.vigil import Vigil
from celeriac.client.watching import Watching
from celeriac.ids import RunId, TenantId
from celeriac.reports import Event, Run
from celeriac.secrets import redact_url
from celeriac.settings import load_settings
from celeriac_storage.database import Database
from celeriac_storage.ownership import require_tenant
from celeriac_storage.schema import check_schema
from celeriac_tasks.bell import Bell


class DatabaseDesk:
    """One database. Thread-safe; connects at first use."""

    def __init__(self, database_url: str, broker_url: str | None, tenant_id: TenantId) -> None:
        self.address = redact_url(database_url)
        self.tenant_id = tenant_id
        settings = load_settings(database_url=database_url, broker_url=broker_url)
        self.embedder = settings.embedder
        self.first_step = FirstStep(settings) if broker_url is not None else None
        self._bell = Bell.of_broker(broker_url)
        self._database = Database(
            database_url,
            application_name=lambda: "celeriac-client",
            pre_ping=True,
            tell=None if self._bell is None else self._bell.ring,
        )
        self._is_schema_checked = False
        self._watching = Watching(self.ready, broker_url, tenant_id)

    def close(self) -> None:
        if self.first_step is not None:
            self.first_step.close()
        if self._bell is not None:
            self._bell.close()
        self._database.close()

    def answer(self, ask: Ask[Answer]) -> Answer:
        return ask.in_database(self)

    def perform(self, operation: Operation[Answer], of_run: RunId | None = None) -> Answer:
        """Do it in one transaction, unless the run is not this tenant's: raises `UnknownRun`."""
        return perform(self.ready(), operation, lambda connection: self._check(connection, of_run))

    def read(self, read: Callable[[Connection], Answer], of_run: RunId | None = None) -> Answer:
        """What `read` finds, each of its statements being a transaction of its own. Raises
        `UnknownRun` for another tenant's run."""
        with self.ready().connect() as connection:
            self._check(connection, of_run)
            return read(connection)

    def look(self, read: Callable[[Connection], Answer], *of_runs: RunId) -> Answer:
        """What `read` finds in one transaction, which it may make a snapshot. Raises `UnknownRun`
        for another tenant's run."""
        database = self.ready()
        with database.connect() as connection:
            for run_id in of_runs:
                self._check(connection, run_id)
        with database.begin() as connection:
            return read(connection)

    def run(self, run_id: RunId) -> Run:
        self._watching.check(run_id)
        return self._watching.run(run_id)

    def events(self, run_id: RunId, after: int, *, follow: bool) -> Iterator[Event]:
        self._watching.check(run_id)
        return self._watching.events(run_id, after, follow=follow)

    def watch(self, vigil: Vigil) -> Iterator[Run]:
        """The run at each moment that `vigil` wants to see. Raises `TimeoutError`."""
        run_id = vigil.run_id
        self._watching.check(run_id)
        for _ in self._watching.positions(
            run_id, timeout_seconds=vigil.timeout_seconds, until_ended=vigil.until_ended
        ):
            if vigil.sees_each:
                yield self._watching.run(run_id)
        if not vigil.sees_each:
            yield self._watching.run(run_id)

    def ready(self) -> Database:
        """The database, whose schema is known to be right. Raises `SchemaMismatch`."""
        if not self._is_schema_checked:
            check_schema(self._database)
            self._is_schema_checked = True
        return self._database

    def _check(self, connection: Connection, of_run: RunId | None) -> None:
        if of_run is not None:
            require_tenant(connection, self.tenant_id, of_run)
