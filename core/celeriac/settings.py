"""Settings from the environment, with units in their names. `celeriac doctor` lists them all."""

from functools import cache
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from celeriac.errors import InvalidInput
from celeriac.loopback import is_loopback
from celeriac.reasons import reason
from celeriac.states import RunStatus

ASYMMETRIC_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
Pool = Literal["threads", "prefork", "solo"]


class Settings(BaseSettings):
    """All of `CELERIAC_*`. Frozen; read once per process by `settings()`."""

    model_config = SettingsConfigDict(
        env_prefix="CELERIAC_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    url: str | None = Field(
        default=None,
        description="the HTTP API that commands use instead of a database, as https://host:port",
    )
    token: SecretStr | None = Field(
        default=None, description="the bearer token for it, as `celeriac token create` prints it"
    )
    tenant: str = Field(
        default="default", description="whose runs commands see that use a database"
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL 15 or later, as postgresql://user:password@host:port/name",
    )
    database_direct_url: SecretStr | None = Field(
        default=None,
        description="the same database past a connection pooler, for the lifelines: advisory locks "
        "do not survive a pooler in transaction mode",
    )
    broker_url: SecretStr | None = Field(
        default=None, description="redis://host:port/number or amqp://user:password@host:port/vhost"
    )
    data: str = Field(
        default=".celeriac",
        description="folder of the stack that `celeriac up` runs, where commands find it",
    )
    agents: str = Field(
        default="", description="modules or .py files that hold agents, comma-separated"
    )
    embedder: str | None = Field(
        default=None,
        pattern=r"^[^:]+:[^\W\d]\w*$",
        description="by whose vectors the API and commands search memories: that of the agents, as "
        "celeriac.memory:StaticEmbedder; without it by words alone",
    )
    queues: str = Field(default="celeriac", description="queues a worker serves, comma-separated")

    workspaces: str = Field(
        default="",
        description="folder that holds the workspaces of runs and what is kept about them, shared "
        "by all workers; without it, `workspaces` in the data folder",
    )
    workspace_roots: str = Field(
        default="",
        description="folders inside which a run's input may name its workspace, comma-separated",
    )

    pool: Pool = Field(default="threads", description="how a worker runs many steps at once")
    slots: int = Field(
        default=64, ge=1, le=4096, description="steps a worker holds at once, most of them waiting"
    )
    active_steps: int = Field(
        default=4,
        ge=1,
        le=64,
        description="steps that claim, load and commit at once; more only fight for the "
        "interpreter lock (8 were slower than 4)",
    )
    connections: int = Field(
        default=12, ge=2, le=256, description="database connections of one worker process at most"
    )
    steps_per_task: int | Literal["auto"] = Field(
        default=1,
        description="steps that one task may take in a row, each fully committed; auto: as long as "
        "nothing else waits",
    )
    task_events: bool = Field(
        default=True, description="send Celery's task events, which Flower shows; costs throughput"
    )
    flower_auth: SecretStr | None = Field(
        default=None,
        description="who may see Flower, as USER:PASSWORD; needed unless it listens on loopback",
    )

    flower_url: str | None = Field(
        default=None, description="where browsers find Flower, to which the console then links"
    )

    lease_seconds: float = Field(
        default=10.0,
        ge=1.0,
        le=3600.0,
        description="how long a silent worker is believed to be alive",
    )
    tick_seconds: float = Field(
        default=0.05,
        ge=0.01,
        le=5.0,
        description="how often the scheduler looks for missing lifelines",
    )
    leadership_seconds: float = Field(
        default=2.0, ge=0.5, le=60.0, description="one scheduler's term"
    )
    redispatch_seconds: float = Field(
        default=1.0,
        ge=0.1,
        le=600.0,
        description="first wait before a step is published again; doubles",
    )
    redispatch_cap_seconds: float = Field(
        default=60.0,
        ge=0.1,
        le=86400.0,
        description="longest wait before a step is published again",
    )
    retention_days: float | None = Field(
        default=None,
        gt=0.0,  # 0 reads like off
        lt=36500.0,
        description="the scheduler prunes runs that ended longer ago; off unless set",
    )
    retention_statuses: str = Field(
        default="completed,failed,cancelled",
        description="runs of which endings the scheduler prunes, comma-separated",
    )
    retention_database_url: SecretStr | None = Field(
        default=None,
        description="the same database, by a login that may prune and erase: for schedulers, and "
        "for an API that is to erase users; else CELERIAC_DATABASE_URL",
    )
    api_max_body_bytes: int = Field(
        default=1024 * 1024, ge=1024, description="largest body of a request to the API"
    )
    api_requests_per_second: float = Field(
        default=50.0,
        gt=0.0,
        le=1_000_000.0,
        description="requests of one user to the API, all of its processes together",
    )
    api_burst_requests: int = Field(
        default=200, ge=1, le=1_000_000, description="of those, how many at once"
    )
    api_cors_origins: str = Field(
        default="",
        description="web pages of other origins that may use the API, comma-separated, as "
        "https://shop.example; none by default",
    )
    jwt_jwks_url: str | None = Field(
        default=None, description="where the keys of another issuer of tokens are, a JWK set"
    )
    jwt_jwks_file: str | None = Field(default=None, description="the same as a file")
    jwt_issuer: str | None = Field(default=None, description="the issuer (`iss`) of its tokens")
    jwt_audience: str | None = Field(default=None, description="us, as its tokens name us (`aud`)")
    jwt_algorithms: str = Field(
        default="RS256,ES256",
        description="how its tokens may be signed, comma-separated; never by a shared secret",
    )
    jwt_leeway_seconds: float = Field(
        default=30.0, ge=0.0, le=600.0, description="how far the issuer's clock may be off"
    )
    jwt_tenant_claim: str = Field(default="tenant", description="the claim that names the tenant")
    jwt_roles_claim: str = Field(
        default="roles", description="the claim that lists roles: user, operator, admin"
    )
    jwt_default_tenant: str = Field(
        default="default", description="the tenant of a token without that claim"
    )

    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="where a worker or a scheduler serves /metrics; the API does at its own port",
    )
    metrics_address: str = Field(
        default="127.0.0.1", description="the address of that; beyond loopback it needs the token"
    )
    metrics_token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="who may read /metrics from elsewhere, as a bearer token; without it this "
        "machine alone",
    )

    grace_seconds: float = Field(
        default=20.0,
        ge=0.0,
        le=3600.0,
        description="after SIGTERM: how long steps in flight may finish before they are handed "
        "back",
    )

    @field_validator("url")
    @classmethod
    def _is_service(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith(("https://", "http://")) or "@" in value):
            raise ValueError("must begin with https:// or http://, and hold no login")
        return value

    @field_validator("database_url", "database_direct_url", "retention_database_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        return _with_scheme(value, ("postgresql", "postgres", "postgresql+psycopg"))

    @field_validator("broker_url")
    @classmethod
    def _is_broker(cls, value: SecretStr | None) -> SecretStr | None:
        return _with_scheme(value, ("redis", "rediss", "amqp", "amqps", "pyamqp"))

    @field_validator("flower_auth")
    @classmethod
    def _is_user_and_password(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            secret = value.get_secret_value()
            if not all(secret.partition(":")) or not secret.isascii():
                raise ValueError("must be USER:PASSWORD in ASCII")
        return value

    @field_validator("queues")
    @classmethod
    def _has_a_queue(cls, value: str) -> str:
        if not _names(value):
            raise ValueError("must name at least one queue")
        return value

    @field_validator("retention_statuses")
    @classmethod
    def _are_endings(cls, value: str) -> str:
        names = _names(value)
        endings = {status.value for status in RunStatus if status.is_terminal}
        if not names or not set(names) <= endings:
            raise ValueError(f"must be some of {', '.join(sorted(endings))}")
        return value

    @field_validator("steps_per_task")
    @classmethod
    def _is_positive(cls, value: int | Literal["auto"]) -> int | Literal["auto"]:
        if value != "auto" and value < 1:
            raise ValueError("must be 1 or more, or auto")
        return value

    @field_validator("jwt_jwks_url", "flower_url")
    @classmethod
    def _is_web_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError("must begin with https:// or http://")
        return value

    @field_validator("jwt_algorithms")
    @classmethod
    def _are_asymmetric(cls, value: str) -> str:
        names = _names(value)
        if not names or not set(names) <= ASYMMETRIC_ALGORITHMS:
            raise ValueError(f"must be some of {', '.join(sorted(ASYMMETRIC_ALGORITHMS))}")
        return value

    @model_validator(mode="after")
    def _issuer_is_complete(self) -> "Settings":
        sources = [self.jwt_jwks_url, self.jwt_jwks_file]
        if all(sources):
            raise ValueError("jwt_jwks_url and jwt_jwks_file: name one of them")
        if any(sources) != bool(self.jwt_issuer) or any(sources) != bool(self.jwt_audience):
            raise ValueError(
                "jwt_jwks_url or jwt_jwks_file, jwt_issuer and jwt_audience go together, "
                "or anybody's token would do"
            )
        return self

    @model_validator(mode="after")
    def _tick_is_shorter_than_lease(self) -> "Settings":
        if self.tick_seconds * 4 > self.lease_seconds:
            raise ValueError(
                f"tick_seconds ({self.tick_seconds}) must be at most a quarter of lease_seconds "
                f"({self.lease_seconds}): a death is believed after two ticks"
            )
        return self

    @model_validator(mode="after")
    def _figures_are_not_for_everybody(self) -> "Settings":
        is_open = self.metrics_port is not None and self.metrics_token is None
        if is_open and not is_loopback(self.metrics_address):
            raise ValueError(
                f"metrics_address {self.metrics_address} is reached from elsewhere: set "
                "metrics_token as well, or listen at 127.0.0.1"
            )
        return self

    @property
    def agent_modules(self) -> list[str]:
        return _names(self.agents)

    @property
    def workspace_root_folders(self) -> list[str]:
        return _names(self.workspace_roots)

    @property
    def cors_origins(self) -> list[str]:
        return _names(self.api_cors_origins)

    @property
    def jwt_algorithm_names(self) -> list[str]:
        return _names(self.jwt_algorithms)

    @property
    def retention_status_names(self) -> list[str]:
        return _names(self.retention_statuses)

    @property
    def queue_names(self) -> list[str]:
        return _names(self.queues)


@cache
def settings() -> Settings:
    """This process's settings from the environment alone, read once. Raises `InvalidInput`."""
    return load_settings()


def load_settings(**given: object) -> Settings:
    """The settings from the environment, except those that are given; None is not given.

    Raises `InvalidInput` that names each variable that cannot be used and why.
    """
    try:
        return Settings.model_validate(
            {name: value for name, value in given.items() if value is not None}
        )
    except ValidationError as error:
        problems = "; ".join(
            f"CELERIAC_{'_'.join(str(part) for part in problem['loc']).upper()}: {reason(problem)}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise InvalidInput(f"these settings cannot be used: {problems}") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _with_scheme(value: SecretStr | None, schemes: tuple[str, ...]) -> SecretStr | None:
    if value is not None:
        url = value.get_secret_value()
        # The URL itself may hold a password: only what it should be is told.
        if url.partition("://")[0] not in schemes:
            raise ValueError(f"must begin with {' or '.join(f'{s}://' for s in schemes)}")
        if not _can_be_read(url):
            raise ValueError(
                "cannot be read as a URL: its port must be a number up to 65535, and a password "
                "must be percent-encoded, / as %2F, ? as %3F, # as %23, @ as %40"
            )
    return value


def _can_be_read(url: str) -> bool:
    """Whether every library that is given the URL finds the same parts in it.

    A raw / or # in a password ends it for one parser and not for the next. What stands behind is
    then taken for the path, and shown.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    behind = parts.path + parts.query
    return url.isprintable() and " " not in url and "#" not in url and "@" not in behind
