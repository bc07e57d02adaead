"""The runs whose histories go on with what is being committed.

Whoever writes an event that is not part of a step's commit adds its run here. After the commit the
`Database` passes the run on to whom it was made with, who wakes its readers: a hint, and if the
process dies in between, or if it is a connection of somebody else's, they find out by themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from celeriac.ids import RunId

_KEY = "celeriac.news"


def add(connection: Connection, *run_ids: RunId) -> None:
    """Say that events of these runs are written on this connection."""
    runs: set[RunId] | None = connection.info.get(_KEY)
    if runs is not None:
        runs.update(run_ids)


@contextmanager
def collected(connection: Connection, tell: Callable[[RunId], None] | None) -> Iterator[None]:
    """Pass on what is added in the block, when it has ended well and all of it is committed."""
    if tell is None:
        yield
        return
    info, runs = connection.info, set[RunId]()
    info[_KEY] = runs
    try:
        yield
    finally:
        # Closed by the block, the connection may be in use again, with runs of its own.
        if info.get(_KEY) is runs:
            del info[_KEY]
    for run_id in runs:
        tell(run_id)
