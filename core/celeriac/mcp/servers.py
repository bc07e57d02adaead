"""Where an MCP server is, and what is needed to reach it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celeriac.errors import InvalidAgent
from celeriac.secrets import redact_url, register_secrets

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_CREDENTIALS = ("authorization", "cookie", "proxy-authorization")


@dataclass(frozen=True, eq=False)
class StdioServer:
    """A program that is started in each process that calls it, and spoken to over its pipes.

    It is given `env` and no more of our environment than PATH, HOME and the like. It has to end
    when its standard input does. What it writes to standard error is logged at DEBUG.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if isinstance(self.command, str) or not self.command:
            raise InvalidAgent(
                f"MCP server {self.name}: command={self.command!r} is no list of a program and its "
                'arguments, such as ["npx", "-y", "some-server"]'
            )
        register_secrets(self.env)


@dataclass(frozen=True, eq=False)
class HttpServer:
    """A server that speaks streamable HTTP at `url`; `headers` go along with every request."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not self.url.startswith(("http://", "https://")):
            raise InvalidAgent(
                f"MCP server {self.name}: {redact_url(self.url)} is no http:// or https:// address"
            )
        register_secrets(
            {
                f"{name}_token" if name.lower() in _CREDENTIALS else name: value.rpartition(" ")[2]
                for name, value in self.headers.items()
            }
        )


Server = StdioServer | HttpServer


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidAgent(
            f"{name!r} cannot be an MCP server's name: 1 to 32 lower-case letters, digits, _ and -"
        )
