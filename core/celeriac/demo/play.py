"""The demo, act by act: orders are placed, and what works on them is killed."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from celeriac.client import TookEffect
from celeriac.demo.holds import ABOUT_TO_NOTIFY, DEDUCTED, Hold
from celeriac.demo.record import Kill, Order, Record
from celeriac.demo.shop import AGENT, SKU
from celeriac.demo.stage import WORKERS, Stage
from celeriac.demo.timeline import Narrator, Timeline
from celeriac.errors import CeleriacError, StackFailed
from celeriac.reports import Run, Step
from celeriac.states import EffectState, RunStatus
from celeriac_storage import dispatch

FIRST_ORDER = 1001
ORDERS_AT_ONCE = 4
PERSON = "demo"

Found = TypeVar("Found")


class Play:
    """One performance on a fresh stage. Raises `CeleriacError` if something does not come."""

    def __init__(self, stage: Stage, timeline: Timeline, narrator: Narrator) -> None:
        self._stage = stage
        self._timeline = timeline
        self._narrator = narrator
        self._orders: list[Order] = []

    def perform(self) -> Record:
        """All acts. While a killed worker is started again, the other one has enough to do."""
        self._undisturbed()
        in_deduction = self._killed(DEDUCTED, "in the deduction")
        emptied_at, orders_at_loss = self._broker_forgets()
        unanswered = self._answer_is_lost()
        repeated = self._ordered_again()
        before_notification = self._killed(ABOUT_TO_NOTIFY, "between deduction and notification")
        unattended = self._nobody_is_there()
        return Record(
            orders=self._orders,
            emptied_at=emptied_at,
            orders_at_loss=orders_at_loss,
            kills=[in_deduction, before_notification],
            unanswered=unanswered,
            repeated=repeated,
            unattended=unattended,
        )

    # The acts -----------------------------------------------------------------------------------

    def _undisturbed(self) -> None:
        self._narrator.begin_act("An order, undisturbed")
        self._complete(self._place())

    def _killed(self, hold: Hold, where: str) -> Kill:
        self._narrator.begin_act(f"A worker is killed {where}")
        self._timeline.until(lambda: len(self._live_pids()) == WORKERS, "both workers to live")
        before = self._stage.shop.in_stock
        self._stage.holds.arm(hold)
        order = self._place()
        self._timeline.until(
            lambda: self._stage.holds.has_caught(hold), f"a worker to be in step {hold.step}"
        )
        held = self._stage.client.get(order.run_id)
        if (held.status, held.step) != (RunStatus.RUNNING, hold.step):
            raise CeleriacError(
                f"order {order.order_id} should be running at step {hold.step} now, but is "
                f"{held.status} at step {held.step}: somebody else has taken it from its worker"
            )
        self._narrator.say(
            f"{held.worker_id} holds step {held.step}: {hold.meaning}. Others saw {before} in "
            f"stock before, and see {self._stage.shop.in_stock} now"
        )
        kill = self._kill_holder(order, held, where)
        taken = self._timeline.until(partial(self._step, order, held.step), "somebody to go on")
        milliseconds = (taken.started_at - kill.killed_at).total_seconds() * 1000
        self._narrator.say(
            f"{taken.worker_id} took step {held.step} over, {milliseconds:.0f} ms after the kill"
        )
        self._complete(order)
        return kill

    def _broker_forgets(self) -> tuple[datetime, Sequence[Order]]:
        self._narrator.begin_act("The broker loses everything")
        with self._stage.database.begin() as connection:
            orders = [self._place(connection) for _ in range(ORDERS_AT_ONCE)]
        self._narrator.say(f"{ORDERS_AT_ONCE} orders are placed, in one transaction")
        self._narrator.wait_for("the broker to be there again")
        emptied_at = self._now()
        self._stage.stack.lose_broker_data(self._timeline.give_up)
        self._narrator.say("the broker was killed and started again, without its data")
        self._complete(*orders)
        return emptied_at, orders

    def _answer_is_lost(self) -> Order:
        self._narrator.begin_act("The notification is delivered, and its answer is lost")
        self._stage.notifications.drop_answers(is_dropping=True)
        order = self._place()
        run = self._timeline.until(
            lambda: self._run_if(order, RunStatus.NEEDS_ATTENTION), "the run to need a person"
        )
        self._stage.notifications.drop_answers(is_dropping=False)
        unknown = _only(
            [each for each in run.effects if each.state is EffectState.UNKNOWN],
            f"call of run {run.run_id} whose outcome is unknown",
        )
        told = self._stage.notifications.read_ledger().deliveries.count(order.order_id)
        self._narrator.say(
            f"whether call {unknown.call_id} was made nobody here can know, so it is not made "
            f"again; a person looks into the service's ledger, which says: delivered {told} time"
        )
        if told:
            self._narrator.say(f"celeriac resolve {order.run_id} {unknown.call_id} --committed …")
            self._stage.client.resolve(
                order.run_id, unknown.call_id, TookEffect({"status": "SENT"}), by=PERSON
            )
        self._complete(order)
        return order

    def _ordered_again(self) -> Order:
        self._narrator.begin_act("The first order comes a second time")
        first = self._orders[0]
        again = self._start(Order(first.order_id, f"{first.run_id}-again"))
        self._complete(again)
        return again

    def _nobody_is_there(self) -> Order:
        self._narrator.begin_act("An order comes while no worker lives")
        for name in self._worker_groups():
            with suppress(StackFailed):  # it has not even been started again yet
                self._stage.stack.kill(name)
        self._timeline.until(lambda: not self._live_pids(), "the death of every worker")
        self._narrator.say("every worker was killed; they are being started again")
        order = self._place()
        self._timeline.until(self._live_pids, "a worker to be there again")
        self._complete(order)
        return order

    # What they are made of ------------------------------------------------------------------------

    def _place(self, connection: Connection | None = None) -> Order:
        order_id = f"O-{FIRST_ORDER + len(self._orders)}"
        order = self._start(Order(order_id, order_id), connection)
        self._orders.append(order)
        return order

    def _start(self, order: Order, connection: Connection | None = None) -> Order:
        wanted = {"order_id": order.order_id, "sku": SKU, "quantity": 1}
        self._stage.client.start(AGENT, wanted, run_id=order.run_id, connection=connection)
        self._timeline.follow(order.run_id)
        return order

    def _complete(self, *orders: Order) -> None:
        for order in orders:
            run = self._timeline.until(
                partial(self._run_if, order, RunStatus.COMPLETED),
                f"order {order.order_id} to be completed",
            )
            self._narrator.say(str(run.result))

    def _run_if(self, order: Order, status: RunStatus) -> Run | None:
        run = self._stage.client.get(order.run_id)
        if run.status is status:
            return run
        if run.status.is_terminal or run.status is RunStatus.NEEDS_ATTENTION:
            raise CeleriacError(
                f"order {order.order_id} should become {status}, but is {run.status}: {run.error}"
            )
        return None

    def _step(self, order: Order, number: int) -> Step | None:
        steps = self._stage.client.get(order.run_id).steps
        return steps[number] if len(steps) > number else None

    def _kill_holder(self, order: Order, held: Run, where: str) -> Kill:
        pid = _only(
            [
                worker.pid
                for worker in self._stage.client.workers()
                if worker.worker_id == held.worker_id
            ],
            f"worker {held.worker_id}",
        )
        groups = self._worker_groups()
        group = _group_of(pid)
        name = _only(
            [each for each, leader in groups.items() if leader == group],
            f"service that process {pid} belongs to",
        )
        killed_at = self._now()
        self._stage.stack.kill(name)
        assert held.worker_id is not None, "it holds the step"
        self._narrator.say(f"SIGKILL to process group {groups[name]}, {name} ({held.worker_id})")
        return Kill(order, held.step, where, held.worker_id, pid, killed_at)

    def _now(self) -> datetime:
        with self._stage.database.connect() as connection:
            return dispatch.now(connection)

    def _worker_groups(self) -> dict[str, int]:
        """The process group of each worker service that runs just now."""
        return {
            line.name: line.pid
            for line in self._stage.stack.services
            if line.name.startswith("worker-") and line.pid is not None
        }

    def _live_pids(self) -> list[int]:
        return [worker.pid for worker in self._stage.client.workers() if worker.alive]


def _only(found: Sequence[Found], what: str) -> Found:
    if len(found) != 1:
        raise CeleriacError(f"there should be one {what}, but there are {len(found)}")
    return found[0]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:  # it has died by itself
        return None
