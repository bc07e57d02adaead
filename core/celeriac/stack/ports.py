"""Ports of this machine for the stack's servers."""

import secrets
import socket
from collections.abc import Collection

from celeriac.errors import StackFailed

LOOPBACK = "127.0.0.1"
RANGE = range(15000, 32000)
"""Below the ports that systems hand out for outgoing connections, one of which could sit on ours
whenever the stack is down."""

ATTEMPTS = 100


def is_free(port: int) -> bool:
    """Whether a server could listen there now. Somebody else may be faster."""
    with socket.socket() as probe:
        # As the servers do: connections that are still being closed are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def find_free(besides: Collection[int] = ()) -> int:
    """A port on which nobody listens. Raises `StackFailed`."""
    for _ in range(ATTEMPTS):
        port = RANGE.start + secrets.randbelow(len(RANGE))
        if port not in besides and is_free(port):
            return port
    raise StackFailed(
        f"{ATTEMPTS} ports of {LOOPBACK} between {RANGE.start} and {RANGE.stop} were tried, and "
        "every one was taken"
    )
