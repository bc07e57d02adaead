"""The refund desk of `examples/` on a stack; the payment service's ledger counts from outside.

All workers of `keep_workers` are armed alike, with every place; a file for each says that it has
acted already, and `arm` takes away those of the next case. So a killed worker need not be replaced
by one that is armed otherwise before the next case begins.
"""

from collections.abc import Sequence
from pathlib import Path

from celeriac.reports import Effect, Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from examples import refund_desk as desk
from tests.crash import refund_agents as agents
from tests.crash.stack import DONE_SECONDS, Stack
from tests.payments import PaymentService
from tests.processes import Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

PROPOSE, REFUND, TELL = 2, 3, 5
"""Steps: the model asks for the refund, the refund, the letter to the customer."""

POINTS = {
    PROPOSE: ["step.before_commit", "step.after_commit"],
    REFUND: [
        "step.before_claim",
        "step.after_claim",
        "step.after_load",
        "act.before_in_flight",
        "act.before_call",
        "act.after_call",
        "act.after_verify",
        "act.after_recovery",
        "step.before_commit",
        "step.after_commit",
        "step.before_publish",
        "step.after_publish",
    ],
    TELL: ["act.after_tool"],
}
PLACES = [f"{point}@{step}" for step, points in POINTS.items() for point in points]

VISIBILITY_SECONDS = 1.0
CENTS = 18_50
REQUESTED = "18.50"


class RefundDesk(Stack):
    """The example on a stack whose workers can be killed at any of `PLACES`."""

    WORKERS = 3

    def __init__(
        self,
        database: Database,
        broker: TestBroker,
        processes: Processes,
        service: PaymentService,
    ) -> None:
        super().__init__(database, broker, processes)
        self.service = service
        processes.environment |= {
            "REFUND_DESK_PAYMENT_URL": service.address,
            "REFUND_DESK_VISIBILITY_SECONDS": str(VISIBILITY_SECONDS),
        }
        self._reached = Path(processes.environment["CELERIAC_TEST_POINTS_DIR"])
        self.workers: list[TestProcess] = []
        self.execute(desk.TABLES)
        self.client.set_principal("alice", roles=["refunds"], by="root")

    def arm(self, places: Sequence[str]) -> None:
        """From now on a worker dies at each of these places once, and at no other."""
        for place in PLACES:
            (self._reached / place).touch()
        for place in places:
            (self._reached / place).unlink()

    def keep_workers(self) -> None:
        """Start workers in the place of killed ones; returns when two are ready."""
        self.workers = [worker for worker in self.workers if worker.is_running]
        points = ",".join(f"{place}=kill" for place in PLACES)
        settings = {"agents": agents.__name__}
        while len(self.workers) < self.WORKERS:
            self.workers.append(
                self.processes.start(["worker"], test_points=points, settings=settings)
            )
        eventually(
            lambda: sum(bool(self.processes.worker_ids(worker)) for worker in self.workers),
            until=lambda ready: ready >= 2,
            deadline_seconds=DONE_SECONDS,
            what="two workers ready",
        )

    def propose(self, agent: str, order_id: str) -> str:
        """Start a run; returns when it waits for a person to agree to the refund."""
        run_id = self.start(agent, {"order_id": order_id, "amount": REQUESTED})
        self.wait_until(run_id, step=REFUND, status=RunStatus.PAUSED)
        return run_id

    def approve(self, run_id: str) -> None:
        (proposal,) = self.client.approvals(run_id=run_id, by="alice")
        self.client.approve(proposal.approval_id, by="alice", hash=proposal.arguments_hash)

    def letters(self, order_id: str) -> list[str]:
        rows = self.query("SELECT body FROM refund_desk.letters WHERE order_id = %s", order_id)
        return [body for (body,) in rows]

    def assert_refunded_once(self, run: Run, order_id: str) -> None:
        """By the service's ledger, by the run, and by the customer's mail."""
        assert run.status is RunStatus.COMPLETED, run
        (refund,) = self.service.refunds(order_id)
        effect = refund_effect(run)
        assert (refund.cents, refund.key) == (CENTS, effect.key)
        assert effect.state is EffectState.COMMITTED
        assert [step.step for step in run.steps] == list(range(7))
        assert self.letters(order_id) == [f"We have refunded 18.50 EUR of your order {order_id}."]
        (approval,) = self.query(
            "SELECT status, arguments_hash, consumed_by_attempt FROM celeriac.approvals"
            " WHERE run_id = %s",
            run.run_id,
        )
        assert approval[0] == "approved"
        assert approval[2] is not None
        assert self.violations() == []


def refund_effect(run: Run) -> Effect:
    """The effect that moves the money."""
    (effect,) = (effect for effect in run.effects if effect.tool == "issue_refund")
    return effect
