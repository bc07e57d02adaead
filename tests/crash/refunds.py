"""The refund desk of `examples/` on a stack; the payment service's ledger counts from outside."""

from collections.abc import Sequence

from celeriac.reports import Effect, Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from examples import refund_desk as desk
from tests.crash import refund_agents as agents
from tests.crash.stack import Stack
from tests.payments import PaymentService
from tests.processes import Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

PROPOSE, REFUND, TELL = 2, 3, 5
"""Steps: the model asks for the refund, the refund, the letter to the customer."""

VISIBILITY_SECONDS = 1.5
CENTS = 18_50
REQUESTED = "18.50"


class RefundDesk(Stack):
    """The example on a stack, and what it came to for the customer."""

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
        self.execute(desk.TABLES)
        self.client.set_principal("alice", roles=["refunds"], by="root")

    def start_desk_worker(self, **settings: object) -> TestProcess:
        return self.processes.start(
            ["worker"],
            test_points=str(settings.pop("test_points", "")),
            settings={"agents": agents.__name__, **settings},
        )

    def propose(self, agent: str, order_id: str) -> str:
        """Start a run; returns when it waits for a person to agree to the refund."""
        run_id = self.start_refund(agent, order_id)
        self.wait_until(run_id, step=REFUND, status=RunStatus.PAUSED)
        return run_id

    def start_refund(self, agent: str, order_id: str) -> str:
        return self.start(agent, {"order_id": order_id, "amount": REQUESTED})

    def approve(self, run_id: str) -> None:
        (proposal,) = self.client.approvals(run_id=run_id, by="alice")
        self.client.approve(proposal.approval_id, by="alice", hash=proposal.arguments_hash)

    def wait_until_at_rest(self, run_ids: Sequence[str]) -> None:
        """Until each run has ended or waits for a person."""
        eventually(
            lambda: self.moving(run_ids),
            until=lambda moving: not moving,
            deadline_seconds=90,
            what="all runs at rest",
        )

    def moving(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs that have not ended and do not wait for a person."""
        rows = self.query(
            "SELECT run_id FROM celeriac.runs WHERE run_id = ANY (%s)"
            " AND (status IN ('queued', 'running')"
            " OR status = 'paused' AND phase <> 'waiting_approval')",
            list(run_ids),
        )
        return [run_id for (run_id,) in rows]

    def letters(self, order_id: str) -> list[str]:
        rows = self.query("SELECT body FROM refund_desk.letters WHERE order_id = %s", order_id)
        return [body for (body,) in rows]

    def assert_refunded_once(self, run: Run, order_id: str) -> None:
        """By the service's ledger, by the run, and by the customer's mail."""
        assert run.status is RunStatus.COMPLETED, run
        (refund,) = self.service.refunds(order_id)
        effect = refund_effect(run)
        assert (refund.cents, refund.key) == (CENTS, effect.key)
        assert run.result == f"Order {order_id}: 18.50 EUR were refunded as {refund.refund_id}."
        self.assert_told_once(run, order_id)
        assert self.violations() == []

    def assert_told_once(self, run: Run, order_id: str) -> None:
        """The run has gone through all its steps, on one decision, used once."""
        assert refund_effect(run).state is EffectState.COMMITTED
        assert [step.step for step in run.steps] == list(range(7))
        assert self.letters(order_id) == [f"We have refunded 18.50 EUR of your order {order_id}."]
        (approval,) = self.query(
            "SELECT status, consumed_by_attempt FROM celeriac.approvals WHERE run_id = %s",
            run.run_id,
        )
        assert approval[0] == "approved"
        assert approval[1] is not None


def refund_effect(run: Run) -> Effect:
    """The effect that moves the money."""
    (effect,) = (effect for effect in run.effects if effect.tool == "issue_refund")
    return effect
