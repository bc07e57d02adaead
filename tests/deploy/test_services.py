"""The compose file's services, each by its very command and environment, on real servers.

PostgreSQL is a cluster of the test's own with the roles of `deploy/postgres/roles.sql`; Redis is
started by the file's own command. What stands on this machine in the place of a container's address
or folder is in `installation`.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import psutil
import psycopg
import pytest
import redis

from tests.crash.servers import free_port, postgres_cluster
from tests.deploy.compose import (
    ROOT,
    Container,
    Host,
    own_hostname,
    seconds,
    services,
    variables_of,
)
from tests.deploy.roles import run_script
from tests.servers import missing
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.crash, pytest.mark.timeout(300)]

PASSWORDS = {
    "OWNER_PASSWORD": "owner9d1c",
    "APP_PASSWORD": "app52af",
    "BROKER_PASSWORD": "broker07be",
    "API_PASSWORD": "api83c6",
    "CELERIAC_FLOWER_AUTH": "operator:flower4e61",
    "METRICS_TOKEN": "metrics1f08-0123456789",
    "GRAFANA_PASSWORD": "grafana77aa",
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """All services up and healthy."""
    try:
        subprocess.run([*own_hostname("probe"), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        missing("unshare, which gives each process a host name of its own,", error)
    folder = tmp_path_factory.mktemp("app")
    shutil.copytree(ROOT / "examples", folder / "examples")  # as in the image
    file = services(variables_of(ROOT / "deploy" / "dev.env") | PASSWORDS)
    redis_port = free_port()
    with postgres_cluster() as cluster:
        host = Host(
            file,
            {
                "postgres:5432": make_database(cluster.url, file["postgres"].environment),
                "redis:6379": f"127.0.0.1:{redis_port}",
                "redis-cli": f"redis-cli -p {redis_port}",
                "dir /data": f"dir {folder}\nport {redis_port}\nbind 127.0.0.1",
                "notification-service": "127.0.0.1",
                "8025": str(free_port()),
                "9464": "0",  # here all share one address: each takes a free one
                "5555": str(free_port()),
                "8080": str(free_port()),
                "0.0.0.0": "127.0.0.1",  # noqa: S104 - it is what is replaced
                "/tmp": str(folder),  # noqa: S108
            },
            folder,
        )
        try:
            host.up("postgres", "prometheus", "grafana")
            yield host
        finally:
            host.close()


def make_database(url: str, environment: dict[str, str]) -> str:
    """Make what the PostgreSQL image makes of this environment; where it is."""
    owner, name = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {owner} SUPERUSER LOGIN")
        connection.execute(f"CREATE DATABASE {name} OWNER {owner}")
        host, port = connection.info.host, connection.info.port
    assert run_script(f"postgresql://{owner}@{host}:{port}/{name}", environment) == 0
    return f"{host}:{port}"


def celeriac(container: Container, *arguments: str) -> Any:
    """What a `celeriac` command prints as JSON, run in this container."""
    done = container.execute("celeriac", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_order_that_all_workers_died_of_goes_through_when_they_are_started_again(
    installation: Host,
) -> None:
    workers = installation.of("worker")
    for worker in workers:
        worker.signal(signal.SIGKILL)
        worker.wait(10)
    order = json.dumps({"order_id": "O-1", "sku": "A-7", "quantity": 1})
    celeriac(workers[0], "run", "order-desk", "--run-id", "first", "--input", order)

    installation.restart_ended()

    run = eventually(
        lambda: celeriac(workers[0], "show", "first"),
        until=lambda run: run["status"] in ("completed", "needs_attention"),
        what="the order served",
    )
    assert run["result"].endswith("DEDUCTED, 9 left in stock, and the customer was notified.")
    assert celeriac(workers[0], "audit") == {"ok": True, "violations": []}
    ledger = httpx2.get(installation.local("http://127.0.0.1:8025/ledger")).json()
    assert len(ledger["deliveries"]) == 1


def test_the_api_serves_whoever_has_a_token_by_a_login_that_sees_one_tenant(
    installation: Host,
) -> None:
    (migrate,) = installation.of("migrate")  # as the owner: no other login makes tokens
    made = celeriac(migrate, "token", "create", "--user", "alice", "--role", "operator")
    url = installation.local("http://127.0.0.1:8080")
    headers = {"Authorization": f"Bearer {made['token']}", "Idempotency-Key": "k"}
    order = {"order_id": "O-7", "sku": "A-7", "quantity": 1}

    started = httpx2.post(
        f"{url}/v1/runs", json={"agent": "order-desk", "input": order}, headers=headers
    )

    assert started.status_code == 201, started.text
    shown = eventually(
        lambda: httpx2.get(url + started.headers["location"], headers=headers).json(),
        until=lambda run: run["status"] in ("completed", "needs_attention"),
        what="the order served",
    )
    assert (shown["status"], shown["user_id"]) == ("completed", "alice")
    assert httpx2.get(f"{url}/v1/runs").status_code == 401


def test_the_health_check_of_a_worker_tells_that_one_from_its_neighbour(installation: Host) -> None:
    killed, other = installation.of("worker")

    killed.signal(signal.SIGKILL)

    eventually(killed.check_health, until=bool, what="the death noticed")
    assert other.check_health() == 0
    installation.restart_ended()


def test_the_health_check_of_schedulers_notices_that_they_are_frozen_or_gone(
    installation: Host,
) -> None:
    # In containers each has an address of its own; here they share one, and either is enough.
    first, second = installation.of("scheduler")
    second.signal(signal.SIGKILL)
    second.wait(10)
    assert first.check_health() == 0

    first.signal(signal.SIGSTOP)
    eventually(first.check_health, until=bool, what="the freeze noticed")
    first.signal(signal.SIGCONT)
    first.wait_until_healthy()

    first.signal(signal.SIGKILL)
    first.wait(10)
    assert first.check_health() == 1
    installation.restart_ended()


def test_every_service_of_ours_ends_within_its_grace_when_it_is_asked_to(
    installation: Host,
) -> None:
    for name in ("worker", "scheduler", "api", "flower"):
        container = installation.of(name)[0]
        container.signal(signal.SIGTERM)

        grace_seconds = seconds(container.service.raw.get("stop_grace_period", "10s"))
        assert container.wait(grace_seconds) == 0, container.output
    installation.restart_ended()


def test_no_password_is_seen_in_the_list_of_processes(installation: Host) -> None:
    commands = {
        container.name: " ".join(psutil.Process(container.pid).cmdline())
        for container in installation.containers
        if container.is_running
    }

    assert len(commands) == 8  # all but those that were to end
    secrets = [secret.rpartition(":")[2] for secret in PASSWORDS.values()]
    assert [name for name, command in commands.items() for each in secrets if each in command] == []


def test_redis_evicts_nothing_keeps_its_log_and_asks_for_the_password(installation: Host) -> None:
    (server,) = installation.of("redis")
    address = installation.local("redis:6379")
    client = redis.Redis.from_url(f"redis://:{PASSWORDS['BROKER_PASSWORD']}@{address}")

    found = client.config_get("maxmemory-policy", "appendonly", "save")

    assert found == {"maxmemory-policy": "noeviction", "appendonly": "yes", "save": ""}
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(f"redis://{address}").ping()
    assert psutil.Process(server.pid).name() == "redis-server"  # so that it gets SIGTERM itself
    client.close()


def test_flower_answers_only_who_has_the_password(installation: Host) -> None:
    page = installation.local("http://127.0.0.1:5555/")

    assert httpx2.get(page).status_code == 401
    user, _, password = PASSWORDS["CELERIAC_FLOWER_AUTH"].partition(":")
    assert httpx2.get(page, auth=(user, password), follow_redirects=True).status_code == 200


def test_the_api_tells_its_figures_to_whoever_has_the_token(installation: Host) -> None:
    url = installation.local("http://127.0.0.1:8080/metrics")
    elsewhere = {"Host": "api:8080"}  # as Prometheus asks, from another container
    token = {"Authorization": f"Bearer {PASSWORDS['METRICS_TOKEN']}"}

    assert httpx2.get(url, headers=elsewhere).status_code == 401
    told = httpx2.get(url, headers={**elsewhere, **token}).text

    assert "celeriac_rows_read 1.0" in told
    assert "celeriac_scheduler_leads 1.0" in told
    assert 'celeriac_workers{state="alive"} 2.0' in told


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE celeriac.events SET data = '{}'",
        "DELETE FROM celeriac.runs",
        "ALTER TABLE celeriac.runs DISABLE TRIGGER ALL",
        "DROP SCHEMA celeriac CASCADE",
        "CREATE TABLE public.anything ()",
        "CREATE ROLE somebody SUPERUSER",
    ],
)
def test_the_login_of_workers_may_not(installation: Host, statement: str) -> None:
    url = installation.of("worker")[0].service.environment["CELERIAC_DATABASE_URL"]

    with (
        psycopg.connect(installation.local(url)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)
