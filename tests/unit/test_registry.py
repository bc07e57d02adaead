import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.errors import InvalidAgent
from celeriac.registry import load_agents

AGENT = "from celeriac import Agent\n{variable} = Agent({name!r}, 'openai:gpt-5')\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to start in; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path: Path, *names: str, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    agents = [AGENT.format(variable=f"agent_{at}", name=name) for at, name in enumerate(names)]
    path.write_text("".join(agents) + text)
    return path


def refusal_of(*modules: str) -> str:
    with pytest.raises(InvalidAgent) as refused:
        load_agents(modules)
    return str(refused.value)


def test_agents_are_found_in_modules_of_the_current_directory(place: Path) -> None:
    write(place / "registry_shop.py", "order-desk", "returns")
    write(place / "shop_package" / "agents.py", "billing")

    agents = load_agents(["registry_shop", "shop_package.agents"])

    assert list(agents) == ["order-desk", "returns", "billing"]
    assert all(agent.name == name for name, agent in agents.items())


def test_agents_are_found_in_a_file_that_imports_what_stands_beside_it(place: Path) -> None:
    write(place / "elsewhere" / "words_beside.py", text="NAME = 'beside'\n")
    path = write(
        place / "elsewhere" / "file_agents.py",
        text="import words_beside\nfrom celeriac import Agent\n"
        "a = Agent(words_beside.NAME, 'openai:gpt-5')\n",
    )

    assert list(load_agents([str(path)])) == ["beside"]
    assert list(load_agents(["elsewhere/file_agents.py"])) == ["beside"]


def test_an_agent_that_one_module_imports_from_another_is_one_agent(place: Path) -> None:
    write(place / "one_agents.py", "order-desk")
    write(place / "two_agents.py", "billing", text="from one_agents import agent_0 as theirs\n")

    assert set(load_agents(["one_agents", "two_agents"])) == {"order-desk", "billing"}
    assert set(load_agents(["one_agents", "one_agents.py"])) == {"order-desk"}


WORKFLOWS = """
from celeriac import Agent, workflow
writer = Agent("writer", "openai:gpt-5")

@workflow(agents=[writer])
async def write(ctx):
    return await ctx.child(writer, "a line")

@workflow(agents=[write])
async def write_more(ctx):
    await ctx.gather(ctx.child(write), ctx.child(write))
"""


def test_workflows_are_found_beside_agents_with_what_they_start(place: Path) -> None:
    write(place / "writing_flows.py", text=WORKFLOWS)
    write(place / "more_flows.py", text="from writing_flows import write_more\n")

    assert set(load_agents(["more_flows"])) == {"write_more", "write", "writer"}
    assert set(load_agents(["writing_flows"])) == {"write_more", "write", "writer"}


def test_a_workflow_and_an_agent_of_one_name_are_refused(place: Path) -> None:
    write(place / "naming_flows.py", text=WORKFLOWS)
    write(place / "naming_agents.py", "write")

    assert "called write: in naming_flows and in naming_agents" in refusal_of(
        "naming_flows", "naming_agents"
    )


def test_two_agents_of_one_name_are_refused_with_both_places(place: Path) -> None:
    write(place / "north_agents.py", "order-desk")
    write(place / "south_agents.py", "order-desk")

    told = refusal_of("north_agents", "south_agents")

    assert "two agents are called order-desk: in north_agents and in south_agents" in told


def test_no_module_at_all_is_refused_with_advice() -> None:
    assert "--agents or CELERIAC_AGENTS" in refusal_of()


def test_a_module_without_an_agent_is_refused(place: Path) -> None:
    write(place / "empty_agents.py", text="from celeriac import Agent\n")

    told = refusal_of("empty_agents")

    assert f"module empty_agents ({place / 'empty_agents.py'}) has no Agent" in told


def test_a_module_with_the_name_of_one_of_python_s_is_told_from_that_one(place: Path) -> None:
    write(place / "queue.py", "order-desk")

    told = refusal_of("queue")

    assert f"module queue ({sys.modules['queue'].__file__}) has no Agent" in told
    assert "rename yours" in told


@pytest.mark.parametrize("name", ["no_such_agents", "no_such_package.agents"])
def test_a_module_that_is_not_there_is_refused_with_the_place_that_was_searched(
    name: str, place: Path
) -> None:
    told = refusal_of(name)

    assert f"there is no module {name}: neither in {place} nor elsewhere on sys.path" in told
    assert "PYTHONPATH" in told


def test_who_names_the_object_as_well_is_told_how_a_module_is_named(place: Path) -> None:
    write(place / "shop_agents.py", "order-desk")

    assert "without an object's" in refusal_of("shop_agents:agent")


def test_a_file_that_is_not_there_is_refused(place: Path) -> None:
    assert f"there is no file {place / 'no_such.py'}" in refusal_of("no_such.py")


def test_an_error_inside_a_module_is_told_as_its_own(place: Path) -> None:
    write(place / "broken_agents.py", text="1 / 0\n")
    write(place / "needy_agents.py", text="import no_such_dependency\n")
    write(place / "wrong_agents.py", text="from celeriac import Agent\nAgent('a', '')\n")

    broken = refusal_of("broken_agents")
    assert "broken_agents failed while it was imported: ZeroDivisionError: division" in broken
    # Not "there is no module needy_agents", which would send people to look in the wrong place.
    needy = refusal_of("needy_agents")
    assert "needy_agents failed while it was imported: ModuleNotFoundError" in needy
    assert "no_such_dependency" in needy
    assert "module wrong_agents: agent a: '' is no model" in refusal_of("wrong_agents")


def test_a_module_that_failed_can_be_loaded_once_it_is_mended(place: Path) -> None:
    path = write(place / "mended_agents.py", text="import no_such_dependency\n")
    refusal_of("mended_agents.py")

    path.write_text(AGENT.format(variable="agent", name="mended") + "# longer than before\n" * 9)

    assert list(load_agents(["mended_agents.py"])) == ["mended"]


@pytest.mark.parametrize("name", ["json.py", "pytest.py"])
def test_a_file_never_takes_the_place_of_another_module(name: str, place: Path) -> None:
    taken = sys.modules[name.removesuffix(".py")]
    write(place / "inside" / name, "order-desk")

    assert "rename it" in refusal_of(f"inside/{name}")
    assert sys.modules[name.removesuffix(".py")] is taken
