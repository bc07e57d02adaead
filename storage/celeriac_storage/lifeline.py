"""The Postgres session that a worker holds while it lives.

Its advisory lock is gone some 8 ms after the process is killed, because the kernel closes the
socket; that is what the scheduler watches. A fork must not keep the session alive: the child closes
its copy of the socket.
"""

import math
import os
import select
import weakref
from contextlib import suppress
from typing import Any

import psycopg

from celeriac.ids import WorkerId
from celeriac_storage.database import CONNECT_TIMEOUT_SECONDS, TCP_OPTIONS, libpq_url
from celeriac_storage.workers import application_name, lifeline_key

_held: weakref.WeakSet["Lifeline"] = weakref.WeakSet()


class Lifeline:
    """One session and its lock, for the process that made it; used by its heartbeat thread only."""

    def __init__(self, url: str, *, lease_seconds: float) -> None:
        self._url = libpq_url(url)
        self._lease_seconds = lease_seconds
        self._connection: psycopg.Connection[Any] | None = None
        _held.add(self)

    def hold(self, worker_id: WorkerId) -> bool:
        """Connect if need be and take the worker's lock; false if somebody still holds it (an old
        session of ours that the server has not yet missed: try again soon).

        Raises `psycopg.Error` if the server does not answer.
        """
        if self.is_broken:
            self.close()
        if self._connection is None:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                **{**TCP_OPTIONS, "connect_timeout": connect_timeout_seconds(self._lease_seconds)},
            )
        is_held = False
        try:
            _outlive_the_lease(self._connection, self._lease_seconds)
            is_held = _lock(self._connection, worker_id)
        finally:
            if not is_held:  # an open session must mean a lock
                self.close()
        return is_held

    @property
    def is_broken(self) -> bool:
        """Whether there is no session, or the server has dropped it (its socket is readable)."""
        if self._connection is None or self._connection.closed:
            return True
        readable, _, _ = select.select([self._connection], [], [], 0)
        return bool(readable)

    def fileno(self) -> int:
        assert self._connection is not None
        return self._connection.fileno()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _abandon(self) -> None:
        if self._connection is not None:
            # Never close(): it would tell the server to end the parent's session.
            with suppress(psycopg.Error, OSError):
                os.close(self._connection.fileno())
            self._connection = None


def connect_timeout_seconds(lease_seconds: float) -> int:
    """How long a worker waits for a server that does not answer: it must not cost more than one
    renewal. (Less than 2 s the driver does not do.)"""
    return max(2, min(CONNECT_TIMEOUT_SECONDS, int(lease_seconds / 3)))


def _outlive_the_lease(connection: psycopg.Connection[Any], lease_seconds: float) -> None:
    # A worker that is cut off is not dead, and may be in the middle of a call: its lease must be
    # over before the server ends this session. But in the end it has to, or the lock would be held
    # for two hours, and the worker could not take it again.
    connection.execute(
        "SELECT set_config('idle_session_timeout', '0', false),"
        " set_config('tcp_keepalives_idle', '3', false),"
        " set_config('tcp_keepalives_interval', %s, false),"
        " set_config('tcp_keepalives_count', '3', false),"
        " set_config('tcp_user_timeout', '0', false)",
        (str(math.ceil(lease_seconds / 2)),),
    )


def _lock(connection: psycopg.Connection[Any], worker_id: WorkerId) -> bool:
    # A worker that goes on under a new name keeps its session, not its lock.
    connection.execute("SELECT pg_advisory_unlock_all()")
    row = connection.execute(
        "SELECT pg_try_advisory_lock(%s), set_config('application_name', %s, false)",
        (lifeline_key(worker_id), application_name(worker_id)),
    ).fetchone()
    return row is not None and bool(row[0])


def _abandon_all() -> None:
    for lifeline in list(_held):
        lifeline._abandon()


os.register_at_fork(after_in_child=_abandon_all)
