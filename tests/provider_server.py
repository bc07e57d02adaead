"""An OpenAI-compatible server on loopback that fails as real providers do, for tests.

    with ProviderServer([Reply.rate_limited("2"), Reply.text("hello")]) as server:
        model = server.model()

Each request takes the next reply; when there is none left, the last one is given again. A function
of the request's body makes its reply instead, where they come in no certain order. What came in is
kept in `server.requests`; `connections` and `most_at_once` tell how connections were used.
"""

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

_ALL = -1  # requests


@dataclass(frozen=True)
class Reply:
    """What the server does with one request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None  # close the connection after this many bytes of the body
    close_at_once: bool = False  # close it without a word
    hang_seconds: float = 0.0  # say nothing for so long, or until the server stops
    delay_seconds: float = 0.0  # then answer
    pieces: tuple[bytes, ...] = ()  # of an event stream, instead of a body
    stalls_after: tuple[int, ...] = ()  # so many pieces: nothing more, until `go_on` is called
    is_cut: bool = False  # the connection breaks after the pieces, in the middle of the stream

    @classmethod
    def text(cls, text: str, *, finish_reason: str = "stop", delay_seconds: float = 0.0) -> Self:
        message = {"role": "assistant", "content": text}
        return cls(body=_completion(message, finish_reason), delay_seconds=delay_seconds)

    @classmethod
    def stream(
        cls, words: Sequence[str], *, stalls_after: Sequence[int] = (), ending: str = "stop"
    ) -> Self:
        """Text word by word. `ending` is the reason it stops for, or `cut` (the connection breaks)
        or `closed` (it ends in good order, but without a reason)."""
        chunks = [_chunk({"content": word}) for word in words]
        if ending not in ("cut", "closed"):
            chunks += [_chunk({}, ending), _chunk(None), b"data: [DONE]\n\n"]
        return cls(pieces=tuple(chunks), stalls_after=tuple(stalls_after), is_cut=ending == "cut")

    @classmethod
    def tool_call(cls, tool: str, arguments: str, call_id: str = "call_0") -> Self:
        """`arguments` is sent as it is, so it may be malformed."""
        function = {"name": tool, "arguments": arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return cls(body=_completion(message, "tool_calls"))

    @classmethod
    def error(
        cls,
        status: int,
        message: str,
        *,
        code: str | None = None,
        kind: str = "error",
        headers: dict[str, str] | None = None,
    ) -> Self:
        error = {"message": message, "type": kind, "param": None, "code": code}
        return cls(status=status, body=json.dumps({"error": error}).encode(), headers=headers or {})

    @classmethod
    def rate_limited(cls, retry_after: str | None = None) -> Self:
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        return cls.error(429, "Rate limit reached", code="rate_limit_exceeded", headers=headers)

    @classmethod
    def context_too_long(cls) -> Self:
        return cls.error(
            400,
            "This model's maximum context length is 8192 tokens.",
            code="context_length_exceeded",
            kind="invalid_request_error",
        )

    @classmethod
    def half_a_body(cls) -> Self:
        body = _completion({"role": "assistant", "content": "never seen whole"}, "stop")
        return cls(body=body, cut_at=len(body) // 2)

    @classmethod
    def no_json(cls) -> Self:
        return cls(body=b"<html>Bad gateway</html>")

    @classmethod
    def no_choices(cls) -> Self:
        return cls(body=json.dumps(_envelope([])).encode())

    @classmethod
    def closed_at_once(cls) -> Self:
        return cls(close_at_once=True)

    @classmethod
    def hanging(cls, seconds: float = 60.0) -> Self:
        return cls(hang_seconds=seconds)


class ProviderServer:
    """The server, in threads of its own, listening while it is entered."""

    def __init__(self, replies: Sequence[Reply] | Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []  # the JSON bodies, in the order of arrival
        self.connections = 0  # accepted so far
        self.most_at_once = 0  # requests in work at the same time
        self._choose = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._at_once = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._released: Counter[int] = Counter()  # stalls of each request
        self._is_released = threading.Condition(self._lock)
        self._left = threading.Condition(self._lock)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def model(self) -> OpenAIChatModel:
        """A model with connections of its own to this server."""
        provider = OpenAIProvider(base_url=self.url, api_key="sk-test-0123456789abcdef")
        return OpenAIChatModel("gpt-test", provider=provider)

    def will_reply(self, *replies: Reply) -> None:
        """These from now on; for a server that is started before the test knows them."""
        with self._lock:
            self._replies = [*self._replies[: len(self.requests)], *replies]

    def go_on(self, request: int | None = None) -> None:
        """Let the reply to this request (0, 1 …) go on when it stalls next, or all for ever."""
        with self._is_released:
            self._released[_ALL if request is None else request] += 1
            self._is_released.notify_all()

    def wait_until_idle(self, timeout_seconds: float = 60.0) -> bool:
        """Whether no request is being worked on, after at most so long."""
        with self._left:
            return self._left.wait_for(lambda: self._at_once == 0, timeout_seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self.go_on()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def connected(self) -> None:
        with self._lock:
            self.connections += 1

    def arrived(self, request: dict[str, Any]) -> tuple[int, Reply]:
        with self._lock:
            if self._choose is not None:
                reply = self._choose(request)
            else:
                reply = self._replies[min(len(self.requests), len(self._replies) - 1)]
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return len(self.requests) - 1, reply

    def left(self) -> None:
        with self._left:
            self._at_once -= 1
            self._left.notify_all()

    def stall(self, request: int, before: int) -> None:
        """Wait for the release of this stall, before which the request had so many."""
        with self._is_released:
            self._is_released.wait_for(
                lambda: self._released[request] > before or self._released[_ALL]
            )

    def wait(self, seconds: float, connection: socket.socket) -> bool:
        """Wait so long, unless the server stops or the client hangs up; whether to answer then."""
        waited = 0.0
        while waited < seconds and not self._stopping.is_set():
            connection.settimeout(0.02)
            try:
                if connection.recv(1, socket.MSG_PEEK) == b"":
                    return False
            except TimeoutError:
                pass
            waited += 0.02
        connection.settimeout(None)
        return not self._stopping.is_set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # an idle keep-alive connection must not hold up the end of a test
    provider: ProviderServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # so that connections are kept
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.provider.connected()

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        number, reply = self.server.provider.arrived(json.loads(self.rfile.read(length)))
        try:
            self._answer(number, reply)
        except OSError:
            self.close_connection = True  # the client gave up, as it is meant to in some tests
        finally:
            self.server.provider.left()

    def _answer(self, number: int, reply: Reply) -> None:
        silence = reply.hang_seconds + reply.delay_seconds
        if silence and not self.server.provider.wait(silence, self.connection):
            self.close_connection = True
            return
        if reply.close_at_once or reply.hang_seconds:
            self.close_connection = True
            return
        if reply.pieces:
            self._stream(number, reply)
            return
        self.send_response_only(reply.status)  # with no Date, which a reply may set
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body[: reply.cut_at])
        if reply.cut_at is not None:
            self.close_connection = True

    def _stream(self, request: int, reply: Reply) -> None:
        self.send_response_only(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, piece in enumerate(reply.pieces):
            if number in reply.stalls_after:
                self.server.provider.stall(request, reply.stalls_after.index(number))
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if reply.is_cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        pass


def _completion(message: dict[str, Any], finish_reason: str) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
    return json.dumps(_envelope([choice])).encode()


def _chunk(delta: dict[str, Any] | None, finish_reason: str | None = None) -> bytes:
    """A chunk of a streamed completion; without a delta, the last one, with the usage."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    chunk = _envelope([] if delta is None else [choice]) | {"object": "chat.completion.chunk"}
    if delta is not None:
        del chunk["usage"]
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _envelope(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-test-2026",
        "choices": choices,
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
