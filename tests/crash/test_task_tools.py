"""Tasks of a Celery application as tools, with the workers of both sides killed in the middle."""

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen

import pytest
from celery import Celery

from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone
from tests.crash import task_shop
from tests.crash.stack import DONE_SECONDS, Stack
from tests.processes import START_SECONDS, Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

AGENTS = task_shop.__name__


class BoxOffice(Stack):
    """The stack beside the workers of a box office that knows nothing of it."""

    def __init__(
        self, database: Database, broker: TestBroker, processes: Processes, folder: Path
    ) -> None:
        super().__init__(database, broker, processes)
        self.execute(task_shop.TABLES)
        self._folder = folder
        self._app = Celery("looking", backend=processes.environment["BOX_RESULTS"])

    def start_box_worker(self) -> TestProcess:
        name = f"box-{len(self.processes.started)}"
        output_path = self._folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", AGENTS, "worker", "--pool", "threads"]
        with output_path.open("wb") as output:
            popen = Popen(
                [*command, "--concurrency", "1", "--hostname", f"{name}@%h", "--loglevel", "INFO"],
                cwd=self._folder,
                env=self.processes.environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,
            )
        process = TestProcess(name, popen, output_path)
        self.processes.started.append(process)
        eventually(
            lambda: " ready." in process.output,
            deadline_seconds=START_SECONDS,
            what=f"{name} ready",
        )
        return process

    def start_worker(self, *, test_points: str = "", **settings: object) -> TestProcess:
        return self.processes.start_worker(AGENTS, test_points=test_points, **settings)

    def ledger(self, run_id: str) -> list[str]:
        """What tasks of this run wrote down, whichever worker executed them."""
        rows = self.query("SELECT line FROM box.ledger WHERE task_id = %s", key(run_id))
        return [line for (line,) in rows]

    def wait_for_ledger(self, run_id: str, lines: int = 1) -> list[str]:
        return eventually(
            lambda: self.ledger(run_id),
            until=lambda seen: len(seen) >= lines,
            deadline_seconds=DONE_SECONDS,
            what=f"{lines} lines of {run_id}",
        )

    def open(self, gate: str) -> None:
        self.query("INSERT INTO box.gates VALUES (%s) RETURNING name", gate)

    def state(self, run_id: str) -> EffectState:
        (effect,) = self.run(run_id).effects
        return EffectState(effect.state)

    def celery_state(self, run_id: str) -> str:
        return str(self._app.AsyncResult(key(run_id)).state)


def key(run_id: str) -> str:
    return f"default:{run_id}:0.0"


@pytest.fixture
def results() -> str:
    """Which result backend the box office has; `redis` is its broker."""
    return "redis"


@pytest.fixture
def office(
    database: Database,
    leased_broker: TestBroker,
    processes: Processes,
    results: str,
    tmp_path: Path,
) -> Iterator[BoxOffice]:
    is_database = results == "database"
    address = database.url.replace("postgresql://", "db+postgresql+psycopg://")
    processes.environment["BOX_RESULTS"] = address if is_database else leased_broker.url
    office = BoxOffice(database, leased_broker, processes, tmp_path)
    office.start_scheduler()
    yield office
    office.client.close()


@pytest.mark.parametrize("results", ["redis", "database"])
def test_a_task_is_called_once_by_the_key_of_the_call(office: BoxOffice) -> None:
    office.start_box_worker()
    office.start_worker()

    run = office.completed(office.start("booker"))

    assert office.ledger(run.run_id) == ["Hamlet 2"]
    assert office.state(run.run_id) is EffectState.COMMITTED
    assert office.celery_state(run.run_id) == "SUCCESS"
    assert office.violations() == []


def test_a_call_whose_worker_is_killed_is_waited_for_by_the_next(office: BoxOffice) -> None:
    office.start_box_worker()
    first = office.start_worker()
    run_id = office.start("printer")
    office.wait_for_ledger(run_id)

    first.kill_group()
    office.start_worker()
    office.wait_until(run_id, step=1)
    office.open("paper")

    run = office.completed(run_id)
    assert office.ledger(run_id) == ["begun", "done"]
    assert (run.deaths, office.state(run_id)) == (1, EffectState.COMMITTED)
    assert office.violations() == []


def test_a_task_that_ended_while_nobody_waited_is_not_sent_again(office: BoxOffice) -> None:
    office.start_box_worker()
    first = office.start_worker()
    run_id = office.start("printer")
    office.wait_for_ledger(run_id)

    first.kill_group()
    office.open("paper")
    office.wait_for_ledger(run_id, lines=2)
    office.start_worker()

    office.completed(run_id)
    assert office.ledger(run_id) == ["begun", "done"]


def test_what_nobody_knows_is_for_a_person_and_then_sent_under_the_same_id(
    office: BoxOffice,
) -> None:
    office.start_box_worker()
    office.start_worker(test_points="act.before_call@1=kill")
    run_id = office.start("careful")
    office.start_worker()

    run = office.wait(run_id)
    assert (run.status, office.state(run_id)) == (RunStatus.NEEDS_ATTENTION, EffectState.UNKNOWN)
    assert "the result backend knows nothing of it" in str(run.error)
    assert office.ledger(run_id) == []

    office.open("paper")
    office.client.resolve(run_id, "0.0", NotDone())

    office.completed(run_id)
    assert office.ledger(run_id) == ["begun", "done"]


def test_a_task_whose_own_worker_is_killed_in_its_middle_is_for_a_person(
    office: BoxOffice,
) -> None:
    box = office.start_box_worker()
    office.start_worker()
    run_id = office.start("careful")
    office.wait_for_ledger(run_id)

    box.kill_group()
    office.start_box_worker()

    run = office.wait(run_id)
    assert (run.status, office.state(run_id)) == (RunStatus.NEEDS_ATTENTION, EffectState.UNKNOWN)
    assert office.ledger(run_id) == ["begun"]


def test_what_a_task_raises_says_whether_it_changed_something(office: BoxOffice) -> None:
    office.start_box_worker()
    office.start_worker()

    refused, broken, peeking = (office.start(name) for name in ("refused", "broken", "peeking"))

    office.completed(refused)
    assert office.state(refused) is EffectState.FAILED
    office.completed(peeking)
    assert office.state(peeking) is EffectState.FAILED
    run = office.wait(broken)
    assert (run.status, office.state(broken)) == (RunStatus.NEEDS_ATTENTION, EffectState.UNKNOWN)
    assert "the printer jammed" in str(run.error)


def test_a_task_that_nobody_began_in_time_is_not_begun_later(office: BoxOffice) -> None:
    office.start_box_worker()
    office.start_worker()
    first = office.start("printer")
    office.wait_for_ledger(first)
    late = office.start("hasty")
    eventually(
        lambda: office.state(late),
        until=lambda state: state is EffectState.UNKNOWN,
        deadline_seconds=DONE_SECONDS,
        what="the call given up",
    )

    office.open("paper")

    office.completed(late)
    assert (office.state(late), office.ledger(late)) == (EffectState.FAILED, [])
    assert office.ledger(first) == ["begun", "done"]
    assert office.celery_state(late) == "REVOKED"


def test_cancelling_revokes_a_task_that_no_worker_has_begun(office: BoxOffice) -> None:
    box = office.start_box_worker()
    office.start_worker()
    begun = office.start("printer")
    office.wait_for_ledger(begun)
    waiting = office.start("booker")
    eventually(
        lambda: office.state(waiting),
        until=lambda state: state is EffectState.IN_FLIGHT,
        deadline_seconds=DONE_SECONDS,
        what="the call in flight",
    )

    for run_id in (begun, waiting):
        office.client.cancel(run_id)
    eventually(
        lambda: box.output.count("Tasks flagged as revoked"),
        until=lambda count: count >= 2,
        deadline_seconds=DONE_SECONDS,
        what="both revoked",
    )
    office.open("paper")

    assert office.wait(waiting).status is RunStatus.CANCELLED
    assert (office.state(waiting), office.ledger(waiting)) == (EffectState.FAILED, [])
    # What was begun went on to its end, and is known to have done what it did.
    assert office.wait(begun).status is RunStatus.CANCELLED
    assert (office.state(begun), office.ledger(begun)) == (EffectState.COMMITTED, ["begun", "done"])
    assert office.violations() == []
