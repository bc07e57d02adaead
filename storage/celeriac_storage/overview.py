"""What there is to see at a glance: how many runs stand where, and which workers have died."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import WorkerId
from celeriac.states import RunStatus

DEATHS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was declared dead: the runs it held were taken over by others."""

    worker_id: WorkerId
    hostname: str
    pid: int
    at: datetime
    verdict: str  # `lifeline` or `lease`: how it was noticed


@dataclass(frozen=True, slots=True)
class Overview:
    runs: Mapping[RunStatus, int]  # statuses without a run are left out
    deaths: Sequence[Death]  # the latest first, a few


def read_overview(connection: Connection) -> Overview:
    """Counts all runs, so ask it now and then."""
    runs: Any = connection.exec_driver_sql("SELECT status, count(*) FROM celeriac.runs GROUP BY 1")
    deaths: Sequence[Any] = connection.exec_driver_sql(
        "SELECT worker_id, hostname, pid, dead_at, verdict FROM celeriac.workers"
        " WHERE dead_at IS NOT NULL ORDER BY dead_at DESC LIMIT %s",
        (DEATHS_SHOWN,),
    ).fetchall()
    return Overview(
        {RunStatus(status): count for status, count in runs},
        [Death(WorkerId(row[0]), *row[1:]) for row in deaths],
    )
