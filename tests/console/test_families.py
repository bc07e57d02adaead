"""A run's page shows the runs below it as a tree, and each of them the one above it."""

from collections.abc import Iterator

import pytest

from celeriac import Agent
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac_storage.database import Database
from tests.console.visitor import Visitor, Visitors
from tests.family import Family

helper = Agent("helper", ScriptedModel([say("done")]))
boss = Agent(
    "boss",
    ScriptedModel([Turn(calls=tuple(ToolCall("helper", {"input": n}) for n in "ab")), say("good")]),
    tools=[helper.as_tool()],
)
director = Agent(
    "director", ScriptedModel([call("boss", input="have it done"), say("good")]),
    tools=[boss.as_tool()],
)  # fmt: skip


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [helper, boss, director])
    yield family
    assert family.violations() == []
    family.close()


def tree(visitor: Visitor, run_id: str) -> str:
    return visitor.read(f"/runs/{run_id}").partition('id="family"')[2].partition("</section>")[0]


def test_the_runs_below_a_run_are_a_tree_with_their_states(
    visitors: Visitors, family: Family
) -> None:
    run_id = family.start("director", user_id="alice")
    family.go_on(but=["helper"])
    of_boss, *of_helpers = family.children(run_id)
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")

    shown = tree(alice, run_id)

    first, *inner = [shown.index(f'id="child-{each}"') for each in (of_boss, *of_helpers)]
    assert shown.index("<ul>") > first  # one list below the first, which has both
    assert shown.count("<ul>") == 1
    assert all(place > shown.index("<ul>") for place in inner)
    assert shown.count(">queued<") == 2
    assert ">paused<" in shown
    assert "answers 0.0" in shown
    assert f'call 0.0 of <a href="/runs/{run_id}">' in alice.read(f"/runs/{of_boss}")
    assert f'call 0.1 of <a href="/runs/{of_boss}">' in alice.read(f"/runs/{of_helpers[1]}")
    assert tree(alice, of_helpers[0]) == ""
    assert bob.get(f"/runs/{of_helpers[0]}").status_code == 404

    family.go_on()

    shown = tree(alice, run_id)
    assert shown.count(">completed<") == 3
    assert "began" not in shown  # but how long each took
