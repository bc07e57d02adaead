"""A rollback's workers are killed at each point, and every call is undone once."""

# features: 004-38, 004-39
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.reports import Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from celeriac_storage.resolving import TookEffect
from tests.crash import undo_agents as agents
from tests.crash.nursery import Nursery
from tests.crash.stack import DONE_SECONDS, Stack, started_processes
from tests.processes import Processes, TestProcess
from tests.servers import DatabaseServer, TestBroker, lease_broker
from tests.waiting import eventually

PLAN, UNDO, REPORT = 0, 1, 2
BEGIN = ["step.before_claim", "step.after_claim", "step.after_load"]
END = ["step.before_commit", "step.after_commit", "step.before_publish", "step.after_publish"]
IN_TRANSACTION = [*BEGIN, "act.before_tool", "act.after_tool", *END]
ELSEWHERE = [
    *BEGIN,
    "act.before_in_flight",
    "act.before_call",
    "act.after_call",
    "act.after_verify",
    *END,
]
CASES = [
    *(("take", f"{point}@{UNDO}") for point in IN_TRANSACTION),
    *(("take", f"{point}@{PLAN}") for point in [*BEGIN, *END]),
    *(("take", f"{point}@{REPORT}") for point in [*BEGIN, *END[:2]]),
    *(("book", f"{point}@{UNDO}") for point in ["act.after_tool", *END[:2]]),
    *(("ship", f"{point}@{UNDO}") for point in ELSEWHERE),
    *(("send", f"{point}@{UNDO}") for point in ELSEWHERE[3:-2]),
]


PLACES = sorted({place for _, place in CASES} | {f"act.after_call@{UNDO + 1}"})


class Undoing(Stack):
    """A stack with a scheduler and workers that are all armed alike, with every place; a file for
    each says that it has acted already, and `arm` takes away that of the case."""

    def __init__(self, database: Database, broker: TestBroker, processes: Processes) -> None:
        super().__init__(database, broker, processes)
        self.workers: list[TestProcess] = []
        self._reached = Path(processes.environment["CELERIAC_TEST_POINTS_DIR"])
        self.execute(agents.CREATE_TABLES)
        self.arm("")
        self.start_scheduler()

    def arm(self, place: str) -> None:
        """From now on a worker dies at this place, once, and at no other."""
        for each in PLACES:
            (self._reached / each).touch()
        if place:
            (self._reached / place).unlink()

    def keep_workers(self) -> None:
        """Start workers in the place of killed ones; returns when two are ready."""
        self.workers = [worker for worker in self.workers if worker.is_running]
        points = ",".join(f"{place}=kill" for place in PLACES)
        while len(self.workers) < 3:
            self.workers.append(
                self.processes.start(
                    ["worker"], test_points=points, settings={"agents": agents.__name__}
                )
            )
        eventually(
            lambda: sum(bool(self.processes.worker_ids(worker)) for worker in self.workers),
            until=lambda ready: ready >= 2,
            deadline_seconds=DONE_SECONDS,
            what="two workers ready",
        )

    def carrier(self, run_id: str) -> list[str]:
        rows = self.query(
            "SELECT what FROM crash.carrier WHERE key LIKE %s ORDER BY asked_at", f"%:{run_id}:%"
        )
        return [what for (what,) in rows]


@pytest.fixture(scope="module")
def shared(
    database_server: DatabaseServer, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Undoing]:
    folder = tmp_path_factory.mktemp("undoing")
    with database_server.database(migrated=True) as url, lease_broker("redis") as broker:
        database = Database(url, connections=8)
        with started_processes(database, broker, folder, nursery) as processes:
            stack = Undoing(database, broker, processes)
            yield stack
            stack.client.close()
        database.close()


@pytest.fixture
def processes(shared: Undoing) -> Processes:
    return shared.processes


@pytest.fixture
def undoing(
    shared: Undoing,
    processes: Processes,  # noqa: ARG001 - shown if the test fails
) -> Undoing:
    return shared


def rolled_back(stack: Undoing, agent: str, place: str) -> tuple[str, Run]:
    """A completed run, and its rollback, in which a worker died at the place."""
    stack.arm("")
    stack.keep_workers()
    run_id = stack.start(agent)
    stack.completed(run_id)
    stack.arm(place)
    rollback = stack.client.rollback(run_id, by="alice")
    eventually(
        lambda: stack.processes.reached(place),
        deadline_seconds=DONE_SECONDS,
        what=f"a worker's death at {place}",
    )
    return run_id, stack.wait(rollback.run_id)


@pytest.mark.parametrize(("agent", "place"), CASES)
def test_a_death_anywhere_in_a_rollback_undoes_the_call_once(
    undoing: Undoing, agent: str, place: str
) -> None:
    pieces, booked = counted(undoing)

    run_id, rollback = rolled_back(undoing, agent, place)

    kind = "compensated" if agent in ("book", "send") else "undone"
    assert rollback.status is RunStatus.COMPLETED, rollback
    assert rollback.result[kind] == [{"call_id": "0.0", "tool": agent}]  # type: ignore[index, call-overload]  # JSON
    (effect,) = undoing.run(run_id).effects
    assert effect.state is (
        EffectState.COMMITTED if kind == "compensated" else EffectState.ROLLED_BACK
    )
    assert counted(undoing) == (pieces, booked)
    assert undoing.carrier(run_id) == (["ship", "call back"] if agent in ("ship", "send") else [])
    assert undoing.violations() == []


def counted(stack: Stack) -> tuple[int, int]:
    """Pieces in stock, and the sum of all bookings."""
    (row,) = stack.query(
        "SELECT pieces, (SELECT coalesce(sum(cents), 0)::int FROM crash.bookings) FROM crash.stock"
    )
    return int(row[0]), int(row[1])


# features: 004-40, 004-60
def test_a_rollback_drill(undoing: Undoing) -> None:
    """Everything that a run can do, undone with a worker dying in each undo, and what people must
    do said by them. What is left is in rows."""
    pieces, booked = counted(undoing)
    undoing.arm("")
    undoing.keep_workers()
    run_id = undoing.start("everything")
    undoing.completed(run_id)
    undoing.arm("step.before_commit@1")

    rollback_id = undoing.client.rollback(run_id, by="alice").run_id
    asked = undoing.wait(rollback_id)

    assert asked.status is RunStatus.NEEDS_ATTENTION
    assert [effect.tool for effect in asked.effects] == [
        "mail.undo", "publish.undo", "ship.undo", "book.undo", "take.undo",
    ]  # fmt: skip
    assert undoing.carrier(run_id) == ["ship", "publish", "mail"], "the earlier ones wait"
    undoing.keep_workers()
    undoing.arm("act.after_call@2")
    undoing.client.resolve(rollback_id, asked.effects[0].call_id, TookEffect("torn up"), by="bob")
    undoing.completed(rollback_id)

    report = undoing.run(rollback_id).result
    assert report == {
        "undone": [
            {"call_id": "8.0", "tool": "mail"},
            {"call_id": "4.0", "tool": "ship"},
            {"call_id": "0.0", "tool": "take"},
        ],
        "compensated": [{"call_id": "2.0", "tool": "book"}],
        "not_undone": [{"call_id": "6.0", "tool": "publish", "why": "it cannot be taken back"}],
    }
    assert undoing.processes.reached("act.after_call@2")
    assert undoing.carrier(run_id) == ["ship", "publish", "mail", "call back"]
    assert counted(undoing) == (pieces, booked)
    resolved = undoing.query(
        "SELECT data ->> 'by' FROM celeriac.events WHERE run_id = %s AND type = 'effect.resolved'",
        rollback_id,
    )
    assert resolved == [("bob",)]
    assert undoing.violations() == []
