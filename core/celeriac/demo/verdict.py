"""Was everything right? Judged by the rows that are left and by the ledger of the other side.

Nothing here looks into a log or asks the demo how it went. What the demo did (`Record`) says only
what has to be found.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from celeriac.client import Client
from celeriac.demo.notifications import Ledger
from celeriac.demo.record import Kill, Order, Record
from celeriac.demo.shop import SKU, STOCK, Shop
from celeriac.states import EffectKind, Phase, RunStatus
from celeriac_storage.audit import Violation

LONGEST_FAILOVER_MS = 1000
"""A tenth of the lease, so that only the lifeline can have been that fast. (Of 89 kills measured
the slowest took 305.)"""

DELIVERIES = "the service's deliveries"
REQUESTS = "the service's requests"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that had to be so."""

    what: str
    expected: str
    found: str
    source: str  # where it was read
    is_right: bool


@dataclass(frozen=True, slots=True)
class Failover:
    """How long the step of a killed worker waited for another one, by the database's clock."""

    run_id: str
    step: int
    worker_id: str  # the killed one
    pid: int
    taken_by: str | None  # None: it was not taken, or by nobody else
    milliseconds: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: Sequence[Finding]
    failovers: Sequence[Failover]

    @property
    def is_right(self) -> bool:
        return all(finding.is_right for finding in self.findings)


def judge(
    record: Record,
    client: Client,
    shop: Shop,
    ledger: Ledger,
    violations: Sequence[Violation],
) -> Verdict:
    """`violations` is what the audit found."""
    orders = Counter(order.order_id for order in record.orders)
    failovers = [_failover(client, kill) for kill in record.kills]
    return Verdict(
        [
            _completed(record, client),
            _same(f"{SKU} in stock", STOCK - orders.total(), shop.in_stock, "order_desk.stock"),
            _counted("orders deducted", orders, shop.deductions, "order_desk.side_effect_log"),
            _counted("customers told", orders, Counter(ledger.deliveries), DELIVERIES),
            _counted(
                "requests to tell them",
                orders + Counter([record.repeated.order_id]),  # the service knows it by its key
                Counter(ledger.requests),
                REQUESTS,
            ),
            *(_taken_over(client, kill) for kill in record.kills),
            _fast_enough(failovers),
            _survived(record, client),
            _waited(record, client),
            _settled(record, client),
            _recognised(record, client),
            _same(
                "invariants broken",
                "none",
                "; ".join(f"{each.invariant}: {each.detail}" for each in violations) or "none",
                "celeriac audit",
            ),
        ],
        failovers,
    )


def _completed(record: Record, client: Client) -> Finding:
    runs = [*record.orders, record.repeated]
    return _same("runs completed", len(runs), _count_completed(runs, client), "celeriac.runs")


def _counted(what: str, expected: Counter[str], found: Counter[str], source: str) -> Finding:
    """The same orders, each as often."""
    wrong = [
        f"{order} {found[order]} times"
        for order in sorted(expected | found)
        if found[order] != expected[order]
    ]
    return Finding(what, _summed(expected), ", ".join(wrong) or _summed(found), source, not wrong)


def _summed(counts: Counter[str]) -> str:
    often = [f"{order} {count} times" for order, count in sorted(counts.items()) if count != 1]
    return ", ".join([f"{len(counts) - len(often)} once", *often])


def _taken_over(client: Client, kill: Kill) -> Finding:
    run = client.get(kill.order.run_id)
    others = [step.worker_id != kill.worker_id for step in run.steps if step.step == kill.step]
    reasons = [
        str(event.data.get("reason"))
        for event in client.events(run.run_id)
        if event.type == "run.recovered" and event.data.get("worker_id") == kill.worker_id
    ]
    by = "another worker" if others == [True] else "no other worker"
    extra_claims = run.epoch - len(run.steps)
    return _same(
        f"{kill.order.order_id}, killed {kill.where}",
        "1 more claim than steps, lifeline lost, step by another worker",
        f"{extra_claims} more claim than steps, {', '.join(reasons) or 'nothing'} lost, "
        f"step by {by}",
        "celeriac.runs, events, checkpoints",
    )


def _failover(client: Client, kill: Kill) -> Failover:
    run = client.get(kill.order.run_id)
    for step in run.steps:
        if step.step == kill.step and step.worker_id != kill.worker_id:
            waited = step.started_at - kill.killed_at
            milliseconds = round(waited.total_seconds() * 1000)
            return Failover(
                run.run_id, kill.step, kill.worker_id, kill.pid, step.worker_id, milliseconds
            )
    return Failover(run.run_id, kill.step, kill.worker_id, kill.pid, None, None)


def _fast_enough(failovers: Sequence[Failover]) -> Finding:
    times = [each.milliseconds for each in failovers]
    is_right = all(time is not None and 0 < time <= LONGEST_FAILOVER_MS for time in times)
    return Finding(
        "ms from kill to next claim",
        f"at most {LONGEST_FAILOVER_MS}",
        ", ".join("never" if time is None else str(time) for time in times),
        "celeriac.checkpoints",
        is_right,
    )


def _survived(record: Record, client: Client) -> Finding:
    """Orders that were under way when the broker lost its data."""
    runs = [client.get(order.run_id) for order in record.orders_at_loss]
    under_way = [run for run in runs if run.finished_at and run.finished_at > record.emptied_at]
    completed = _count_completed(record.orders_at_loss, client)
    return _same(
        "orders when the broker lost its data",
        f"{len(runs)} under way, {len(runs)} completed later",
        f"{len(under_way)} under way, {completed} completed later",
        "celeriac.runs",
    )


def _waited(record: Record, client: Client) -> Finding:
    """The run's own history tells that no live worker had its agent when it was placed."""
    told = {event.type: event for event in client.events(record.unattended.run_id)}
    paused, woken = told.get("run.paused"), told.get("run.woken")
    reason = "not at all" if paused is None else f"as {paused.data.get('phase')}"
    seconds = (woken.at - paused.at).total_seconds() if woken and paused else None
    return Finding(
        f"{record.unattended.order_id} waited",
        f"as {Phase.WAITING_WORKER}, then woken",
        reason + ("" if seconds is None else f", then woken after {seconds:.1f} s"),
        "celeriac.events",
        reason == f"as {Phase.WAITING_WORKER}" and seconds is not None,
    )


def _settled(record: Record, client: Client) -> Finding:
    """The call whose answer was lost was left to a person, and was not made again."""
    run = client.get(record.unanswered.run_id)
    types = {event.type for event in client.events(run.run_id)}
    seen = [word for word in ("unknown", "resolved") if f"effect.{word}" in types]
    attempts = [effect.attempt for effect in run.effects if effect.kind is EffectKind.EXTERNAL]
    return _same(
        f"{record.unanswered.order_id}, whose answer was lost",
        "unknown, resolved; 1 attempt",
        f"{', '.join(seen)}; {sum(attempts)} attempt",
        "celeriac.events, effects",
    )


def _recognised(record: Record, client: Client) -> Finding:
    """A second run for an order finds in the shop's own tables that it was served."""
    result = str(client.get(record.repeated.run_id).result)
    return Finding(
        f"{record.repeated.order_id}, ordered again",
        "ALREADY_DONE",
        result.partition(": ")[2].partition(",")[0],
        "celeriac.runs",
        ": ALREADY_DONE, " in result,
    )


def _count_completed(orders: Sequence[Order], client: Client) -> int:
    runs = [client.get(order.run_id) for order in orders]
    return sum(run.status is RunStatus.COMPLETED for run in runs)


def _same(what: str, expected: object, found: object, source: str) -> Finding:
    return Finding(what, str(expected), str(found), source, expected == found)
