"""Each call takes effect once, and what is known of it can be asked at any time."""

from collections import Counter

import pytest

from tests.acceptance.shop import DEDUCT, NOTIFY, ORDER, SHIPPED, Shop
from tests.acceptance.terminal import Terminal


def was_it_done(shop: Shop, tool: str) -> str:
    """One query about an order and an item, whatever its run and whoever works on it."""
    ((answer,),) = shop.query(
        """
        SELECT CASE
            WHEN bool_or(state = 'committed') THEN 'yes'
            WHEN bool_or(state IN ('in_flight', 'unknown')) THEN 'unknown'
            ELSE 'no' END
        FROM celeriac.effects
        WHERE tool = %s AND arguments ->> 'order_id' = %s AND arguments ->> 'sku' = %s
        """,
        tool,
        ORDER["order_id"],
        ORDER["sku"],
    )
    return str(answer)


# features: 002-02
def test_whether_something_was_done_can_be_asked_while_no_worker_lives(shop: Shop) -> None:
    seen = []

    def look() -> None:
        seen.append((was_it_done(shop, "deduct_inventory"), was_it_done(shop, "notify_shipped")))

    look()
    shop.processes.start_scheduler()
    run_id = ""
    for point in (
        f"step.after_claim@{DEDUCT}",
        f"act.after_tool@{DEDUCT}",
        f"step.after_commit@{DEDUCT}",
        f"act.after_call@{NOTIFY}",
    ):
        worker = shop.start_worker(test_points=f"{point}=kill")
        run_id = run_id or shop.begin("order-desk", ORDER)
        shop.wait_for_death(worker)
        look()
    shop.start_worker()
    shop.shown(run_id, status="needs_attention")
    look()
    shop.celeriac("resolve", run_id, "4.0", "--committed", '{"status": "SENT"}')
    run = shop.completed(run_id)
    look()

    assert seen == [
        ("no", "no"),  # nobody has asked for it
        ("no", "no"),  # asked for, and not begun
        ("no", "no"),  # deducted, in a transaction that died with its worker
        ("yes", "no"),
        ("yes", "unknown"),  # in flight when its worker died
        ("yes", "unknown"),  # found by another worker, which does not call again
        ("yes", "yes"),  # a person has looked
    ]
    shop.assert_done_once(run)


# features: 002-09
def test_recovery_asks_the_effects_and_not_the_conversation(shop: Shop) -> None:
    (worker,) = shop.open(workers=1, test_points=f"act.after_call@{NOTIFY}=kill")
    run_id = shop.begin("order-desk", ORDER)
    shop.wait_for_death(worker)
    with shop.database.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE celeriac.messages DISABLE TRIGGER USER")
        connection.exec_driver_sql("DELETE FROM celeriac.messages WHERE run_id = %s", (run_id,))
        connection.exec_driver_sql("ALTER TABLE celeriac.messages ENABLE TRIGGER USER")

    shop.start_worker()

    run = shop.shown(run_id, status="needs_attention")
    assert [effect["state"] for effect in run["effects"]] == ["committed", "committed", "unknown"]
    assert shop.stock == 9
    assert len(shop.service.requests) == 1


# features: 002-09, 002-13
@pytest.mark.parametrize(
    ("point", "status"),
    [
        (f"step.after_commit@{DEDUCT}", "completed"),
        (f"step.after_commit@{NOTIFY}", "completed"),
        (f"act.after_call@{NOTIFY}", "needs_attention"),  # which call it was to make is not known
    ],
)
def test_a_run_that_has_lost_its_checkpoints_repeats_no_effect(
    shop: Shop, point: str, status: str
) -> None:
    (worker,) = shop.open(workers=1, test_points=f"{point}=kill")
    run_id = shop.begin("order-desk", ORDER)
    shop.wait_for_death(worker)
    with shop.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("DELETE FROM celeriac.checkpoints WHERE run_id = %s", (run_id,))

    shop.start_worker()

    shop.shown(run_id, status=status)
    assert (shop.stock, len(shop.deductions), len(shop.service.requests)) == (9, 1, 1)


# features: 002-15
def test_a_committed_step_is_not_made_again_though_the_business_record_is_gone(shop: Shop) -> None:
    (worker,) = shop.open(workers=1, test_points=f"step.after_commit@{DEDUCT}=kill")
    run_id = shop.begin("order-desk", ORDER)
    shop.wait_for_death(worker)
    shop.execute("DELETE FROM order_desk.side_effect_log WHERE step = 'deduct_inventory'")

    shop.start_worker()

    assert shop.completed(run_id)["result"] == SHIPPED
    assert shop.stock == 9
    assert shop.deductions == []


# features: 002-17
def test_fifty_runs_for_one_order_on_two_workers_deduct_once(shop: Shop) -> None:
    shop.open(workers=2)

    run_ids = [shop.begin("order-desk", ORDER) for _ in range(50)]

    results = Counter(shop.completed(run_id)["result"] for run_id in run_ids)
    assert results == {SHIPPED: 1, SHIPPED.replace("DEDUCTED", "ALREADY_DONE"): 49}
    assert shop.stock == 9
    assert len(shop.deductions) == 1
    assert len(shop.service.deliveries) == 1
    assert shop.query("SELECT DISTINCT state FROM celeriac.effects") == [("committed",)]
    deducters = shop.query("SELECT DISTINCT worker_id FROM celeriac.checkpoints WHERE step = 3")
    assert len(deducters) == 2, "both workers took part"
    shop.assert_sound()


# features: 002-20
def test_a_call_whose_answer_was_lost_is_unknown_and_not_sent_again_before_a_person_has_looked(
    shop: Shop,
) -> None:
    shop.open()
    shop.service.misbehave(drop_response=True)

    run = shop.order(exit_code=1)

    unknown = run["effects"][-1]
    assert (run["status"], unknown["state"]) == ("needs_attention", "unknown")
    assert [key for key, _ in shop.service.deliveries] == [unknown["key"]], "it was done"
    shop.service.misbehave()
    shop.celeriac("resolve", run["run_id"], unknown["call_id"], "--committed", '{"status": "SENT"}')
    shop.assert_done_once(shop.completed(run["run_id"]))


# features: 002-19
def test_a_call_that_certainly_did_nothing_is_sent_again_under_the_same_key(shop: Shop) -> None:
    (worker,) = shop.open(workers=1, test_points=f"act.before_call@{NOTIFY}=kill")
    run_id = shop.begin("order-desk", ORDER)
    shop.wait_for_death(worker)
    shop.start_worker()
    unknown = shop.shown(run_id, status="needs_attention")["effects"][-1]
    assert shop.service.requests == []

    shop.celeriac("resolve", run_id, unknown["call_id"], "--not-done")

    run = shop.completed(run_id)
    assert (run["effects"][-1]["key"], run["effects"][-1]["attempt"]) == (unknown["key"], 2)
    shop.assert_done_once(run)


# features: 003-02, 003-11
def test_a_call_whose_arguments_make_no_sense_is_never_made(terminal: Terminal) -> None:
    terminal.open()

    run = terminal.run("mumbler", "go")

    assert run["result"] == "nobody was disturbed"
    assert [effect["state"] for effect in run["effects"]] == ["invalid"] * 3
    assert terminal.calls(run["run_id"]) == []
    terminal.assert_sound()


# features: 002-18
def test_two_orders_for_the_last_item_leave_none_and_one_is_told(shop: Shop) -> None:
    shop.execute("UPDATE order_desk.stock SET quantity = 1")
    shop.open(workers=2)

    run_ids = [shop.begin("order-desk", {**ORDER, "order_id": f"O-{n}"}) for n in range(2)]

    results = [shop.completed(run_id)["result"] for run_id in run_ids]
    assert sum("DEDUCTED, 0 left in stock" in result for result in results) == 1
    assert sum("OUT_OF_STOCK, none in stock" in result for result in results) == 1
    assert shop.stock == 0
    assert len(shop.deductions) == len(shop.service.deliveries) == 1
