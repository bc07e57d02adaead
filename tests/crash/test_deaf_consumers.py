"""A worker that lives, is connected, and hears nothing: runs must not wait for it for ever."""

from collections.abc import Iterator

import pytest

from celeriac.states import RunStatus
from tests.crash.proxy import Proxy, proxy_to
from tests.crash.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.parametrize("broker", ["redis"])  # AMQP has heartbeats for this

NOTICED_SECONDS = 60.0
"""Redis is asked with a timeout; kombu misses the answer some 30 s after the last one."""


@pytest.fixture
def proxy(stack: Stack) -> Iterator[Proxy]:
    with proxy_to(stack.broker.url) as proxy:
        yield proxy


# features: 003-22
def test_a_worker_whose_connections_were_forgotten_by_the_network_takes_steps_again(
    stack: Stack, proxy: Proxy
) -> None:
    stack.start_scheduler()
    worker = stack.start_worker(broker_url=proxy.url)
    stack.completed(stack.start("counter"))

    assert proxy.strand() > 0
    run_id = stack.start("counter")

    run = stack.client.wait(run_id, timeout_seconds=NOTICED_SECONDS)
    assert run.status is RunStatus.COMPLETED
    assert stack.tally(run_id) == ["one", "three"]
    assert worker.is_running
    assert stack.verdicts() == []
    assert stack.violations() == []


def test_a_worker_that_would_never_notice_exits_and_its_steps_go_on_elsewhere(
    stack: Stack, proxy: Proxy
) -> None:
    stack.processes.environment["CRASH_TEST_MUTANT"] = "a_consumer_that_misses_no_answer"
    stack.start_scheduler()
    worker = stack.start_worker(broker_url=proxy.url, grace_seconds=0)
    held = stack.start("waiter")
    stack.wait_for_call(held, "wait_at")

    assert proxy.strand() > 0
    queued = stack.start("counter")

    assert worker.wait(NOTICED_SECONDS) == 1, "so that a supervisor starts it anew"
    assert "its consumer is stuck" in worker.output
    stack.start_worker()
    stack.open_gate("gate")
    assert stack.completed(held).deaths == 0, "handed back, not lost"
    stack.completed(queued)
    assert (stack.tally(held), stack.tally(queued)) == (["before", "after"], ["one", "three"])
    assert stack.verdicts() == []
    assert stack.violations() == []


def test_a_broker_that_is_silent_for_a_while_costs_no_worker_and_no_run(
    stack: Stack, proxy: Proxy
) -> None:
    stack.start_scheduler()
    worker = stack.start_worker(broker_url=proxy.url)
    stack.completed(stack.start("counter"))

    proxy.freeze()
    before = proxy.accepted
    run_id = stack.start("counter")
    eventually(
        lambda: proxy.accepted > before,
        deadline_seconds=NOTICED_SECONDS,
        what="the worker giving up on its connections",
    )
    proxy.thaw()

    run = stack.client.wait(run_id, timeout_seconds=NOTICED_SECONDS)
    assert run.status is RunStatus.COMPLETED
    assert stack.tally(run_id) == ["one", "three"]
    assert worker.is_running
    assert stack.violations() == []
