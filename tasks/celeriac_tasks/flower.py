"""Flower on our broker: who may reach it, what it may do, and how much it remembers.

Flower can end workers, and revoke a step so that no worker that heard of it takes it for hours. So
it only looks here (`read_only`) unless the operator turns that off, and then it asks for a password
wherever it listens. Its own options are read from its own variables, `FLOWER_*`, but for those that
are decided below; no `flowerconfig.py` is read.
"""

import logging
import signal
from collections.abc import Callable
from typing import Any

from flower.app import Flower  # type: ignore[import-untyped]  # it ships no types
from flower.command import (  # type: ignore[import-untyped]
    apply_env_options,
    extract_settings,
)
from flower.options import options  # type: ignore[import-untyped]
from flower.urls import settings as tornado_settings  # type: ignore[import-untyped]
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from celeriac.errors import CeleriacError, InvalidInput
from celeriac.loopback import is_loopback
from celeriac.settings import Settings
from celeriac_tasks.celery_app import make_app

REMEMBERED_TASKS = 10_000
"""A task takes 4.5 KB of Flower's memory, so these are 45 MB; its own default would be 450."""

OFFLINE_WORKERS_SHOWN_SECONDS = 86_400
"""Each restart is a new name, so those that left must go; a night's dead are there in the
morning."""


def serve_flower(
    settings: Settings, *, address: str, port: int, on_listening: Callable[[str], None]
) -> None:
    """Serve Flower until a signal ends it; port 0 takes a free one.

    `on_listening` gets the URL as soon as connections are accepted. Without authentication
    (`settings.flower_auth` as USER:PASSWORD, or Flower's own) it serves a loopback address only,
    only under a loopback name, and with its API closed. Raises `InvalidInput` for options that
    cannot be used or would be unsafe, and `CeleriacError` if it cannot listen there.
    """
    _set_options(settings, address, port)
    is_authenticated = bool(options.basic_auth or options.auth)
    _check_exposure(address, is_authenticated=is_authenticated)
    # It inspects once at its start; that nobody has answered yet is on its page.
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)
    app = make_app(settings)
    app.conf.broker_transport = None  # Flower asks a broker for its queues whose kind it knows
    application = (Flower if is_authenticated else _LoopbackFlower)(
        capp=app, options=options, **tornado_settings
    )
    try:
        bound_port = application.start_http_server()
    except OSError as error:
        raise CeleriacError(
            f"Flower cannot listen on {address}:{port} ({error.strerror or error}): "
            "give another --port or --address"
        ) from error
    scheme = "https" if application.ssl_options else "http"
    host = f"[{address}]" if ":" in address else address
    on_listening(f"{scheme}://{host}:{bound_port}")
    loop = application.io_loop
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.add_callback_from_signal(loop.stop))
    application.start()
    application.stop()


def _set_options(settings: Settings, address: str, port: int) -> None:
    options.read_only = True
    # The workers' own setting decides whether they send events. With Flower's default it would
    # switch them on in every worker each 5 s, and `--no-task-events` would be worth nothing.
    options.enable_events = False
    options.max_tasks = REMEMBERED_TASKS
    options.purge_offline_workers = OFFLINE_WORKERS_SHOWN_SECONDS
    # The arguments last: they are long, repeat the id, and would push the worker off the screen.
    options.tasks_columns = "name,uuid,state,worker,received,runtime,args"
    try:
        apply_env_options()
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"a FLOWER_* variable cannot be used: {error}") from error
    options.address = address
    options.port = port
    if settings.flower_auth is not None:
        options.basic_auth = [settings.flower_auth.get_secret_value()]
    extract_settings()


def _check_exposure(address: str, *, is_authenticated: bool) -> None:
    if is_authenticated:
        return
    if not is_loopback(address):
        raise InvalidInput(
            f"Flower will not listen on {address or 'all addresses'} without authentication: "
            "whoever reaches it could read every run's id and the workers' settings. Set "
            "CELERIAC_FLOWER_AUTH=USER:PASSWORD, or listen on 127.0.0.1"
        )
    if not options.read_only:
        raise InvalidInput(
            "FLOWER_READ_ONLY is off, so Flower could end workers and revoke steps: set "
            "CELERIAC_FLOWER_AUTH=USER:PASSWORD as well, or leave it on"
        )


class _LoopbackFlower(Flower):  # type: ignore[misc]  # Flower has no types
    """Flower without authentication: answers under a loopback name only.

    A web page can give its own name the address 127.0.0.1 and then read whatever listens there as
    its own (DNS rebinding). The name in the request still is the page's.
    """

    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        if not is_loopback(request.host_name):
            return self.get_handler_delegate(request, _WrongName)
        return super().find_handler(request, **options)


class _WrongName(RequestHandler):
    def prepare(self) -> None:
        self.set_status(403)
        self.write(
            "Without authentication, Flower answers under the name localhost or 127.0.0.1 only.\n"
        )
        self.finish()  # type: ignore[unused-awaitable]  # it resolves when all is sent
