"""The same rows lead to the same recovery: of a database in which a worker has just been killed,
copies are made, and in each the run is recovered by a worker of its own.
"""

# features: 004-21
import re
from contextlib import ExitStack

import pytest

from celeriac.client import Client
from celeriac.codec import dumps
from celeriac.ids import RunId, WorkerId
from celeriac.reports import to_json
from celeriac.states import Phase, RunStatus
from celeriac_storage import verdicts, waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.workers import APPLICATION_NAME_PREFIX
from tests.crash import clone_agents
from tests.crash.stack import DONE_SECONDS, Stack
from tests.servers import DatabaseServer
from tests.waiting import eventually
from tests.worker_in_process import Worker

COPIES = 3
THINK, READ, BOOK, ORDER, REMIND, LAST = 0, 1, 3, 5, 7, 8
PLACES = [
    f"step.after_claim@{THINK}",
    f"think.after_model_call@{THINK}",
    f"step.after_commit@{THINK}",
    f"act.after_tool@{READ}",
    f"step.after_publish@{READ}",
    f"act.after_tool@{BOOK}",
    f"step.before_commit@{BOOK}",
    f"act.before_in_flight@{ORDER}",
    f"act.before_call@{ORDER}",
    f"act.after_call@{ORDER}",
    f"step.before_commit@{ORDER}",
    f"act.after_call@{REMIND}",
    f"think.after_model_call@{LAST}",
    f"step.after_commit@{LAST}",
]
DOUBTFUL = {f"{point}@{ORDER}" for point in ("act.before_call", "act.after_call",
            "step.before_commit")}  # fmt: skip
TABLES = {
    "runs": "run_id",
    "checkpoints": "step",
    "messages": "position",
    "events": "seq",
    "effects": "call_id",
    "effect_attempts": "call_id, attempt, entry",
    "model_calls": "step, attempt",
}
TIMED = {"waited", "started_at", "finished_at", "paused_at", "wake_at", "published_at"}
_IDS = re.compile(r"\bw[0-9a-z]{12}\b|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r'"\d{4}-\d\d-\d\dT[^"]*"')


@pytest.mark.parametrize("place", PLACES)
def test_copies_of_a_database_recover_to_the_same_rows(
    stack: Stack, database_server: DatabaseServer, place: str
) -> None:
    worker = stack.processes.start_worker(clone_agents.__name__, test_points=f"{place}=kill")
    (worker_id,) = stack.processes.worker_ids(worker)
    with Client(stack.database.url, stack.broker.url) as client:
        run_id = client.start("cloned", "go").run_id
    worker.wait()
    eventually(
        lambda: stack.query(
            "SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE %s || '%%'",
            APPLICATION_NAME_PREFIX,
        ),
        until=lambda sessions: sessions == [],
        deadline_seconds=DONE_SECONDS,
        what="the dead worker's sessions are gone",
    )
    stack.client.close()
    stack.database.close()

    with ExitStack() as copies:
        urls = [
            copies.enter_context(database_server.copy(stack.database.url)) for _ in range(COPIES)
        ]
        first, *others = [recovered(url, stack.broker.url, run_id, worker_id) for url in urls]

    assert [other == first for other in others] == [True] * len(others), (first, others)
    is_doubtful = place in DOUBTFUL
    assert f'"status":"{"needs_attention" if is_doubtful else "completed"}"' in first["runs"][0]


def recovered(url: str, broker_url: str, run_id: RunId, worker_id: str) -> dict[str, list[str]]:
    """Have the dead worker found out and the run taken on as far as it goes; its rows then, without
    what names a worker, a claim or a moment."""
    worker = Worker(url, broker_url, [clone_agents.cloned])
    database = worker.database
    with database.begin() as connection:
        assert verdicts.declare_dead(connection, WorkerId(worker_id), "lifeline") is not None
        # So long ago that whatever it had sent has arrived.
        connection.exec_driver_sql(
            "UPDATE celeriac.workers SET dead_at = dead_at - interval '1 h',"
            " renewed_at = renewed_at - interval '1 h', lease_until = lease_until - interval '1 h'"
            " WHERE worker_id = %s",
            (worker_id,),
        )
    worker.process.start()
    try:
        with database.begin() as connection:
            verdicts.recover(connection)
        for _ in range(20):
            row = worker.row(run_id)
            if row.phase == Phase.WAITING_TIMER:
                with database.begin() as connection:
                    connection.exec_driver_sql("UPDATE celeriac.runs SET wake_at = created_at")
                    waking.take_due_timers(connection)
            elif row.status == RunStatus.QUEUED:
                worker.step(run_id)
        assert audit(database) == []
        return {table: _rows(database, table, order, run_id) for table, order in TABLES.items()}
    finally:
        worker.process.stop()


def _rows(database: Database, table: str, order: str, run_id: RunId) -> list[str]:
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            f"SELECT to_jsonb(this) FROM celeriac.{table} AS this WHERE run_id = %s"
            f" ORDER BY {order}",
            (run_id,),
        )
        told = [
            {name: value for name, value in row.items() if name not in TIMED} for (row,) in rows
        ]
    return [_TIME.sub('"…"', _IDS.sub("…", dumps(to_json(row)))) for row in told]
