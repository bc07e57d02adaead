"""A worker that freezes in the middle of a refund, and wakes up when others have taken over.

The payment service ignores keys here: what keeps the money from going back twice is the desk alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.states import EffectState, Phase, RunStatus
from celeriac_storage.database import Database
from tests.crash.refund_agents import FROZEN_TIMEOUT_SECONDS
from tests.crash.refunds import REFUND, VISIBILITY_SECONDS, RefundDesk, refund_effect
from tests.payments import payment_service
from tests.processes import Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

LEASE_SECONDS = 1
AGENTS = "tests.crash.refund_agents"


@pytest.fixture
def refunds(
    database: Database, leased_broker: TestBroker, processes: Processes, tmp_path: Path
) -> Iterator[RefundDesk]:
    with payment_service(tmp_path / "payments.sqlite3") as service:
        service.misbehave(honours_keys=False)
        desk = RefundDesk(database, leased_broker, processes, service)
        yield desk
        desk.client.close()


def freeze_and_take_over(refunds: RefundDesk, point: str) -> tuple[TestProcess, str, str]:
    """A refund whose worker froze at the point, recovered by another one as far as that goes at
    once: the frozen worker, the run and its order."""
    refunds.start_scheduler(lease_seconds=LEASE_SECONDS)
    place = f"{point}@{REFUND}"
    # Whoever comes there first freezes, and the other one is spared.
    workers = refunds.processes.start_workers(
        2, AGENTS, test_points=f"{place}=stop", lease_seconds=LEASE_SECONDS
    )
    order_id = refunds.service.paid_order()
    run_id = refunds.propose("refund-desk-impatient", order_id)
    refunds.approve(run_id)
    eventually(lambda: refunds.processes.reached(place), what=f"{place} reached")
    zombie = refunds.holder(run_id, workers)
    refunds.wait_until(run_id, step=REFUND, status=RunStatus.PAUSED)
    return zombie, run_id, order_id


def outcomes(refunds: RefundDesk, run_id: str) -> list[tuple[int, str]]:
    return [
        (attempt, outcome)
        for attempt, outcome in refunds.query(
            "SELECT attempt, outcome FROM celeriac.effect_attempts"
            " WHERE run_id = %s AND deadline_at IS NOT NULL OR run_id = %s AND entry > 0"
            " ORDER BY attempt, entry",
            run_id,
            run_id,
        )
    ]


# features: 000-12, 002-20, 003-23, 004-20
def test_the_late_report_of_a_frozen_worker_settles_what_others_wait_to_find_out(
    refunds: RefundDesk,
) -> None:
    zombie, run_id, order_id = freeze_and_take_over(refunds, "act.after_call")
    waiting = refunds.run(run_id)
    # Only silent, it may still be calling: nobody looks before its deadline and the visibility.
    assert waiting.phase is Phase.WAITING_TIMER
    assert refund_effect(waiting).state is EffectState.UNKNOWN
    ((seconds,),) = refunds.query(
        "SELECT extract(epoch FROM wake_at - started.at)::float FROM celeriac.runs"
        " JOIN celeriac.effect_attempts AS started USING (run_id)"
        " WHERE run_id = %s AND entry = 0 AND started.deadline_at IS NOT NULL",
        run_id,
    )
    assert seconds >= FROZEN_TIMEOUT_SECONDS + VISIBILITY_SECONDS - 0.1

    zombie.thaw()

    run = refunds.completed(run_id)
    assert refunds.verdicts() == ["lease"]
    assert refunds.service.keys_asked_with(order_id) == [refund_effect(run).key]
    refunds.assert_refunded_once(run, order_id)
    kept, reported = refunds.query(
        "SELECT result FROM celeriac.effects WHERE run_id = %s AND tool = 'issue_refund'"
        " UNION ALL SELECT evidence -> 'result' FROM celeriac.effect_attempts"
        " WHERE run_id = %s AND evidence ? 'result'",
        run_id,
        run_id,
    )
    assert kept == reported
    assert outcomes(refunds, run_id) == [
        (1, "started"),
        (1, "unknown"),
        (1, "committed"),  # said the frozen one, of its own call
        (1, "committed"),  # settled by the one that had taken over
    ]


# features: 000-12, 002-20, 003-23, 004-20
def test_a_worker_that_wakes_after_its_deadline_does_not_make_the_call_any_more(
    refunds: RefundDesk,
) -> None:
    zombie, run_id, order_id = freeze_and_take_over(refunds, "act.before_call")
    run = refunds.completed(run_id)
    assert refund_effect(run).attempt == 2

    zombie.thaw()

    eventually(
        lambda: (1, "failed") in outcomes(refunds, run_id),
        what="the frozen worker saying that it did not call",
    )
    assert refunds.service.keys_asked_with(order_id) == [refund_effect(run).key]
    refunds.assert_refunded_once(run, order_id)
