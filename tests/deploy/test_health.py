"""`celeriac health`: what it takes for alive. That it notices the dead is in test_services.py."""

import socket

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.health import _scheduler
from celeriac.cli.main import app
from celeriac.errors import CeleriacError
from celeriac.ids import WorkerId, new_worker_id
from celeriac.settings import load_settings
from celeriac_storage import verdicts, workers
from celeriac_storage.database import Database
from celeriac_storage.workers import WorkerInfo

HERE = socket.gethostname()


def register(database: Database, hostname: str, *, lease_seconds: float = 60) -> WorkerId:
    worker = WorkerInfo(new_worker_id(), hostname, 1, "threads", ["desk"], ["celeriac"])
    with database.begin() as connection:
        workers.register(connection, worker, lease_seconds=lease_seconds, has_lifeline=False)
    return worker.worker_id


def health(database_url: str, service: str) -> Result:
    return CliRunner().invoke(app, ["--database-url", database_url, "health", service])


def test_a_worker_of_this_host_is_alive_while_its_lease_runs(database: Database) -> None:
    worker_id = register(database, HERE)

    found = health(database.url, "worker")

    assert found.exit_code == 0
    assert worker_id in found.stdout


def test_a_worker_of_another_host_is_none_of_this_one(database: Database) -> None:
    register(database, f"not-{HERE}")

    found = health(database.url, "worker")

    assert found.exit_code == 1
    assert f"no worker is alive on {HERE}" in found.stderr


def test_a_worker_that_is_silent_stopped_or_declared_dead_is_not_alive(database: Database) -> None:
    register(database, HERE, lease_seconds=-1)
    stopped, dead = register(database, HERE), register(database, HERE)
    with database.begin() as connection:
        workers.stop(connection, stopped)
        verdicts.declare_dead(connection, dead, "lease")

    assert health(database.url, "worker").exit_code == 1


def test_an_empty_database_has_no_worker_and_the_error_is_one_line(empty_database_url: str) -> None:
    found = health(empty_database_url, "worker")

    assert found.exit_code == 1
    assert "`celeriac migrate` makes the tables" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("service", ["worker", "scheduler"])
def test_nothing_is_healthy_while_the_database_is_away(service: str) -> None:
    found = health("postgresql://shop:hunter2secret@127.0.0.1:1/shop", service)

    assert found.exit_code == 1
    assert "cannot be used" in found.stderr
    assert "hunter2secret" not in found.stderr


def test_a_scheduler_that_leads_elsewhere_does_not_make_this_host_healthy(
    database: Database,
) -> None:
    with database.connect() as connection:
        verdicts.lead(connection, "scheduler", "elsewhere", seconds=60)

    found = health(database.url, "scheduler")

    assert found.exit_code == 1
    assert "no scheduler is connected" in found.stderr


def test_behind_a_pooler_any_leading_scheduler_will_do(database: Database) -> None:
    database.is_pooled = True  # as it is found to be at the first connection
    settings = load_settings()

    with pytest.raises(CeleriacError, match="no scheduler leads"):
        _scheduler(database, settings)
    with database.connect() as connection:
        verdicts.lead(connection, "scheduler", "somewhere", seconds=60)

    assert _scheduler(database, settings).startswith("a scheduler leads")
