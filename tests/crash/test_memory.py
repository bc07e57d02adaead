"""What is remembered survives whoever dies: with its decision, or not at all; and once."""

# features: 000-02, 000-03, 000-04, 000-31, 000-32, 002-29, 004-11, 004-12
import pytest

from celeriac.states import Phase, RunStatus
from examples import concierge
from tests.crash import meaning_agents
from tests.crash.stack import DONE_SECONDS, Stack
from tests.processes import TestProcess
from tests.waiting import eventually

AGENTS = concierge.__name__
ASKS = "Remember that I prefer aisle seats."
THINK, REMEMBER, ANSWER = 0, 1, 2


def start_worker(stack: Stack, test_points: str = "") -> TestProcess:
    return stack.processes.start_worker(AGENTS, test_points=test_points)


def rows(stack: Stack) -> tuple[int, int]:
    """How many decisions there are, and how many memories."""
    ((decisions, memories),) = stack.query(
        "SELECT (SELECT count(*) FROM celeriac.memory_decisions),"
        " (SELECT count(*) FROM celeriac.memories)"
    )
    return decisions, memories


def dies_at(stack: Stack, place: str) -> str:
    """A run whose only worker has died there."""
    stack.start_scheduler()
    worker = start_worker(stack, f"{place}=kill")
    run_id = stack.client.start("concierge", ASKS, user_id="alice").run_id
    worker.wait(DONE_SECONDS)
    return run_id


def wait_for_proposal(stack: Stack, run_id: str) -> None:
    eventually(
        lambda: stack.run(run_id).phase is Phase.WAITING_APPROVAL,
        deadline_seconds=DONE_SECONDS,
        what=f"run {run_id} waits for a decision",
    )


@pytest.mark.parametrize(
    ("place", "left"),
    [
        (f"think.after_model_call@{THINK}", (0, 0)),
        (f"act.after_tool@{REMEMBER}", (0, 0)),
        (f"step.before_commit@{REMEMBER}", (0, 0)),
        (f"step.after_commit@{REMEMBER}", (1, 1)),
    ],
)
def test_a_death_leaves_decision_and_memory_or_neither(
    stack: Stack, place: str, left: tuple[int, int]
) -> None:
    run_id = dies_at(stack, place)
    assert rows(stack) == left

    start_worker(stack)
    stack.completed(run_id)

    assert rows(stack) == (1, 1)
    assert [memory.value for memory in stack.client.memories("alice")] == ["Prefers aisle seats"]
    types = [event.type for event in stack.client.events(run_id)]
    assert types.count("memory.decided") == 1
    assert stack.violations() == []


def test_who_takes_over_after_a_recall_is_shown_the_same(stack: Stack) -> None:
    stack.client.remember("seat", "Prefers aisle seats", user_id="alice")
    run_id = dies_at(stack, f"think.after_recall@{THINK}")
    ((chosen, at),) = stack.query("SELECT selection::text, at FROM celeriac.recalls")
    stack.client.remember("seat-2", "Remembered seats that I prefer", user_id="alice")

    start_worker(stack)
    stack.completed(run_id)

    assert stack.query(
        "SELECT selection::text, at FROM celeriac.recalls WHERE step = %s", THINK
    ) == [(chosen, at)]
    ((shown,),) = stack.query("SELECT selection FROM celeriac.model_calls WHERE step = %s", THINK)
    assert [each["key"] for each in shown["memories"]["included"]] == ["seat"]
    assert stack.violations() == []


def test_who_dies_before_vectors_are_stored_leaves_them_to_whoever_recalls_next(
    stack: Stack,
) -> None:
    stack.client.remember("seat", "Prefers aisle seats", user_id="alice")
    stack.start_scheduler()
    module = meaning_agents.__name__
    worker = stack.processes.start_worker(module, test_points="recall.after_embedding@0=kill")
    run_id = stack.client.start("meaningful", "Which seat?", user_id="alice").run_id
    worker.wait(DONE_SECONDS)
    assert stack.query("SELECT FROM celeriac.memory_vectors") == []
    assert stack.query("SELECT FROM celeriac.recalls") == []

    stack.processes.start_worker(module)
    stack.completed(run_id)

    assert stack.query("SELECT memory_key, version FROM celeriac.memory_vectors") == [("seat", 1)]
    assert stack.violations() == []


def test_the_concierge_pauses_is_approved_elsewhere_and_remembers(stack: Stack) -> None:
    """A worker that dies while it waits, the process of whoever approves, and another worker."""
    stack.start_scheduler()
    first = start_worker(stack)
    run_id = stack.client.start("concierge", f"Book Kyoto. {ASKS}", user_id="alice").run_id
    wait_for_proposal(stack, run_id)
    first.kill_group()
    assert rows(stack) == (0, 0)
    (proposal,) = stack.client.approvals(run_id=run_id, by="olga")
    stack.client.approve(proposal.approval_id, by="olga")
    assert stack.query("SELECT to_regclass('bookings')") == [(None,)], "nobody is there to book"

    start_worker(stack)
    run = stack.completed(run_id)

    assert {step.worker_id for step in run.steps} != {run.steps[0].worker_id}, "two processes"
    assert rows(stack) == (1, 1)
    assert stack.query("SELECT user_id, journey, seat FROM bookings") == [("alice", "Kyoto", "any")]

    other = stack.client.start("concierge", "Book Osaka.", user_id="alice").run_id
    stranger = stack.client.start("concierge", "Book Nara.", user_id="bob").run_id
    wait_for_proposal(stack, other)
    wait_for_proposal(stack, stranger)
    ((seat,),) = stack.query(
        "SELECT arguments ->> 'seat' FROM celeriac.effects WHERE run_id = %s", other
    )
    assert seat == "Prefers aisle seats", "what was remembered is there in another thread"
    ((seat,),) = stack.query(
        "SELECT arguments ->> 'seat' FROM celeriac.effects WHERE run_id = %s", stranger
    )
    assert seat == "any", "and for nobody else"
    assert stack.run(other).status is RunStatus.PAUSED
    assert stack.violations() == []
