"""The verdict can be wrong about nothing: each row that is damaged after a demo is found."""

import json
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from celeriac.demo.play import Play
from celeriac.demo.record import Record
from celeriac.demo.stage import Stage, set_up
from celeriac.demo.timeline import Timeline
from celeriac.demo.verdict import LONGEST_FAILOVER_MS, judge
from celeriac.reports import Event, Step
from celeriac.stack.folder import remove
from celeriac_storage.audit import audit
from tests.machine import kill_everything

pytestmark = pytest.mark.timeout(400)  # the play belongs to whichever test comes first


class Silence:
    """A narrator for whom nobody listens."""

    def begin_act(self, title: str) -> None: ...
    def say(self, text: str) -> None: ...
    def wait_for(self, what: str) -> None: ...
    def tell(self, run_id: str, steps: Sequence[Step], events: Sequence[Event]) -> None: ...


@dataclass(frozen=True)
class Finished:
    """A demo after its last act, with everything still open."""

    stage: Stage
    record: Record

    def wrong_rows(self, record: Record | None = None) -> list[str]:
        verdict = judge(
            record or self.record,
            self.stage.client,
            self.stage.shop,
            self.stage.notifications.read_ledger(),
            audit(self.stage.database),
        )
        return [finding.what for finding in verdict.findings if not finding.is_right]

    @contextmanager
    def changed(self, table: str, where: str, change: str) -> Iterator[None]:
        """One row with other values; past all triggers, and put back."""
        with self._past_triggers() as connection:
            connection.exec_driver_sql(f"CREATE TABLE saved AS SELECT * FROM {table} WHERE {where}")
            update = f"UPDATE {table} SET {change} WHERE {where} RETURNING ctid::text"
            row = connection.exec_driver_sql(update).scalar_one()
        try:
            yield
        finally:
            with self._past_triggers() as connection:
                connection.exec_driver_sql(f"DELETE FROM {table} WHERE ctid = %s::tid", (row,))
                connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM saved")
                connection.exec_driver_sql("DROP TABLE saved")

    @contextmanager
    def _past_triggers(self) -> Iterator[Connection]:
        with self.stage.database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            yield connection


@pytest.fixture(scope="module")
def finished() -> Iterator[Finished]:
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-")).resolve()
    folder.chmod(0o755)
    give_up, data = threading.Event(), folder / "data"
    try:
        with set_up(data, give_up=give_up) as stage:
            play = Play(stage, Timeline(stage.client, Silence(), give_up), Silence())
            yield Finished(stage, play.perform())
    finally:
        kill_everything(folder)
        remove(data)
        shutil.rmtree(folder)


def test_a_demo_in_which_nothing_was_damaged_is_right(finished: Finished) -> None:
    assert finished.wrong_rows() == []


@pytest.mark.parametrize(
    ("table", "where", "change", "wrong"),
    [
        ("order_desk.stock", "true", "quantity = 0", ["A-7 in stock"]),
        (
            "order_desk.side_effect_log",
            "step = 'deduct_inventory' AND order_id = 'O-1003'",
            "result = NULL",
            ["orders deducted"],
        ),
        (
            "celeriac.runs",
            "run_id = 'O-1001'",
            "status = 'cancelled', result = NULL",
            ["runs completed", "invariants broken"],
        ),
        (
            "celeriac.runs",
            "run_id = 'O-1002'",
            "epoch = epoch - 1",
            ["O-1002, killed in the deduction"],
        ),
        (
            "celeriac.events",
            "run_id = 'O-1002' AND type = 'run.recovered'",
            """data = data || '{"reason": "lease"}'""",
            ["O-1002, killed in the deduction"],
        ),
        (
            "celeriac.runs",
            "run_id = 'O-1005'",
            "finished_at = finished_at - interval '1 hour'",
            ["orders when the broker lost its data"],
        ),
        (
            "celeriac.events",
            "run_id = 'O-1009' AND type = 'run.paused'",
            """data = '{"phase": "waiting_thread"}'""",
            ["O-1009 waited"],
        ),
        (
            "celeriac.events",
            "run_id = 'O-1009' AND type = 'run.woken'",
            "type = 'run.wakened'",
            ["O-1009 waited"],
        ),
        (
            "celeriac.events",
            "run_id = 'O-1007' AND type = 'effect.unknown'",
            "type = 'effect.failed'",
            ["O-1007, whose answer was lost"],
        ),
        (
            "celeriac.effects",
            "run_id = 'O-1007' AND tool = 'notify_shipped'",
            "attempt = 2",
            ["O-1007, whose answer was lost", "invariants broken"],
        ),
        (
            "celeriac.runs",
            "run_id = 'O-1001-again'",
            "result = to_jsonb('Order O-1001, 1 of A-7: DEDUCTED, 9 left in stock'::text)",
            ["O-1001, ordered again"],
        ),
        ("celeriac.events", "run_id = 'O-1001' AND seq = 2", "seq = 102", ["invariants broken"]),
    ],
)
def test_a_row_that_is_not_right_is_found(
    finished: Finished, table: str, where: str, change: str, wrong: list[str]
) -> None:
    with finished.changed(table, where, change):
        assert finished.wrong_rows() == wrong
    assert finished.wrong_rows() == []


def test_a_step_that_the_killed_worker_made_itself_was_not_taken_over(finished: Finished) -> None:
    kill = finished.record.kills[1]
    where = f"run_id = '{kill.order.run_id}' AND step = {kill.step}"
    change = f"worker_id = '{kill.worker_id}'"
    with finished.changed("celeriac.checkpoints", where, change):
        assert finished.wrong_rows() == [
            "O-1008, killed between deduction and notification",
            "ms from kill to next claim",
        ]


def test_a_failover_that_took_too_long_is_wrong(finished: Finished) -> None:
    kill = finished.record.kills[0]
    earlier = kill.killed_at - timedelta(milliseconds=LONGEST_FAILOVER_MS)
    kills = [replace(kill, killed_at=earlier), *finished.record.kills[1:]]

    wrong = finished.wrong_rows(replace(finished.record, kills=kills))

    assert wrong == ["ms from kill to next claim"]


@pytest.mark.parametrize(
    ("table", "wrong"),
    [("deliveries", "customers told"), ("requests", "requests to tell them")],
)
@pytest.mark.parametrize("order_id", ["O-1004", "O-2001"])
def test_what_the_service_did_once_too_often_is_found_in_its_ledger(
    finished: Finished, table: str, wrong: str, order_id: str
) -> None:
    ledger = sqlite3.connect(finished.stage.notifications.ledger_file, isolation_level=None)
    body = json.dumps({"order_id": order_id, "sku": "A-7", "quantity": 1})
    ledger.execute(f"INSERT INTO {table} (idempotency_key, body) VALUES ('other', ?)", (body,))
    try:
        assert finished.wrong_rows() == [wrong]
    finally:
        ledger.execute(f"DELETE FROM {table} WHERE idempotency_key = 'other'")
        ledger.close()
