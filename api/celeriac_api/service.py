"""What all requests of one API process share: its connections, and what is known of them."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client.first_step import FirstStep
from celeriac.errors import InvalidInput
from celeriac.ids import TenantId
from celeriac.settings import Settings
from celeriac_api.limits import RateLimit
from celeriac_api.strangers import Strangers
from celeriac_api.streaming.hub import LOOKS_AT_ONCE
from celeriac_storage.database import Database
from celeriac_storage.schema import check_schema
from celeriac_storage.tenancy import TenantDatabase, may_restrict
from celeriac_tasks.bell import Bell

if TYPE_CHECKING:
    from celeriac_api.jwt_tokens import Issuer

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MILLISECONDS = 5000
"""A request waits so long for a row that a step holds, and is then told to come again."""


class Service:
    """Made once a process. Connects at first use; close it."""

    def __init__(self, settings: Settings) -> None:
        """Raises `InvalidInput` if the settings name no database, or keys that cannot be used."""
        if settings.database_url is None:
            raise InvalidInput("the API needs a database: set CELERIAC_DATABASE_URL")
        self.settings = settings
        broker_url = settings.broker_url.get_secret_value() if settings.broker_url else None
        self._bell = Bell.of_broker(broker_url)
        self.database = Database(
            settings.database_url.get_secret_value(),
            application_name=lambda: "celeriac-api",
            connections=settings.connections,
            lock_timeout_milliseconds=LOCK_TIMEOUT_MILLISECONDS,
            pre_ping=True,
            tell=None if self._bell is None else self._bell.ring,
        )
        # Readers are told of what has committed even if all the others are in use. One that was
        # lost is noticed by the look that fails, which is repeated: none pays for asking first.
        self._lookout = Database(
            self.database.url,
            application_name=lambda: "celeriac-api",
            connections=LOOKS_AT_ONCE,
        )
        self.first_step = FirstStep(settings) if broker_url is not None else None
        self.rate_limit = RateLimit(
            settings.api_requests_per_second, settings.api_burst_requests, broker_url
        )
        self.strangers = Strangers(self.begin, broker_url)
        self.issuer = _issuer(settings)
        # Each has a thread while it waits for an embedder, of which there are as many as
        # connections. Were all of them taken, nobody would be answered anything.
        self.searches_by_meaning = threading.BoundedSemaphore(max(1, settings.connections // 2))
        keeper_url = settings.retention_database_url
        self._keeper = (
            None
            if keeper_url is None
            else Database(
                keeper_url.get_secret_value(),
                application_name=lambda: "celeriac-api-retention",
                connections=1,
                lock_timeout_milliseconds=LOCK_TIMEOUT_MILLISECONDS,
                pre_ping=True,
                tell=None if self._bell is None else self._bell.ring,
            )
        )
        self._is_restricted: bool | None = None  # unknown until the schema was found right

    def close(self) -> None:
        if self.first_step is not None:
            self.first_step.close()
        self.rate_limit.close()
        self.strangers.close()
        if self._bell is not None:
            self._bell.close()
        self._lookout.close()
        if self._keeper is not None:
            self._keeper.close()
        self.database.close()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction on the login itself, for what belongs to no tenant."""
        with self.ready().begin() as connection:
            yield connection

    def tenant(self, tenant_id: TenantId, owners: Sequence[str] = ()) -> TenantDatabase:
        """The database as this tenant sees it, with what is remembered of these users."""
        return self._seen_by(self.ready(), [tenant_id], owners)

    def lookout(self, tenant_ids: Sequence[TenantId]) -> TenantDatabase:
        """The database as all of these together see it, for looks at what is new."""
        self.ready()
        return self._seen_by(self._lookout, tenant_ids)

    def keeper(self) -> Database:
        """The database by the login that erases, if there is one of its own for that."""
        ready = self.ready()
        return ready if self._keeper is None else self._keeper

    def ready(self) -> Database:
        """The database, with its schema as this code needs it. Raises `DatabaseUnavailable` or
        `SchemaMismatch`."""
        if self._is_restricted is None:
            check_schema(self.database)
            with self.database.connect() as connection:
                self._is_restricted = may_restrict(connection)
            if not self._is_restricted:
                logger.warning(
                    "this login cannot take the role celeriac_api, so no row-level security keeps "
                    "tenants apart, only the statements themselves: make it a member of that role"
                )
        return self.database

    def _seen_by(
        self, database: Database, tenant_ids: Sequence[TenantId], owners: Sequence[str] = ()
    ) -> TenantDatabase:
        assert self._is_restricted is not None
        return TenantDatabase(
            database, tenant_ids, owners=owners, is_restricted=self._is_restricted
        )


def _issuer(settings: Settings) -> "Issuer | None":
    if settings.jwt_jwks_url is None and settings.jwt_jwks_file is None:
        return None
    # Only here: most have no such issuer, and start sooner without PyJWT and cryptography.
    from celeriac_api.jwt_tokens import Issuer

    return Issuer.of_settings(settings)
