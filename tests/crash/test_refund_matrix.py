"""An approved refund, its worker killed at each named point, under each fault of the service.

Each case is one kill point with all faults, kept and ignored keys, and ways of finding out at once:
their refunds gather at the point, in the slots of one worker, and then that worker is killed. The
payment service's own ledger is the evidence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from signal import SIGKILL

import pytest

from celeriac.ids import DEFAULT_TENANT, call_id, effect_key
from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone, Resolution, TookEffect
from tests.crash.nursery import Nursery
from tests.crash.refunds import PROPOSE, REFUND, TELL, RefundDesk, refund_effect
from tests.crash.stack import started_processes
from tests.payments import PaymentService, payment_service
from tests.processes import Processes, TestProcess
from tests.servers import DatabaseServer, lease_broker
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)

GATHER_SECONDS = 90.0  # a few on a quiet machine

FAULTS: dict[str, Mapping[str, object]] = {
    "sound": {},
    "drops": {"drops_response": True},
    "slow": {"answers_after_seconds": 4.0},  # longer than the desk waits
    "late": {"applies_after_seconds": 0.3},
    "pretends": {"pretends": True},
    "down": {"is_down": True},
}
"""Those that hide what was done (`drops`, `slow`, `down`) are over once it is unknown: who sends
the same key again meets a sound service."""

# What the ledger counts in the end. With "?" a person is asked first, and it counts that much then.
OUTCOMES = """
declared  killed       sound  drops  slow  late  pretends  down
verify    around it    1      1      1     1     ?0        1
verify    before it    1      1      1     1     ?0        1
verify    during it    1      1      1     1     ?0        1
resend    around it    1      1      1     1     0         1
resend    before it    1      1      1     1     0         1
resend    during it    1      1      1     1     0         1
ask       around it    1      ?1     ?1    1     0         ?0
ask       before it    ?0     ?0     ?0    ?0    ?0        ?0
ask       during it    ?1     ?1     ?1    ?1    ?0        ?0
"""
"""By what the tool declares, and by what the kill left: nothing begun or everything committed, a
call that is recorded and not made, or one that was made and whose outcome is not recorded."""

AGENTS = {
    "verify": "refund-desk",
    "resend": "refund-desk-resending",
    "ask": "refund-desk-asking",
}

BEFORE_IT = ["act.before_call"]
DURING_IT = ["act.after_call", "act.after_verify", "step.before_commit"]
EVERYWHERE = [
    "step.before_claim",
    "step.after_claim",
    "step.after_load",
    "act.before_in_flight",
    *BEFORE_IT,
    *DURING_IT,
    "act.after_recovery",
    "step.after_commit",
    "step.before_publish",
    "step.after_publish",
]


@dataclass(frozen=True)
class Refund:
    """One cell of the matrix."""

    declared: str
    fault: str
    honours_keys: bool

    def __str__(self) -> str:
        return f"{self.declared}, {self.fault}, keys {'kept' if self.honours_keys else 'ignored'}"

    @property
    def faults(self) -> dict[str, object]:
        return {"honours_keys": self.honours_keys, **FAULTS[self.fault]}

    @property
    def returns(self) -> bool:
        """Whether the call comes to a good end, as far as the tool can see."""
        return self.fault in ("sound", "late", "pretends")

    def outcome(self, killed: str) -> str:
        lines = [line.split() for line in OUTCOMES.strip().splitlines()]
        (row,) = (line for line in lines[1:] if line[:2] == [self.declared, killed])
        return row[3 + list(FAULTS).index(self.fault)]

    def comes_to(self, point: str) -> bool:
        """Whether the call gets there when nobody was killed before."""
        match point:
            case "act.after_verify":
                return self.declared == "verify" and self.returns
            case "act.after_recovery":
                # What is applied late may be there when the worker first looks, on a busy machine.
                is_checked = self.declared == "verify" and self.fault not in ("sound", "late")
                return is_checked or (self.declared == "resend" and not self.returns)
            case "step.before_publish" | "step.after_publish":
                return not self.outcome("around").startswith("?")
        return True


# Where nothing is declared and keys are ignored, only a person can keep it from being sent twice:
# "resend" would be a lie there (the last test).
MATRIX = [
    Refund(declared, fault, honours_keys)
    for declared in AGENTS
    for fault in FAULTS
    for honours_keys in ((True,) if declared == "resend" else (True, False))
]
VERIFIED = [cell for cell in MATRIX if cell.declared == "verify" and not cell.honours_keys]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaymentService]:
    with payment_service(tmp_path_factory.mktemp("ledger") / "payments.sqlite3") as service:
        yield service


@pytest.fixture(scope="module")
def desk_of_module(
    database_server: DatabaseServer,
    service: PaymentService,
    nursery: Nursery,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RefundDesk]:
    folder = tmp_path_factory.mktemp("refunds")
    with (
        database_server.database(migrated=True) as url,
        lease_broker("redis") as broker,
    ):
        database = Database(url, connections=8)
        with started_processes(database, broker, folder, nursery) as processes:
            desk = RefundDesk(database, broker, processes, service)
            desk.start_scheduler()
            yield desk
            desk.client.close()
        database.close()


@pytest.fixture
def processes(desk_of_module: RefundDesk) -> Iterator[Processes]:
    """The shared processes, without the workers of the case before."""
    yield desk_of_module.processes
    for worker in desk_of_module.processes.started[1:]:
        worker.kill_group()
    del desk_of_module.processes.started[1:]
    desk_of_module.processes.rearm()


@pytest.fixture
def desk(desk_of_module: RefundDesk, processes: Processes) -> RefundDesk:  # noqa: ARG001 - see it
    return desk_of_module


class Case:
    """Refunds, one for each cell, that gather at the same places while workers are killed there."""

    def __init__(self, desk: RefundDesk, cells: Sequence[Refund], places: Sequence[str]) -> None:
        self.desk = desk
        self.cells = list(cells)
        self.places = list(places)
        self.orders = [desk.service.paid_order() for _ in cells]
        self.run_ids: list[str] = []
        self._hidden: set[str] = set()
        self._deaths = 0

    def go_through(self) -> None:
        """Until each run has ended or waits for a person, after a kill at each of the places."""
        worker = self._start_worker()
        eventually(
            lambda: self.desk.processes.worker_ids(worker),
            deadline_seconds=GATHER_SECONDS,
            what="a worker that has registered the agents",
        )
        self.run_ids = [
            self.desk.start_refund(AGENTS[cell.declared], order)
            for cell, order in zip(self.cells, self.orders, strict=True)
        ]
        if self._next_step == PROPOSE:
            worker = self._kill_at_next_place(worker)
        eventually(
            lambda: self.desk.query(
                "SELECT count(*) FROM celeriac.runs"
                " WHERE run_id = ANY (%s) AND phase = 'waiting_approval'",
                self.run_ids,
            ),
            until=lambda rows: rows == [(len(self.cells),)],
            deadline_seconds=GATHER_SECONDS,
            what="all refunds proposed",
        )
        for cell, key in zip(self.cells, self.keys, strict=True):
            self.desk.service.misbehave(key=key, **cell.faults)
        for cell, run_id in zip(self.cells, self.run_ids, strict=True):
            if not cell.returns:
                self._hidden.add(run_id)
            self.desk.approve(run_id)
        while self.places:
            worker = self._kill_at_next_place(worker)
        eventually(
            self._end_faults, deadline_seconds=GATHER_SECONDS, what="each hidden outcome unknown"
        )
        self.desk.wait_until_at_rest(self.run_ids)
        eventually(self._has_applied_all, deadline_seconds=GATHER_SECONDS, what="late refunds made")

    @property
    def keys(self) -> list[str]:
        call = call_id(PROPOSE, 0)
        return [effect_key(DEFAULT_TENANT, run_id, call) for run_id in self.run_ids]

    @property
    def found(self) -> dict[str, str]:
        """How each cell ended, written as in `OUTCOMES`."""
        return {
            str(cell): ("" if run.status is RunStatus.COMPLETED else "?") + str(count)
            for cell, run, count in zip(
                self.cells, map(self.desk.run, self.run_ids), self._ledger(), strict=True
            )
        }

    def assert_told_as_it_is(self) -> None:
        """Ask the person where a cell waits for one; then each customer got what the letter says,
        once, or nothing."""
        for run_id, order in zip(self.run_ids, self.orders, strict=True):
            run = self.desk.run(run_id)
            if run.status is RunStatus.NEEDS_ATTENTION:
                self._answer(run_id, order)
        self.desk.wait_until_at_rest(self.run_ids)
        for cell, run_id, order in zip(self.cells, self.run_ids, self.orders, strict=True):
            run = self.desk.run(run_id)
            assert run.status is RunStatus.COMPLETED, f"{cell}: {run}"
            if refund_effect(run).state is EffectState.COMMITTED:
                self.desk.assert_told_once(run, order)
                if cell.fault != "late":  # of what it makes later, it has no id to answer with
                    for refund in self.desk.service.refunds(order):
                        assert str(run.result).endswith(f"were refunded as {refund.refund_id}.")
            else:
                assert str(run.result).startswith(f"Order {order}: nothing was refunded")
                assert self.desk.letters(order) == []
        assert self.desk.violations() == []

    def _answer(self, run_id: str, order: str) -> None:
        """Look at the ledger as a person would, and say what it says."""
        effect = refund_effect(self.desk.run(run_id))
        self.desk.service.misbehave(key=effect.key, honours_keys=False)
        made = self.desk.service.refunds(order)
        answer: Resolution = NotDone()
        if made:
            answer = TookEffect({"refund_id": made[0].refund_id, "amount": "18.50"})
        self.desk.client.resolve(run_id, effect.call_id, answer)

    def _has_applied_all(self) -> bool:
        """Whether the service has done what it accepts at once and does later."""
        late = [
            order
            for cell, order in zip(self.cells, self.orders, strict=True)
            if cell.fault == "late" and self.desk.service.keys_asked_with(order)
        ]
        made = {row["order_id"] for row in self.desk.service.rows("refunds")}
        return made.issuperset(late)

    def _ledger(self) -> list[int]:
        made = [row["order_id"] for row in self.desk.service.rows("refunds")]
        return [made.count(order) for order in self.orders]

    @property
    def _next_step(self) -> int | None:
        return int(self.places[0].partition("@")[2]) if self.places else None

    def _start_worker(self) -> TestProcess:
        """In which all calls can stand at the next place: at a commit, each with a connection."""
        settings = {}
        points = f"{self.places[0]}=hold" if self.places else ""
        if points.startswith("step.before_commit"):
            settings = {"active_steps": 40, "connections": 44}
        return self.desk.start_desk_worker(test_points=points, **settings)

    def _kill_at_next_place(self, worker: TestProcess) -> TestProcess:
        """Wait for all that get there, kill the worker, and start the one that takes over."""
        place = self.places.pop(0)
        eventually(
            lambda: self._have_gathered(place),
            deadline_seconds=GATHER_SECONDS,
            what=f"all refunds at {place} that get there, and the others at rest",
        )
        worker.kill_group()
        assert worker.wait() == -SIGKILL
        self._deaths += 1
        return self._start_worker()

    def _have_gathered(self, place: str) -> bool:
        point = place.partition("@")[0]
        others = [  # after a death during the call, each one is recovered
            run_id
            for cell, run_id in zip(self.cells, self.run_ids, strict=True)
            if not self._deaths and not cell.comes_to(point)
        ]
        self._end_faults()
        expected = len(self.cells) - len(others) + len(self.desk.moving(others))
        return self.desk.processes.held(place) >= expected

    def _end_faults(self) -> bool:
        """End the faults that have done their harm; whether none is left."""
        if self._hidden:
            unknown = self.desk.query(
                "SELECT run_id FROM celeriac.effects WHERE run_id = ANY (%s)"
                " AND tool = 'issue_refund' AND state IN ('unknown', 'committed')",
                sorted(self._hidden),
            )
            for (run_id,) in unknown:
                index = self.run_ids.index(run_id)
                honours_keys = self.cells[index].honours_keys
                self.desk.service.misbehave(key=self.keys[index], honours_keys=honours_keys)
                self._hidden.discard(run_id)
        return not self._hidden


def killed(point: str) -> str:
    return "before" if point in BEFORE_IT else "during" if point in DURING_IT else "around"


# features: 000-11, 000-13, 002-19, 002-20, 004-15, 004-20, 004-32, 004-33
@pytest.mark.parametrize(
    "place",
    [
        f"step.before_commit@{PROPOSE}",
        f"step.after_commit@{PROPOSE}",
        *(f"{point}@{REFUND}" for point in EVERYWHERE),
    ],
)
def test_money_goes_back_once_or_a_person_is_asked_and_never_twice(
    desk: RefundDesk, place: str
) -> None:
    point, _, step = place.partition("@")
    case = Case(desk, MATRIX, [place])

    case.go_through()

    left = {
        cell: killed(point) if int(step) == REFUND and cell.comes_to(point) else "around"
        for cell in MATRIX
    }
    assert case.found == {str(cell): cell.outcome(left[cell]) for cell in MATRIX}
    case.assert_told_as_it_is()


# features: 004-20
@pytest.mark.parametrize(
    "points",
    [
        ("act.before_call", "act.after_call"),
        ("act.before_call", "act.after_recovery"),
        ("act.after_call", "act.after_recovery"),
    ],
    ids="+".join,
)
def test_money_goes_back_once_if_who_takes_over_dies_as_well(
    desk: RefundDesk, points: Sequence[str]
) -> None:
    case = Case(desk, VERIFIED, [f"{point}@{REFUND}" for point in points])

    case.go_through()

    assert case.found == {str(cell): cell.outcome("during") for cell in VERIFIED}
    case.assert_told_as_it_is()


def test_a_death_while_the_customer_is_told_repeats_neither_the_refund_nor_the_letter(
    desk: RefundDesk,
) -> None:
    place = f"act.after_tool@{TELL}"
    worker = desk.start_desk_worker(test_points=f"{place}=kill")
    eventually(
        lambda: desk.processes.worker_ids(worker),
        deadline_seconds=GATHER_SECONDS,
        what="a worker that has registered the agents",
    )
    order = desk.service.paid_order()
    run_id = desk.propose(AGENTS["verify"], order)
    desk.service.misbehave(key=effect_key(DEFAULT_TENANT, run_id, "2.0"), honours_keys=False)
    desk.approve(run_id)

    assert worker.wait(GATHER_SECONDS) == -SIGKILL
    desk.start_desk_worker()

    assert desk.processes.reached(place)
    desk.assert_refunded_once(desk.completed(run_id), order)


# features: 000-13, 004-20
def test_sending_again_is_only_as_safe_as_the_services_promise_about_keys(desk: RefundDesk) -> None:
    """Why `on_unknown="resend"` is no default."""
    broken, kept = (Refund("resend", "sound", honours_keys) for honours_keys in (False, True))
    case = Case(desk, [broken, kept], [f"act.after_call@{REFUND}"])

    case.go_through()

    assert case.found == {str(broken): "2", str(kept): "1"}
    for key, order in zip(case.keys, case.orders, strict=True):
        assert desk.service.keys_asked_with(order) == [key, key]
    assert desk.violations() == []
