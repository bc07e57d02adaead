"""`/metrics` of a process that serves nothing else: a worker or a scheduler."""

import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import SecretStr

from celeriac.settings import Settings
from celeriac_tasks.metrics.guard import CHALLENGE, may_read

logger = logging.getLogger(__name__)

BIND_RETRY_SECONDS = 5.0
READER_SECONDS = 5.0  # one reader at a time: a slow one must not keep the next for longer


def start_exporter(settings: Settings, registry: CollectorRegistry) -> None:
    """Serve the figures in a thread, if the settings name a port. Raises nothing: no step waits for
    whoever counts them, so a port that is taken is tried again and again."""
    if settings.metrics_port is None:
        return
    ProcessCollector(registry=registry)
    threading.Thread(
        target=_serve, args=(settings, registry), name="celeriac-metrics", daemon=True
    ).start()


def _serve(settings: Settings, registry: CollectorRegistry) -> None:
    assert settings.metrics_port is not None
    handler = type("Handler", (_Handler,), {"registry": registry, "token": settings.metrics_token})
    while True:
        try:
            server = HTTPServer((settings.metrics_address, settings.metrics_port), handler)
            break
        except OSError as error:
            logger.warning(
                "/metrics cannot be served at %s port %d: %s; trying again",
                settings.metrics_address,
                settings.metrics_port,
                error.strerror or error,
            )
            time.sleep(BIND_RETRY_SECONDS)
    logger.info("/metrics is at port %d", server.server_address[1])
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    registry: ClassVar[CollectorRegistry]
    token: ClassVar[SecretStr | None]
    timeout = READER_SECONDS

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"there is only /metrics here\n")
        elif not may_read(self.token, str(self.client_address[0]), headers):
            self._answer(401, b"not without CELERIAC_METRICS_TOKEN\n")
        else:
            self._answer(200, generate_latest(self.registry))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response_only(status)
        if status == 401:
            self.send_header("WWW-Authenticate", CHALLENGE)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Scrapes are no news."""
