"""The main job as a user does it: orders through the command line, while workers are killed.

The evidence is what others keep: the rows of the run as the command line shows them, the rows of
the shop, and the ledger of the notification service, which knows nothing of workers.
"""

import json

import pytest

from tests.acceptance.shop import CHECK, DEDUCT, NOTIFY, ORDER, SHIPPED, Shop


# features: 002-01, 002-22, 002-23, 002-25, 002-26
@pytest.mark.parametrize(
    ("point", "deaths"),
    [
        # Looked at the inventory, which may be looked at twice.
        (f"act.after_tool@{CHECK}", 1),
        # Deducted, in a transaction that is still open.
        (f"act.after_tool@{DEDUCT}", 1),
        # Deducted for good; the next step is queued, but not published.
        (f"step.after_commit@{DEDUCT}", 0),
        # About to record that the notification is attempted.
        (f"act.before_in_flight@{NOTIFY}", 1),
        # Notified for good; the next step is queued, but not published.
        (f"step.after_commit@{NOTIFY}", 0),
    ],
)
def test_an_order_goes_through_while_a_worker_is_killed(
    shop: Shop, point: str, deaths: int
) -> None:
    shop.open(test_points=f"{point}=kill")

    run = shop.order()

    assert shop.workers_killed == 1
    assert shop.processes.reached(point)
    assert run["deaths"] == deaths  # of workers that held a step of this run
    assert run["epoch"] == len(run["steps"]) + deaths  # each step claimed once, or once more
    assert run["steps"][-1]["worker_id"] in shop.living_workers
    shop.assert_done_once(run)


# features: 002-20
def test_a_worker_killed_after_the_notification_leaves_the_answer_to_a_person(
    shop: Shop,
) -> None:
    shop.open(test_points=f"act.after_call@{NOTIFY}=kill")

    run = shop.order(exit_code=1)

    assert shop.workers_killed == 1
    assert run["status"] == "needs_attention"
    (unknown,) = (effect for effect in run["effects"] if effect["state"] == "unknown")
    assert (unknown["tool"], unknown["attempt"]) == ("notify_shipped", 1)
    assert shop.service.requests == [(unknown["key"], ORDER)]

    run_id = run["run_id"]
    shop.celeriac("resolve", run_id, unknown["call_id"], "--committed", '{"status": "SENT"}')
    shop.assert_done_once(shop.completed(run_id))


# features: 002-14, 002-15
def test_the_second_run_for_an_order_finds_it_done(shop: Shop) -> None:
    shop.open()

    first, second = shop.order(), shop.order()

    assert first["result"] == SHIPPED
    assert second["status"] == "completed"
    assert second["result"] == SHIPPED.replace("DEDUCTED", "ALREADY_DONE")
    assert shop.stock == 9
    assert shop.deductions == [("O-1001", first["run_id"])]
    assert shop.service.deliveries == [(first["effects"][-1]["key"], ORDER)]


def test_an_order_for_too_much_and_one_for_nothing_known_are_told_so(shop: Shop) -> None:
    shop.open()

    too_much = shop.order(order_id="O-1002", quantity=11)
    unknown = shop.order(order_id="O-1003", sku="B-1")

    assert too_much["result"] == (
        "Order O-1002, 11 of A-7: OUT_OF_STOCK, 10 in stock, so nobody was notified."
    )
    assert unknown["result"] == (
        "Order O-1003, 1 of B-1: UNKNOWN_SKU, there is no such item, so nobody was notified."
    )
    assert shop.stock == 10
    assert shop.deductions == []
    assert shop.service.requests == []


def test_an_order_that_makes_no_sense_never_becomes_a_run(shop: Shop) -> None:
    order = json.dumps({"order_id": "O-1001", "quantity": 0})

    refused = shop.try_celeriac("run", "order-desk", "--input", order, "--wait")

    assert refused.exit_code == 1
    assert "quantity: 0 is less than 1" in refused.stderr
    assert "sku: required, but missing" in refused.stderr
    assert refused.stdout == ""
    assert shop.try_celeriac("runs", "--json").stdout == ""
