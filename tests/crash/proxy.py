"""A way to a server that goes wrong as networks do: without telling either end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK_BYTES = 65536


class Proxy:
    """Forwards each connection to the server at `server_url`; clients connect to `url`."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        login, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()
        self.accepted = 0
        self._links: list[_Link] = []
        self._is_moving = threading.Event()
        self._is_moving.set()
        self._is_refusing = False
        self._answers_to_lose = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def strand(self) -> int:
        """Swallow all that is sent on the present connections from now on, and keep them open; how
        many they are. New ones work: so it is when a router forgets its connections."""
        return sum(link.strand() for link in self._links)

    def freeze(self) -> None:
        """Accept connections and hold back all that is sent on any, until `thaw`."""
        self._is_moving.clear()

    def thaw(self) -> None:
        self._is_moving.set()

    def refuse(self) -> None:
        """End all connections, and every new one at once, until `serve`."""
        self._is_refusing = True
        for link in self._links:
            link.close()

    def serve(self) -> None:
        self._is_refusing = False

    def lose_answers(self, count: int) -> None:
        """Let so many connections end as soon as the server says something on them, of which
        nothing arrives: it has done what it was asked for, and nobody knows."""
        self._answers_to_lose = count

    @property
    def open_links(self) -> int:
        """Connections that neither end has closed."""
        return sum(not link.is_over for link in self._links)

    def close(self) -> None:
        self._listener.close()
        self.thaw()
        for link in self._links:
            link.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                if self._is_refusing:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._links.append(_Link(near, far, self._is_moving, self._takes_loss))
                self.accepted += 1

    def _takes_loss(self) -> bool:
        self._answers_to_lose -= 1
        return self._answers_to_lose >= 0


class _Link:
    """A client's connection, and ours to the server for it."""

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        is_moving: threading.Event,
        takes_loss: Callable[[], bool],
    ) -> None:
        self._far = far
        self._takes_loss = takes_loss
        self._ends = (near, far)
        self._is_moving = is_moving
        self._is_stranded = False
        self.is_over = False
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def strand(self) -> bool:
        """Whether there was still somebody to strand."""
        self._is_stranded = True
        return not self.is_over

    def close(self) -> None:
        self.is_over = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._is_moving.wait()
                if source is self._far and self._takes_loss():
                    break
                if not self._is_stranded:
                    target.sendall(data)
        if not self._is_stranded:
            self.close()


@contextmanager
def proxy_to(server_url: str) -> Iterator[Proxy]:
    proxy = Proxy(server_url)
    try:
        yield proxy
    finally:
        proxy.close()
