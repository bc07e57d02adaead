"""What the measurements of `celeriac.bench` ask of the database, and the rows their tool writes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import CallId, RunId
from celeriac_storage.workers import IS_ALIVE


def create_tables(connection: Connection) -> None:
    """Make the business tables that a measured tool writes to, if they are not there yet."""
    connection.exec_driver_sql(
        """
        CREATE SCHEMA IF NOT EXISTS celeriac_bench;
        CREATE TABLE IF NOT EXISTS celeriac_bench.effects (
            effect_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            run_id text NOT NULL,
            call_id text NOT NULL
        );
        """
    )


def insert_effect(connection: Connection, run_id: RunId, call_id: CallId) -> None:
    """The business row of one call. Nothing but the step's transaction keeps it from doubling."""
    connection.exec_driver_sql(
        "INSERT INTO celeriac_bench.effects (run_id, call_id) VALUES (%s, %s)", (run_id, call_id)
    )


def count_doubled_effects(connection: Connection, run_ids: Collection[RunId]) -> int:
    """How many business rows there are beyond one for each call of these runs."""
    return _number(
        connection,
        "SELECT count(*) - count(DISTINCT (run_id, call_id)) FROM celeriac_bench.effects"
        " WHERE run_id = ANY (%s)",
        list(run_ids),
    )


def count_live_workers(connection: Connection, pids: Sequence[int]) -> int:
    """How many live workers these processes are."""
    return _number(
        connection,
        f"SELECT count(*) FROM celeriac.workers WHERE pid = ANY (%s) AND {IS_ALIVE}",
        list(pids),
    )


def count_completed(connection: Connection, run_ids: Collection[RunId]) -> int:
    """How many of these runs are completed."""
    return _number(
        connection,
        "SELECT count(*) FROM celeriac.runs WHERE run_id = ANY (%s) AND status = 'completed'",
        list(run_ids),
    )


def holder_pid(connection: Connection, run_id: RunId, step: int) -> int | None:
    """The process that executes this step of the run just now, if one does."""
    pid: int | None = connection.exec_driver_sql(
        "SELECT pid FROM celeriac.runs JOIN celeriac.workers USING (worker_id)"
        " WHERE run_id = %s AND status = 'running' AND step = %s",
        (run_id, step),
    ).scalar()
    return pid


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """The run's latest claim, and when that was looked at; all by the database's clock."""

    epoch: int
    step_started_at: datetime | None
    looked_at: datetime


def latest_claim(connection: Connection, run_id: RunId) -> ClaimSeen:
    row: Any = connection.exec_driver_sql(
        "SELECT epoch, step_started_at, clock_timestamp() FROM celeriac.runs WHERE run_id = %s",
        (run_id,),
    ).one()
    return ClaimSeen(*row)


def current_step(connection: Connection, run_id: RunId) -> int:
    return _number(connection, "SELECT step FROM celeriac.runs WHERE run_id = %s", run_id)


def mean_step_milliseconds(
    connection: Connection, run_id: RunId, first_step: int, last_step: int
) -> float:
    """From commit to commit, the mean of the steps from first to last, both counted."""
    mean = connection.exec_driver_sql(
        "SELECT extract(epoch FROM max(committed_at) - min(committed_at)) * 1000"
        " / greatest(count(*) - 1, 1) FROM celeriac.checkpoints"
        " WHERE run_id = %s AND step BETWEEN %s AND %s",
        (run_id, first_step, last_step),
    ).scalar_one()
    return float(mean)


def table_bytes(connection: Connection) -> int:
    """What all tables of the schema `celeriac` take on disk, with their indexes."""
    return _number(
        connection,
        "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = 'celeriac'::regnamespace",
    )


def wal_bytes(connection: Connection) -> int:
    """What the server has ever written to its write-ahead log, for all of its databases."""
    return _number(connection, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")


def _number(connection: Connection, query: str, *parameters: object) -> int:
    return int(connection.exec_driver_sql(query, parameters).scalar_one())
