"""Fixtures: a box office that speaks MCP, and a call of one of its tools."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celeriac import model_loop
from celeriac.mcp import HttpServer, StdioServer
from celeriac.mcp.servers import Server
from tests.mcp_servers.ledger import BOX_OFFICE, Ledger
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """End the servers that this process has started."""
    yield
    model_loop.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start_http(ledger: Ledger) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the box office on a port; returns when it listens there."""
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, BOX_OFFICE, str(port)],
            env=os.environ | {"BOX_LEDGER": str(ledger.path)} | environment,
            stdin=subprocess.DEVNULL,
        )
        started.append(process)

        def listens() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True

        eventually(listens, what="the server listens")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, ledger: Ledger) -> Server:
    """The box office, over pipes and over HTTP."""
    if request.param == "stdio":
        return ledger.over_pipes()
    port = request.getfixturevalue("free_port")
    request.getfixturevalue("start_http")(port)
    return HttpServer("box", f"http://127.0.0.1:{port}/mcp")


@pytest.fixture
def hostile() -> Callable[[str], StdioServer]:
    script = str(Path(__file__).with_name("hostile.py"))
    return lambda way: StdioServer("evil", [sys.executable, script, way])
