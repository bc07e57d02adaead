"""A stack whose workers share a folder of workspaces, and a project for runs to work in."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from celeriac.reports import Run
from celeriac.settings import settings
from celeriac.workspace.place import prepare
from celeriac_storage.database import Database
from tests.crash.nursery import Nursery
from tests.crash.stack import Stack, count_killed, started_processes
from tests.crash.workspace_agents import BEFORE
from tests.processes import Processes
from tests.servers import DatabaseServer, lease_broker
from tests.waiting import eventually

AGENTS = "tests.crash.workspace_agents"


@pytest.fixture(scope="module")
def shared(
    database_server: DatabaseServer, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("workspaces")
    prepare(folder / "workspaces")
    with database_server.database(migrated=True) as url, lease_broker("redis") as broker:
        database = Database(url, connections=8)
        with started_processes(database, broker, folder, nursery) as processes:
            processes.environment |= {
                "CELERIAC_WORKSPACES": str(folder / "workspaces"),
                "CELERIAC_WORKSPACE_ROOTS": str(folder.parent),
            }
            stack = Stack(database, broker, processes)
            stack.start_scheduler()
            yield stack
            stack.client.close()
        database.close()


@pytest.fixture(autouse=True)
def processes(shared: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """The shared processes, without the workers of the case before."""
    monkeypatch.setenv("CELERIAC_WORKSPACES", shared.processes.environment["CELERIAC_WORKSPACES"])
    settings.cache_clear()
    yield shared.processes
    for worker in shared.processes.started[1:]:
        worker.kill_group()
    del shared.processes.started[1:]
    shared.processes.rearm()
    settings.cache_clear()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, content in BEFORE.items():
        (tmp_path / name).write_bytes(content.encode())
    return tmp_path


def go_through(shared: Stack, agent: str, project: Path, places: Sequence[str]) -> Run:
    """Let a run work in the project while a worker dies at each of the places."""
    points = ",".join(f"{place}=kill" for place in places)
    workers = shared.processes.start_workers(len(places) + 1, AGENTS, test_points=points)
    run = shared.wait(shared.start(agent, {"folder": str(project)}))
    eventually(
        lambda: count_killed(workers), until=lambda n: n == len(places), what="the deaths asked for"
    )
    assert all(shared.processes.reached(place) for place in places)
    return run
