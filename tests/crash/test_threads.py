"""What was said is there for whoever goes on: after a kill, and in the thread's next run."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.crash import budget_agents
from tests.crash.stack import Stack, count_killed
from tests.provider_server import ProviderServer, Reply
from tests.waiting import eventually

AGENTS = budget_agents.__name__


def answer(request: dict[str, Any]) -> Reply:
    """Read when asked to, and say what was read."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        return Reply.text(f"I have read: {last['content']}")
    if "read" in last["content"]:
        return Reply.tool_call("look", '{"label": "the file"}')
    return Reply.text("I will remember.")


@pytest.fixture
def provider(stack: Stack) -> Iterator[ProviderServer]:
    with ProviderServer(answer) as server:
        stack.processes.environment["BILLING_URL"] = server.url
        stack.start_scheduler()
        yield server


def said(request: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(message["role"], message["content"]) for message in request["messages"]]


# features: 004-12, 000-03
def test_a_new_process_knows_what_the_thread_said_before(
    stack: Stack, provider: ProviderServer
) -> None:
    worker = stack.processes.start_worker(AGENTS)
    stack.completed(stack.start("reader", "My number is 42.", thread_id="t-1"))
    worker.kill_group()
    stack.processes.start_worker(AGENTS)

    stack.completed(stack.start("reader", "What is my number?", thread_id="t-1"))
    stack.completed(stack.start("reader", "What is my number?", thread_id="t-2"))

    assert said(provider.requests[-2]) == [
        ("user", "My number is 42."),
        ("assistant", "I will remember."),
        ("user", "What is my number?"),
    ]
    assert said(provider.requests[-1]) == [("user", "What is my number?")]
    ((copies,),) = stack.query(
        "SELECT count(*) FROM celeriac.messages WHERE body::text LIKE '%%number is 42%%'"
    )
    assert copies == 1, "a later run refers to what an earlier one said, and does not copy it"


# features: 004-12
@pytest.mark.parametrize("point", ["think.before_model_call", "think.after_model_call"])
def test_a_kill_in_the_first_model_call_does_not_lose_the_prompt(
    stack: Stack, provider: ProviderServer, point: str
) -> None:
    workers = stack.processes.start_workers(2, AGENTS, test_points=f"{point}@0=kill")

    run = stack.completed(stack.start("reader", "My number is 42."))

    eventually(lambda: count_killed(workers), until=lambda n: n == 1, what="the death")
    assert said(provider.requests[-1]) == [("user", "My number is 42.")]
    ((messages,),) = stack.query(
        "SELECT count(*) FROM celeriac.messages WHERE run_id = %s AND role = 'user'", run.run_id
    )
    assert messages == 1


# features: 004-12
@pytest.mark.parametrize("point", ["step.after_commit@1", "think.before_model_call@2"])
def test_after_a_kill_the_model_sees_what_was_read_and_nothing_is_read_again(
    stack: Stack, provider: ProviderServer, point: str
) -> None:
    workers = stack.processes.start_workers(2, AGENTS, test_points=f"{point}=kill")

    run = stack.completed(stack.start("reader", "Please read."))

    eventually(lambda: count_killed(workers), until=lambda n: n == 1, what="the death")
    assert run.result == "I have read: the file"
    assert len(stack.calls(run.run_id, "look")) == 1
    assert said(provider.requests[-1])[-1] == ("tool", "the file")
    assert stack.violations() == []
