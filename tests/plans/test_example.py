"""`examples/research_plan.py` does what it says."""

from celeriac.plan import graph
from celeriac.reports import Run
from celeriac.states import RunStatus
from examples import research_plan
from tests.family import Family


def test_the_planner_has_its_plan_executed_and_tells_the_answer(
    database_url: str, broker_url: str
) -> None:
    agents = [research_plan.planner, research_plan.research, research_plan.writer]
    family = Family(database_url, broker_url, agents)
    try:
        run_id = family.start("planner", "Which room?")
        family.go_on()

        run: Run = family.run(run_id)
        assert (run.status, run.result) == (
            RunStatus.COMPLETED,
            "Keep the seed potatoes in the room north.",
        )
        (child,) = [each for each in run.children if each.parent.run_id == run_id]
        report = family.client.plan(child.run_id)
        assert [(node.layer, node.id, node.state.value) for node in report.steps] == [
            (0, "search-north", "completed"),
            (0, "search-south", "completed"),
            (0, "search-cellar", "completed"),
            (1, "compare", "completed"),
            (2, "write", "completed"),
        ]
        assert family.violations() == []
    finally:
        family.close()


def test_it_has_three_layers() -> None:
    assert len(graph.layers(research_plan.PLAN.needs)) == 3
