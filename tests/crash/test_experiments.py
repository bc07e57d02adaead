"""Four experiments with workers that die, and seven tests of what they must not break.

Everything is judged by what the rows say, never by logs.
"""

import hashlib
import json
import signal

import redis

from celeriac.ids import RunId
from celeriac.reports import Run
from celeriac.settings import load_settings
from celeriac_tasks.celery_app import UNACKED_KEY, make_app
from celeriac_tasks.publisher import Publisher
from tests.crash import misbehaving
from tests.crash.stack import STOCK, OrderDesk, count_killed
from tests.waiting import eventually

CHECK, DEDUCT, NOTIFY = 1, 3, 5


def order_with_a_kill(desk: OrderDesk, place: str) -> Run:
    workers = desk.start_workers(2, test_points=f"{place}=kill")
    run = desk.completed(desk.order())
    assert count_killed(workers) == 1
    return run


def deduct_attempts(desk: OrderDesk, run: Run) -> list[tuple[object, ...]]:
    return desk.query(
        "SELECT state, attempt, result ->> 'status' FROM celeriac.effects"
        " WHERE run_id = %s AND tool = 'deduct_inventory'",
        run.run_id,
    )


def deliver_again(desk: OrderDesk, run: Run) -> None:
    """Send the message of every step of the run once more, and wait until workers took them."""
    app = make_app(load_settings(broker_url=desk.broker.url))
    publisher = Publisher(app)
    for step in range(len(run.steps) + 1):
        publisher.publish(RunId(run.run_id), step, desk.broker.queue)
    app.close()
    client = redis.Redis.from_url(desk.broker.url)
    eventually(
        lambda: (client.llen(desk.broker.queue), client.hlen(UNACKED_KEY)),
        until=lambda waiting: waiting == (0, 0),
        what="all messages taken and done with",
    )
    client.close()


def everything(desk: OrderDesk, run: Run) -> list[tuple[object, ...]]:
    """All rows of the run, as text."""
    tables = ("runs", "checkpoints", "messages", "events", "effects", "model_calls")
    selects = " UNION ALL ".join(
        f"SELECT '{table}', t::text FROM celeriac.{table} t WHERE run_id = %s" for table in tables
    )
    return sorted(desk.query(selects, *[run.run_id] * len(tables)))


# features: 002-08, 002-16, 002-22, 002-28
def test_experiment_1_deducted_and_killed_before_the_checkpoint(desk: OrderDesk) -> None:
    desk.start_scheduler()

    run = order_with_a_kill(desk, f"act.after_tool@{DEDUCT}")

    # The first deduction was rolled back with its step: it is the one that counts that is left.
    assert deduct_attempts(desk, run) == [("committed", 1, "DEDUCTED")]
    assert desk.stock == STOCK - 1
    desk.assert_done_once(run)

    # And if the order comes again, in a run of its own, the business record knows.
    again = desk.completed(desk.start("order-desk", run.input))
    assert deduct_attempts(desk, again) == [("committed", 1, "ALREADY_DONE")]
    assert desk.stock == STOCK - 1
    assert len(desk.deliveries(run)) == 1


# features: 002-08, 002-23, 002-28
def test_experiment_2_only_the_remaining_work_is_done_after_a_checkpoint(desk: OrderDesk) -> None:
    desk.start_scheduler()

    run = order_with_a_kill(desk, f"think.before_model_call@{DEDUCT + 1}")

    recovered = [e for e in desk.client.events(run.run_id) if e.type == "run.recovered"]
    assert [event.data["from_checkpoint"] for event in recovered] == [DEDUCT]
    assert deduct_attempts(desk, run) == [("committed", 1, "DEDUCTED")]
    desk.assert_done_once(run)


# features: 002-24, 002-28, 003-18
def test_experiment_3_recovering_a_completed_run_does_nothing(desk: OrderDesk) -> None:
    desk.start_scheduler()
    worker = desk.start_worker()
    run = desk.completed(desk.order())
    worker.send(signal.SIGTERM)  # a killed one would leave the last message unacknowledged
    worker.wait()
    before = everything(desk, run)

    # Now with a model that would deduct again, were it asked.
    desk.processes.start_worker(misbehaving.__name__)
    deliver_again(desk, run)

    assert everything(desk, run) == before
    desk.assert_done_once(run)


# features: 002-25, 002-26, 002-28
def test_experiment_4_the_rows_alone_prove_it_with_all_processes_and_logs_gone(
    desk: OrderDesk,
) -> None:
    desk.start_scheduler()
    run = order_with_a_kill(desk, f"step.before_commit@{DEDUCT}")
    for process in desk.processes.started:
        process.kill_group()
        process.output_path.unlink()

    desk.assert_done_once(desk.run(run.run_id))

    desk.processes.started.clear()  # they have no output left to show


# features: 000-01, 000-09, 002-28
def test_what_one_process_stored_is_what_another_goes_on_from(desk: OrderDesk) -> None:
    desk.start_scheduler()
    place = f"think.before_model_call@{CHECK + 1}"
    first = desk.start_worker(test_points=f"{place}=kill")
    run_id = desk.order()
    first.wait()

    desk.start_worker()

    run = desk.completed(run_id)
    rows = desk.query(
        "SELECT state::text, hash FROM celeriac.checkpoints WHERE run_id = %s ORDER BY step",
        run.run_id,
    )
    assert all(hashlib.sha256(state.encode()).digest() == hash_ for state, hash_ in rows)
    assert [json.loads(state).get("pending") for state, _ in rows] == [
        ["0.0"], None, ["2.0"], None, ["4.0"], None, None
    ]  # fmt: skip
    before, after = run.steps[: CHECK + 1], run.steps[CHECK + 1 :]
    assert len({step.worker_id for step in before}) == len({step.worker_id for step in after}) == 1
    assert before[0].worker_id != after[0].worker_id
    desk.assert_done_once(run)


# features: 002-10, 002-11, 002-16, 002-28
def test_a_step_is_seen_whole_or_not_at_all(desk: OrderDesk) -> None:
    desk.start_scheduler()
    place = f"act.after_tool@{DEDUCT}"
    worker = desk.start_worker(test_points=f"{place}=stop")
    run_id = desk.order()
    eventually(lambda: desk.processes.reached(place), what="deducted, and not committed")

    half = desk.run(run_id)
    assert desk.stock == STOCK
    assert desk.query("SELECT FROM order_desk.side_effect_log") == []
    assert (half.step, half.effects[-1].state) == (DEDUCT, "planned")

    desk.start_worker()
    worker.kill_group()
    run = desk.completed(run_id)
    # What the step left is of one transaction.
    ((transactions,),) = desk.query(
        "SELECT count(DISTINCT xmin::text) FROM ("
        " SELECT xmin FROM celeriac.events WHERE type = 'effect.committed'"
        " AND data ->> 'tool' = 'deduct_inventory'"
        " UNION ALL SELECT xmin FROM celeriac.effects WHERE tool = 'deduct_inventory'"
        " UNION ALL SELECT xmin FROM celeriac.checkpoints WHERE step = %s) AS rows",
        DEDUCT,
    )
    assert transactions == 1
    desk.assert_done_once(run)


# features: 002-28, 003-14
def test_an_undisturbed_order_takes_each_step_once(desk: OrderDesk) -> None:
    desk.start_scheduler()
    desk.start_workers(2)

    run = desk.completed(desk.order())

    assert (run.epoch, run.deaths) == (7, 0)
    desk.assert_done_once(run)


# features: 002-27, 002-28
def test_the_same_kill_leaves_the_same_history(desk: OrderDesk) -> None:
    desk.start_scheduler()
    place = f"think.after_model_call@{DEDUCT + 1}"
    histories = []
    for _ in range(2):
        run = order_with_a_kill(desk, place)
        desk.assert_done_once(run)
        histories.append(
            desk.query(
                "SELECT seq, type, data - 'worker_id' - 'thread_id' FROM celeriac.events"
                " WHERE run_id = %s ORDER BY seq",
                run.run_id,
            )
        )
        for process in desk.processes.started[1:]:
            process.kill_group()
        desk.processes.rearm()
    assert histories[0] == histories[1]


# features: 002-24, 002-28
def test_messages_that_come_again_and_again_change_nothing(desk: OrderDesk) -> None:
    desk.start_scheduler()
    desk.start_workers(2)
    run = desk.completed(desk.order())
    before = everything(desk, run)

    for _ in range(3):
        deliver_again(desk, run)

    assert everything(desk, run) == before
    desk.assert_done_once(run)


# features: 003-21
def test_of_three_calls_in_one_response_only_the_third_is_made_after_a_kill(
    desk: OrderDesk,
) -> None:
    desk.start_scheduler()
    desk.start_workers(2, test_points="step.after_commit@2=kill")

    run = desk.completed(desk.start("many-calls"))

    assert desk.tally(run.run_id) == ["0", "1", "2"]
    assert [(effect.call_id, effect.attempt) for effect in run.effects] == [
        ("0.0", 1), ("0.1", 1), ("0.2", 1)
    ]  # fmt: skip
    assert run.steps[2].worker_id != run.steps[3].worker_id
    assert desk.violations() == []
