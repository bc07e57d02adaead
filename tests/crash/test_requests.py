"""What is asked of a run, and what comes in for it, while its workers are killed."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from celeriac import Agent
from celeriac.states import EffectState, Phase, RunStatus
from tests.crash import asked_agents, slow_agents
from tests.crash.stack import Stack
from tests.processes import TestProcess
from tests.provider_server import ProviderServer, Reply
from tests.waiting import eventually

STOP_SECONDS = 30.0  # half a second on an idle machine; the provider hangs for a minute


def start_worker(
    stack: Stack, test_points: str = "", *, module: ModuleType = asked_agents
) -> TestProcess:
    return stack.processes.start_worker(module.__name__, test_points=test_points)


def start(stack: Stack, agent: Agent) -> str:
    """By the agent itself: no worker needs to have it yet."""
    return stack.client.start(agent, "hello").run_id


def survive(stack: Stack, place: str) -> None:
    """A worker is killed at this place, and another goes on."""
    start_worker(stack, f"{place}=kill")
    eventually(lambda: stack.processes.reached(place), what=place)
    start_worker(stack)


def roles(stack: Stack, run_id: str) -> list[str]:
    rows = stack.query(
        "SELECT role FROM celeriac.messages WHERE run_id = %s ORDER BY position", run_id
    )
    return [role for (role,) in rows]


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", ["step.after_claim@0", "step.before_commit@0", "step.after_commit@0"]
)
def test_a_word_is_told_once_whoever_dies_while_it_is_heard(stack: Stack, place: str) -> None:
    stack.start_scheduler()
    stack.open_gate("gate")
    run_id = start(stack, asked_agents.listener)
    stack.client.say(run_id, "in blue")

    survive(stack, place)

    assert stack.completed(run_id).result == "hello, in blue"
    assert roles(stack, run_id) == ["user", "user", "assistant", "results", "assistant"]
    assert stack.violations() == []


@pytest.mark.parametrize("place", ["step.before_commit@1", "step.after_commit@1"])
def test_a_word_during_a_call_is_told_once_after_its_result(stack: Stack, place: str) -> None:
    stack.start_scheduler()
    run_id = start(stack, asked_agents.listener)
    start_worker(stack, f"{place}=kill")
    stack.wait_for_call(run_id, "wait_at")
    stack.client.say(run_id, "in blue")
    stack.open_gate("gate")
    eventually(lambda: stack.processes.reached(place), what=place)

    start_worker(stack)

    assert stack.completed(run_id).result == "hello, in blue"
    assert roles(stack, run_id) == ["user", "assistant", "results", "user", "assistant"]
    assert stack.violations() == []


# Calls that another process executes --------------------------------------------------------------


def waiting(stack: Stack, run_id: str) -> None:
    eventually(
        lambda: stack.run(run_id).phase,
        until=lambda phase: phase is Phase.WAITING_EXTERNAL,
        what=f"run {run_id} waits for another process",
    )


def submit(stack: Stack, run_id: str) -> None:
    """As another process does."""
    told = stack.processes.start(["submit", run_id, "0.0", "0.1", "--result", "1", "--result", "2"])
    assert told.wait() == 0, told.output


# features: 004-26
def test_results_come_in_while_no_worker_lives_at_all(stack: Stack) -> None:
    stack.start_scheduler()
    worker = start_worker(stack)
    run_id = start(stack, asked_agents.scanner)
    waiting(stack, run_id)
    worker.kill_group()

    submit(stack, run_id)
    start_worker(stack)

    run = stack.completed(run_id)
    assert [effect.state for effect in run.effects] == [EffectState.COMMITTED] * 2
    assert run.deaths == 0, "it held nothing when the worker died"
    assert stack.violations() == []


@pytest.mark.parametrize("place", ["step.before_commit@1", "step.after_commit@1"])
def test_a_call_is_requested_once_whoever_dies_while_it_is(stack: Stack, place: str) -> None:
    stack.start_scheduler()
    run_id = start(stack, asked_agents.scanner)

    survive(stack, place)
    waiting(stack, run_id)
    submit(stack, run_id)

    run = stack.completed(run_id)
    assert [effect.attempt for effect in run.effects] == [1, 1]
    assert stack.events(run_id).count("call.requested") == 2
    assert stack.violations() == []


# A model that is being asked ----------------------------------------------------------------------


@pytest.fixture
def provider(stack: Stack) -> Iterator[ProviderServer]:
    with ProviderServer([Reply.hanging(60), Reply.text("done")]) as server:
        stack.processes.environment[slow_agents.PROVIDER_URL] = server.url
        yield server


def ask_model(stack: Stack, provider: ProviderServer) -> str:
    run_id = start(stack, slow_agents.slow)
    eventually(lambda: len(provider.requests) == 1, what="the model is asked")
    return run_id


def test_a_cancel_ends_a_slow_model_call_in_another_process(
    stack: Stack, provider: ProviderServer
) -> None:
    stack.start_scheduler()
    start_worker(stack, module=slow_agents)
    run_id = ask_model(stack, provider)

    stack.client.cancel(run_id)

    assert provider.wait_until_idle(STOP_SECONDS), "the request's connection is still open"
    stack.client.wait(run_id, timeout_seconds=STOP_SECONDS)
    assert stack.run(run_id).status is RunStatus.CANCELLED
    assert stack.query("SELECT outcome FROM celeriac.model_calls") == [("interrupted",)]
    assert stack.violations() == []


def test_an_interrupt_holds_though_the_worker_that_heard_of_it_dies(
    stack: Stack, provider: ProviderServer
) -> None:
    stack.start_scheduler()
    start_worker(stack, "step.before_commit@0=kill", module=slow_agents)
    run_id = ask_model(stack, provider)

    stack.client.interrupt(run_id)
    eventually(lambda: stack.processes.reached("step.before_commit@0"), what="its death")
    start_worker(stack, module=slow_agents)
    eventually(
        lambda: stack.run(run_id).phase,
        until=lambda phase: phase is Phase.WAITING_USER,
        what="the run waits for its user",
    )
    assert len(provider.requests) == 1, "nobody asked the model again"

    stack.client.say(run_id, "go on")
    assert stack.completed(run_id).result == "done"
    assert stack.violations() == []
