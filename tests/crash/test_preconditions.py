"""A worker dies around the question whether a call may still be made."""

# features: 004-25
import pytest

from celeriac.states import EffectState, RunStatus
from tests.crash import guarded_agents as agents
from tests.crash.stack import Stack
from tests.waiting import eventually

SPEND = 1
ASKING = ["act.before_precondition", "act.after_precondition"]
CASES = [
    *(("spender", "spend", point) for point in [*ASKING, "act.before_tool", "act.after_tool"]),
    *(("transferrer", "transfer", point) for point in [*ASKING, "act.before_call"]),
]


def dead_worker(stack: Stack, agent: str, point: str) -> str:
    """A run whose worker has died there."""
    stack.execute(agents.CREATE_ACCOUNT)
    stack.start_scheduler()
    place = f"{point}@{SPEND}"
    stack.processes.start_worker(agents.__name__, test_points=f"{place}=kill")
    run_id = stack.start(agent)
    eventually(lambda: stack.processes.reached(place), what="the worker's death")
    return run_id


@pytest.mark.parametrize(("agent", "point"), [(agent, point) for agent, _, point in CASES])
def test_a_death_around_the_check_spends_once_if_it_still_holds(
    stack: Stack, agent: str, point: str
) -> None:
    run_id = dead_worker(stack, agent, point)

    stack.processes.start_worker(agents.__name__)
    stack.completed(run_id)

    ((cents,),) = stack.query("SELECT cents FROM crash.account")
    assert cents == 1000 - agents.SPENT_CENTS
    assert stack.violations() == []


@pytest.mark.parametrize(("agent", "tool", "point"), CASES)
def test_a_yes_from_before_a_death_is_not_believed_afterwards(
    stack: Stack, agent: str, tool: str, point: str
) -> None:
    run_id = dead_worker(stack, agent, point)
    before = len(stack.calls(run_id, tool))

    stack.query("UPDATE crash.account SET cents = 10 RETURNING cents")
    stack.processes.start_worker(agents.__name__)
    run = stack.wait(run_id)

    assert run.status is RunStatus.NEEDS_ATTENTION
    assert run.effects[0].state is EffectState.PRECONDITION_FAILED
    assert len(stack.calls(run_id, tool)) == before
    assert stack.query("SELECT cents FROM crash.account") == [(10,)]
    assert stack.violations() == []
