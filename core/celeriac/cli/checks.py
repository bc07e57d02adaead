"""What `celeriac doctor` checks, one function for each thing that must be there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from celeriac.agent import Agent
from celeriac.errors import CeleriacError
from celeriac.registry import load_agents
from celeriac.secrets import redact_url
from celeriac.settings import Settings
from celeriac.workspace.shadow import git_program, git_version
from celeriac_storage.database import Database
from celeriac_storage.health import read_crew, read_server, read_vectors
from celeriac_storage.schema import check_schema, head
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.loaded_agent import load_agent
from celeriac_tasks.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import SecretStr

MOST_CLOCK_SKEW_SECONDS = 2.0
"""Only people who compare logs are misled by more: every decision is by the database's clock."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    check: str
    state: Literal["ok", "warn", "fail"]
    detail: str


def check_all(settings: Settings) -> list[Check]:
    """Every finding, in the order in which they have to be mended."""
    agents = list(_agents(settings))
    loaded = [
        check.check.removeprefix("agent ")
        for check in agents
        if check.state == "ok" and check.check.startswith("agent ")
    ]
    return [*_database(settings, loaded), *_broker(settings), *agents]


def _database(settings: Settings, agents: "Collection[str]") -> Iterator[Check]:
    if settings.database_url is None:
        yield Check("database", "fail", "none named: CELERIAC_DATABASE_URL or --database-url")
        return
    with _opened(settings.database_url) as database:
        try:
            with database.connect() as connection:
                server = read_server(connection)
        except CeleriacError as error:
            yield Check("database", "fail", str(error))
            return
        address = redact_url(database.url)
        yield Check("database", "ok", f"PostgreSQL {server.version} at {address}")
        yield _clock(server.at)
        yield _sessions(settings, is_pooled=database.is_pooled)
        try:
            check_schema(database)
        except CeleriacError as error:
            yield Check("schema", "fail", str(error))
            return
        yield Check("schema", "ok", f"at revision {head()}")
        yield from _crew(database, agents)
        yield from _vectors(database)


def _clock(database_time: datetime) -> Check:
    skew = (datetime.now(UTC) - database_time).total_seconds()
    if abs(skew) <= MOST_CLOCK_SKEW_SECONDS:
        return Check("clock", "ok", f"{skew:+.3f} s to the database's")
    return Check(
        "clock",
        "warn",
        f"this machine's clock is {skew:+.1f} s off the database's, which is the one that counts; "
        "times in logs and tables will not match",
    )


def _sessions(settings: Settings, *, is_pooled: bool) -> Check:
    """Whether lifelines hold: they are advisory locks of sessions that must be the worker's own."""
    direct = settings.database_direct_url
    if direct is None:
        if not is_pooled:
            return Check("lifelines", "ok", "no connection pooler in between")
        return Check(
            "lifelines",
            "fail",
            "the database is reached through a connection pooler, where advisory locks do not "
            "hold: set CELERIAC_DATABASE_DIRECT_URL to the server itself",
        )
    with _opened(direct) as database:
        try:
            with database.connect() as connection:
                read_server(connection)
        except CeleriacError as error:
            return Check("lifelines", "fail", f"CELERIAC_DATABASE_DIRECT_URL: {error}")
        if database.is_pooled:
            return Check(
                "lifelines",
                "fail",
                "CELERIAC_DATABASE_DIRECT_URL leads to a connection pooler as well: it must name "
                "the server itself",
            )
    return Check("lifelines", "ok", "past the pooler, by CELERIAC_DATABASE_DIRECT_URL")


def _crew(database: Database, agents: "Collection[str]") -> Iterator[Check]:
    with database.connect() as connection:
        crew = read_crew(connection)
    if crew.live_workers:
        yield Check("workers", "ok", f"{crew.live_workers} alive, with {', '.join(crew.agents)}")
    else:
        yield Check("workers", "warn", "none is alive: start one with `celeriac worker`")
    for agent in agents:
        if crew.live_workers and agent not in crew.agents:
            yield Check("workers", "warn", f"no live worker has agent {agent}")
    if crew.has_scheduler:
        yield Check("scheduler", "ok", "one leads")
    else:
        yield Check("scheduler", "warn", "none leads: start one with `celeriac scheduler`")


def _vectors(database: Database) -> Iterator[Check]:
    with database.connect() as connection:
        vectors = read_vectors(connection)
    if not vectors.are_kept:
        return
    if vectors.pgvector is not None:
        yield Check("memory vectors", "ok", f"compared by pgvector {vectors.pgvector}")
        return
    yield Check(
        "memory vectors",
        "warn",
        "compared one by one in SQL, which takes several times as long as with pgvector: where "
        "the server has it, a superuser says CREATE EXTENSION vector in this database",
    )


def _broker(settings: Settings) -> Iterator[Check]:
    if settings.broker_url is None:
        yield Check("broker", "fail", "none named: CELERIAC_BROKER_URL or --broker-url")
        return
    try:
        app = make_app(settings)
    except CeleriacError as error:
        yield Check("broker", "fail", str(error))
        return
    try:
        Publisher(app).warm()
        policy = Broker(app).eviction_policy()
    except CeleriacError as error:
        yield Check("broker", "fail", str(error))
        return
    finally:
        app.close()
    yield Check("broker", "ok", redact_url(settings.broker_url.get_secret_value()))
    if policy == "noeviction":
        yield Check("broker memory", "ok", "noeviction")
    elif policy is not None:
        yield Check(
            "broker memory",
            "fail",
            f"Redis may throw messages away when its memory is full (maxmemory-policy {policy}): "
            "set it to noeviction",
        )


def _agents(settings: Settings) -> Iterator[Check]:
    if not settings.agent_modules:
        yield Check("agents", "warn", "no modules named: CELERIAC_AGENTS or --agents")
        return
    try:
        agents = load_agents(settings.agent_modules)
    except CeleriacError as error:
        yield Check("agents", "fail", str(error))
        return
    if any(_works_on_files(agent) for agent in agents.values()):
        yield _git()
    for name, agent in agents.items():
        try:
            loaded = load_agent(agent)
        except CeleriacError as error:
            yield Check(f"agent {name}", "fail", str(error))
        else:
            tools = len(loaded.tools)
            model = loaded.model.model_name
            yield Check(
                f"agent {name}", "ok", f"model {model}, {tools} tool{'' if tools == 1 else 's'}"
            )


def _works_on_files(agent: Agent) -> bool:
    flags = [tool.flags for tool in agent.tools]
    return any(each.mutates_workspace and not each.elsewhere for each in flags)


def _git() -> Check:
    """It keeps the snapshots of workspaces; this must be run where a worker runs."""
    try:
        program = git_program()
    except CeleriacError as error:
        return Check("git", "fail", str(error))
    return Check("git", "ok", f"{git_version(program)} at {program}")


@contextmanager
def _opened(url: "SecretStr") -> Iterator[Database]:
    database = Database(url.get_secret_value(), connections=1)
    try:
        yield database
    finally:
        database.close()
