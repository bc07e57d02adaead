"""An approved refund, its worker killed at each named point, under each fault of the service.

The payment service's own ledger is the evidence. Where it can be asked, or does things once per
key, the money goes back exactly once, or not at all if the service only pretends; where it cannot,
a person is asked, and it never goes back twice.
"""

from collections.abc import Iterator, Mapping

import pytest

from celeriac.reports import Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone, Resolution, TookEffect
from tests.crash.nursery import Nursery
from tests.crash.refunds import POINTS, PROPOSE, REFUND, TELL, RefundDesk, refund_effect
from tests.crash.stack import DONE_SECONDS, count_killed, started_processes
from tests.payments import PaymentService, payment_service
from tests.processes import Processes
from tests.servers import DatabaseServer, lease_broker
from tests.waiting import eventually

Faults = Mapping[str, object]

IGNORES_KEYS: Faults = {"honours_keys": False}
"""So nothing but what the desk itself knows and looks up keeps the money from going back twice."""
LOSES_ANSWER: Faults = {**IGNORES_KEYS, "drops_response": True}
IS_SLOW: Faults = {**IGNORES_KEYS, "answers_after_seconds": 1.5}  # longer than the desk waits
APPLIES_LATE: Faults = {**IGNORES_KEYS, "applies_after_seconds": 0.3}
PRETENDS: Faults = {**IGNORES_KEYS, "pretends": True}
IS_DOWN: Faults = {**IGNORES_KEYS, "is_down": True}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaymentService]:
    with payment_service(tmp_path_factory.mktemp("ledger") / "payments.sqlite3") as service:
        yield service


@pytest.fixture(scope="module")
def stack_of_module(
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
            desk.arm([])
            desk.start_scheduler()
            yield desk
            desk.client.close()
        database.close()


@pytest.fixture
def processes(stack_of_module: RefundDesk) -> Processes:
    return stack_of_module.processes


@pytest.fixture
def refunds(
    stack_of_module: RefundDesk,
    processes: Processes,  # noqa: ARG001 - shown if the test fails
) -> Iterator[RefundDesk]:
    stack_of_module.keep_workers()
    yield stack_of_module
    stack_of_module.service.misbehave()
    stack_of_module.arm([])


def go_through(refunds: RefundDesk, agent: str, places: str, faults: Faults) -> tuple[Run, str]:
    """Refund while workers die at the places and the service misbehaves; the run when it has ended
    or waits for a person, and its order."""
    order_id = refunds.service.paid_order()
    to_die = places.split("+") if places else []
    workers = list(refunds.workers)
    refunds.arm(to_die)
    run_id = refunds.propose(agent, order_id)
    refunds.service.misbehave(**faults)
    refunds.approve(run_id)

    if "is_down" in faults:
        eventually(
            lambda: refund_effect(refunds.run(run_id)).state,
            until=lambda state: state is EffectState.UNKNOWN,
            deadline_seconds=DONE_SECONDS,
            what="a refund of unknown outcome",
        )
        refunds.service.misbehave(**IGNORES_KEYS)
    run = refunds.wait(run_id)
    # The last one may die just after the run has ended.
    eventually(
        lambda: count_killed(workers),
        until=lambda count: count == len(to_die),
        what=f"a death at each of {to_die}",
    )
    assert all(refunds.processes.reached(place) for place in to_die)
    return run, order_id


def at(*points: str, step: int = REFUND) -> str:
    return "+".join(f"{point}@{step}" for point in points)


VERIFIED = [
    # Where a death leaves nothing in doubt: once with a call whose answer is lost after it.
    *((at(point, step=PROPOSE), LOSES_ANSWER) for point in POINTS[PROPOSE]),
    *((at(point), LOSES_ANSWER) for point in POINTS[REFUND][:4]),
    # Before the money moves, after it, and when that was looked at.
    *((at("act.before_call"), faults) for faults in (APPLIES_LATE, IS_DOWN)),
    *((at("act.after_call"), faults) for faults in (IGNORES_KEYS, IS_SLOW, APPLIES_LATE)),
    *((at("act.after_verify"), faults) for faults in (IGNORES_KEYS, APPLIES_LATE)),
    *((at("act.after_recovery"), faults) for faults in (LOSES_ANSWER, IS_DOWN)),
    *((at("step.before_commit"), faults) for faults in (IGNORES_KEYS, LOSES_ANSWER)),
    # Committed: nothing of it is done again.
    *((at(point), IGNORES_KEYS) for point in POINTS[REFUND][-3:]),
    (at("act.after_tool", step=TELL), IGNORES_KEYS),
    # Who takes over dies as well.
    (at("act.before_call", "act.after_call"), LOSES_ANSWER),
    (at("act.after_call", "act.after_recovery"), IGNORES_KEYS),
]


def name_of(value: object) -> str:
    if not isinstance(value, dict):
        return str(value) or "nobody"
    return next((name for name in value if name != "honours_keys"), "ignores_keys")


# features: 000-11, 002-19, 004-20
@pytest.mark.parametrize(("places", "faults"), VERIFIED, ids=name_of)
def test_money_goes_back_once_if_the_service_can_be_asked(
    refunds: RefundDesk, places: str, faults: Faults
) -> None:
    run, order_id = go_through(refunds, "refund-desk", places, faults)

    refunds.assert_refunded_once(run, order_id)


# features: 004-32, 004-33
@pytest.mark.parametrize("places", ["", at("act.after_call"), at("act.after_recovery")])
def test_a_refund_that_was_only_pretended_is_never_called_done(
    refunds: RefundDesk, places: str
) -> None:
    run, order_id = go_through(refunds, "refund-desk", places, PRETENDS)

    assert run.status is RunStatus.NEEDS_ATTENTION
    effect = refund_effect(run)
    assert effect.state is EffectState.KNOWN_BAD
    assert refunds.service.refunds(order_id) == []
    refunds.client.resolve(run.run_id, effect.call_id, NotDone())
    ended = refunds.completed(run.run_id)
    assert str(ended.result).startswith(f"Order {order_id}: nothing was refunded")
    assert refunds.letters(order_id) == []
    assert refunds.violations() == []


# features: 000-13, 002-20
@pytest.mark.parametrize(
    ("places", "faults", "was_refunded"),
    [
        ("", LOSES_ANSWER, True),
        (at("act.before_call"), IGNORES_KEYS, False),
        (at("act.after_call"), IGNORES_KEYS, True),
        (at("step.before_commit"), IGNORES_KEYS, True),
    ],
    ids=name_of,
)
def test_where_nobody_can_know_a_person_is_asked_and_nothing_is_sent_again(
    refunds: RefundDesk, places: str, faults: Faults, was_refunded: bool
) -> None:
    run, order_id = go_through(refunds, "refund-desk-asking", places, faults)

    assert run.status is RunStatus.NEEDS_ATTENTION
    effect = refund_effect(run)
    assert (effect.state, effect.attempt) == (EffectState.UNKNOWN, 1)
    found = refunds.service.refunds(order_id)
    assert [refund.key for refund in found] == ([effect.key] if was_refunded else [])
    refunds.service.misbehave(**IGNORES_KEYS)
    answer: Resolution = NotDone()
    if was_refunded:
        answer = TookEffect({"refund_id": found[0].refund_id, "amount": "18.50"})
    refunds.client.resolve(run.run_id, effect.call_id, answer)
    refunds.assert_refunded_once(refunds.completed(run.run_id), order_id)


# features: 000-13, 004-20
@pytest.mark.parametrize(("faults", "times"), [({}, 1), (IGNORES_KEYS, 2)], ids=["kept", "broken"])
def test_sending_again_is_as_safe_as_the_services_promise_about_keys(
    refunds: RefundDesk, faults: Faults, times: int
) -> None:
    """The second case is why `on_unknown="resend"` is no default."""
    run, order_id = go_through(refunds, "refund-desk-resending", at("act.after_call"), faults)

    assert run.status is RunStatus.COMPLETED
    key = refund_effect(run).key
    assert refunds.service.keys_asked_with(order_id) == [key, key]
    assert [refund.key for refund in refunds.service.refunds(order_id)] == [key] * times
    assert refunds.violations() == []
