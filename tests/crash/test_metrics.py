"""What workers and schedulers show of themselves while one of them is killed."""

import socket

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.crash.servers import free_port
from tests.crash.stack import Stack
from tests.waiting import eventually

TOKEN = "0123456789abcdef-metrics"


def read(port: int, **headers: str) -> dict[str, float]:
    """Each sample's value, by its name and its labels' values, in the order of their names."""
    answer = httpx2.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def is_there(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=30).status_code == 200
    except httpx2.TransportError:
        return False


def test_a_death_and_the_steps_around_it_are_counted(stack: Stack) -> None:
    first, second, of_scheduler = free_port(), free_port(), free_port()
    stack.start_scheduler(metrics_port=of_scheduler)
    killed = stack.start_worker(metrics_port=first)
    run_id = stack.start("waiter")
    stack.wait_for_call(run_id, "wait_at")
    eventually(lambda: is_there(first), what="the first worker's /metrics")
    eventually(lambda: read(first)["celeriac_steps_held"], until=(1.0).__eq__, what="one is held")
    stack.start_worker(metrics_port=second)

    killed.kill_group()
    stack.open_gate("gate")
    stack.completed(run_id)

    eventually(lambda: is_there(second), what="the second worker's /metrics")
    of_second, of_leader = read(second), read(of_scheduler)
    made = dict(
        stack.query(
            "SELECT kind, count(*) FROM celeriac.checkpoints WHERE step >= 3 AND run_id = %s"
            " GROUP BY kind",
            run_id,
        )
    )
    assert of_second["celeriac_step_seconds_count waiter act"] == made["act"]
    assert of_second["celeriac_step_seconds_count waiter think"] == made["think"]
    assert of_second["celeriac_model_call_seconds_count waiter answered"] == made["think"]
    assert of_second["celeriac_tool_call_seconds_count returned wait_at"] == 1
    assert of_second["celeriac_slots"] == 64
    assert of_leader["celeriac_worker_deaths_total lifeline"] == 1
    assert of_leader["celeriac_failovers_total"] == 1
    assert of_leader["celeriac_is_leader"] == 1
    assert of_leader["celeriac_rows_read"] == 1
    assert of_leader["celeriac_worker_deaths_last_hour lifeline"] == 1
    assert of_leader["celeriac_runs  queued"] == 0


def test_beyond_loopback_it_takes_the_token(stack: Stack) -> None:
    port = free_port()
    stack.start_scheduler(metrics_port=port, metrics_address="0.0.0.0", metrics_token=TOKEN)  # noqa: S104
    eventually(lambda: is_there(port), what="/metrics")
    address = f"http://127.0.0.1:{port}"

    assert read(port, Authorization=f"Bearer {TOKEN}", Host="shop.example")
    refused = httpx2.get(f"{address}/metrics", headers={"Host": "shop.example"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (
        401,
        'Bearer realm="celeriac-metrics"',
    )
    assert httpx2.get(f"{address}/metrics/x").status_code == 404


def test_a_port_that_is_taken_is_taken_later_and_stops_no_worker(stack: Stack) -> None:
    port = free_port()
    stack.start_scheduler(metrics_port=port)
    eventually(lambda: is_there(port), what="the scheduler's /metrics")
    stack.start_worker(metrics_port=port)

    stack.completed(stack.start("counter"))


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_a_reader_that_says_nothing_keeps_nobody_for_long(stack: Stack, path: str) -> None:
    port = free_port()
    stack.start_scheduler(metrics_port=port)
    eventually(lambda: is_there(port), what="/metrics")
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.sendall(f"GET {path} HTTP/1.1\r\n".encode())

        eventually(lambda: is_there(port), what="/metrics beside a silent reader")
