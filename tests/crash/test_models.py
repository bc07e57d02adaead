"""A model that fails, or answers otherwise each time, and workers that die meanwhile."""

from signal import SIGKILL
from typing import Any

import pytest

from celeriac.states import Phase
from tests.crash import budget_agents
from tests.crash.stack import DONE_SECONDS, Stack, count_killed
from tests.provider_server import ProviderServer, Reply
from tests.waiting import eventually

AGENTS = budget_agents.__name__


def model_calls(stack: Stack, run_id: str) -> list[tuple[Any, ...]]:
    return stack.query(
        "SELECT step, attempt, outcome FROM celeriac.model_calls WHERE run_id = %s"
        " ORDER BY step, attempt",
        run_id,
    )


# features: 003-20, 004-08, 004-53
@pytest.mark.parametrize(
    "place", ["step.after_commit@0", "act.before_tool@1", "step.before_commit@1"]
)
def test_a_model_that_would_answer_otherwise_by_now_is_taken_at_its_first_word(
    stack: Stack, place: str
) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        """Another one at each question."""
        if (last := request["messages"][-1])["role"] == "tool":
            return Reply.text(f"read: {last['content']}")
        return Reply.tool_call("look", f'{{"label": "answer {len(provider.requests)}"}}')

    with ProviderServer(answer) as provider:
        stack.processes.environment["BILLING_URL"] = provider.url
        stack.start_scheduler()
        workers = stack.processes.start_workers(2, AGENTS, test_points=f"{place}=kill")

        run = stack.completed(stack.start("reader", "Please read."))

    eventually(lambda: count_killed(workers), until=lambda n: n == 1, what="the death")
    assert run.result == "read: answer 0"
    assert len(provider.requests) == 2
    _, called, told = provider.requests[-1]["messages"]
    assert told["tool_call_id"] == called["tool_calls"][0]["id"]
    assert model_calls(stack, run.run_id) == [(0, 1, "answered"), (2, 1, "answered")]
    assert stack.violations() == []


# features: 003-11, 004-05
def test_attempts_are_counted_on_over_the_deaths_of_workers(stack: Stack) -> None:
    def waiting(attempts: int) -> None:
        eventually(
            lambda: (stack.run(run_id).phase, len(model_calls(stack, run_id))),
            until=lambda found: found == (Phase.WAITING_TIMER, attempts),
            deadline_seconds=DONE_SECONDS,
            what=f"the run waits after attempt {attempts}",
        )

    def wake() -> None:
        stack.execute("UPDATE celeriac.runs SET wake_at = now()")

    later = {"Retry-After": "600"}  # so that it waits until this test says otherwise
    replies = [Reply.rate_limited("600"), Reply.error(503, "busy", headers=later)]
    with ProviderServer([*replies, replies[0], Reply.text("done")]) as provider:
        stack.processes.environment["BILLING_URL"] = provider.url
        stack.start_scheduler()
        first = stack.processes.start_worker(AGENTS)
        run_id = stack.start("reader", "Hello.")
        waiting(1)
        wake()
        waiting(2)
        first.kill_group()
        second = stack.processes.start_worker(AGENTS, test_points="think.before_model_call@0=kill")
        wake()
        assert second.wait() == -SIGKILL
        stack.processes.start_worker(AGENTS)
        waiting(3)
        wake()
        run = stack.completed(run_id)

    assert model_calls(stack, run_id) == [
        (0, 1, "rate_limited"), (0, 2, "server_error"), (0, 3, "rate_limited"), (0, 4, "answered"),
    ]  # fmt: skip
    assert len(provider.requests) == 4
    assert (run.deaths, len(run.steps)) == (1, 1)
    told = [each.data for each in stack.client.events(run_id) if each.type == "model.failed"]
    assert [(each["attempt"], each["epoch"]) for each in told] == [(1, 1), (2, 2), (3, 4)]
    assert stack.violations() == []
