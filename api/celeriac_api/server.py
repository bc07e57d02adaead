"""Serving the API: one process, until a signal ends it."""

import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from celeriac.errors import InvalidInput
from celeriac.settings import Settings
from celeriac_api.app import create_app

GRACE_SECONDS = 5
"""How long requests in progress may take at the end; then streams are cut, and clients resume."""


def serve(settings: Settings, *, host: str, port: int, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `on_listening` is told the URL; port 0 takes a free one.

    Raises `InvalidInput` for an address that cannot be listened at.
    """
    config = configuration(create_app(settings))
    # Uvicorn sends itself the signal again when it has ended: that is to be a success.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    with _listener(host, port) as listener:
        on_listening(_url(host, listener.getsockname()[1]))
        uvicorn.Server(config).run(sockets=[listener])


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def configuration(app: FastAPI) -> uvicorn.Config:
    """How the application is served; at a free port of loopback where nobody gives a socket."""
    return uvicorn.Config(
        app,
        port=0,
        log_config=None,  # the process's own logging
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen at {host} port {port}: {error.strerror or error}. Give another --host "
            "or --port"
        ) from error


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
