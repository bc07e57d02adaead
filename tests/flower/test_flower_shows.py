"""What an operator finds in Flower: runs by their id, the workers, a death, the queues."""

import pytest

from celeriac.ids import RunId
from celeriac.settings import load_settings
from celeriac_tasks.celery_app import STEP_TASK, make_app
from celeriac_tasks.publisher import Publisher
from tests.crash.stack import Stack
from tests.flower.server import HEARD_SECONDS, FlowerServer, name_of
from tests.servers import TestBroker
from tests.waiting import eventually

WAITING = 3  # the step in which `waiter` waits at its gate


@pytest.mark.crash
@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_killed_worker_is_offline_and_its_step_is_on_the_other_one(
    stack: Stack, flower: FlowerServer
) -> None:
    stack.start_scheduler()
    workers = stack.start_workers(2)
    flower.wait_until_online(workers)
    run_id = stack.start("waiter")
    stack.wait_for_call(run_id, "wait_at")
    victim = stack.holder(run_id, workers)
    (survivor,) = (worker for worker in workers if worker is not victim)
    eventually(
        lambda: flower.task(f"{run_id}:{WAITING}"),
        until=lambda task: (task["state"], task["worker"]) == ("STARTED", name_of(victim)),
        deadline_seconds=HEARD_SECONDS,
        what="the step on the worker that has it",
    )

    victim.kill_group()

    eventually(
        lambda: flower.task(f"{run_id}:{WAITING}"),
        # Not its state: RabbitMQ delivers the killed worker's message once more, for one that drops
        # it, and Flower shows what it heard last of a task.
        until=lambda task: task["worker"] == name_of(survivor),
        deadline_seconds=HEARD_SECONDS,
        what="the step on the other worker",
    )
    eventually(
        flower.online,
        until=lambda seen: not seen[name_of(victim)] and seen[name_of(survivor)],
        deadline_seconds=HEARD_SECONDS,
        what="the killed worker offline",
    )
    stack.open_gate("gate")
    stack.completed(run_id)


def test_a_run_is_found_by_its_id_with_arguments_that_can_be_read(
    stack: Stack, flower: FlowerServer
) -> None:
    stack.start_scheduler()
    flower.wait_until_online([stack.start_worker()])
    run_id, other_id = stack.start("counter"), stack.start("counter")

    steps = len(stack.completed(run_id).steps)
    stack.completed(other_id)

    found = eventually(
        lambda: flower.search(run_id),
        until=lambda found: [task["state"] for task in found.values()] == ["SUCCESS"] * steps,
        deadline_seconds=HEARD_SECONDS,
        what="all steps of the run",
    )
    told = {task_id: (task["name"], task["args"]) for task_id, task in found.items()}
    assert told == {
        f"{run_id}:{step}": (STEP_TASK, f"('{run_id}', {step})") for step in range(steps)
    }


def test_workers_have_the_host_and_process_that_celeriac_workers_tells(
    stack: Stack, flower: FlowerServer
) -> None:
    workers = stack.start_workers(2)

    flower.wait_until_online(workers)

    told = {f"celeriac-{worker.pid}@{worker.hostname}" for worker in stack.client.workers()}
    assert set(flower.online()) == told


def test_the_queue_shows_how_many_messages_wait(
    flower: FlowerServer, leased_broker: TestBroker
) -> None:
    publisher = Publisher(make_app(load_settings(broker_url=leased_broker.url)))

    for step in range(3):
        publisher.publish(RunId("nobody-takes-it"), step, leased_broker.queue)
    publisher.close()

    assert flower.get("/api/queues/length") == {
        "active_queues": [{"name": leased_broker.queue, "messages": 3}]
    }


def test_flower_does_not_switch_on_the_events_that_a_worker_was_told_not_to_send(
    stack: Stack, flower: FlowerServer
) -> None:
    stack.start_scheduler()
    worker = stack.start_worker(task_events=False)

    def wait_for_heartbeats(count: int) -> None:
        eventually(
            lambda: flower.events_heard(name_of(worker), "worker-heartbeat"),
            until=lambda heard: heard >= count,
            what=f"{count} heartbeats",
        )

    # One each 2 s. Left to itself, Flower tells all workers every 5 s to send their events.
    wait_for_heartbeats(4)
    run_id = stack.start("counter")
    stack.completed(run_id)
    wait_for_heartbeats(flower.events_heard(name_of(worker), "worker-heartbeat") + 1)

    assert flower.search(run_id) == {}
