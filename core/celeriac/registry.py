"""Finding agents, workflows and an embedder in the modules that a user names."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from celeriac.agent import Agent
from celeriac.errors import InvalidAgent
from celeriac.memory.embedding import Embedder, checked_embedder
from celeriac.workflows.definition import Workflow


def load_agents(modules: Sequence[str]) -> dict[str, Agent]:
    """Import modules, by dotted name or path of a .py file, and return their agents by name,
    workflows among them.

    The current directory is importable, as for Celery. Raises `InvalidAgent` if a module cannot be
    imported or has no agent, or if two agents have one name.
    """
    if not modules:
        raise InvalidAgent(
            "no agents: name the modules that hold them with --agents or CELERIAC_AGENTS, "
            "comma-separated, for example examples/order_desk.py"
        )
    _make_importable(Path.cwd())
    agents: dict[str, Agent] = {}
    origins: dict[str, str] = {}
    for name in modules:
        module = _import(name)
        found = [value for value in vars(module).values() if isinstance(value, Agent)]
        if not found:
            raise InvalidAgent(
                f"module {name} ({getattr(module, '__file__', None) or 'built in'}) has no Agent "
                "or workflow at its top level; assign one to a name there, or leave the module out "
                "of --agents and CELERIAC_AGENTS. Is that file not yours? Then rename yours: "
                "another module has its name"
            )
        for agent in _with_children(found):
            # The same object twice is an agent that one module imports from another.
            if agents.get(agent.name, agent) is not agent:
                raise InvalidAgent(
                    f"two agents are called {agent.name}: in {origins[agent.name]} and in {name}; "
                    "runs are found by that name, so give one of them another"
                )
            agents[agent.name] = agent
            origins.setdefault(agent.name, name)
    return agents


def load_embedder(place: str) -> Embedder:
    """The embedder at `MODULE:NAME`, the module as in `load_agents`; a class is called without
    arguments. Raises `InvalidAgent` for what is not there, is none, or cannot be made."""
    module, _, name = place.rpartition(":")
    _make_importable(Path.cwd())
    imported = _import(module)
    if not hasattr(imported, name):
        raise InvalidAgent(f"{module} has no {name}: name the embedder there, as MODULE:NAME")
    found = getattr(imported, name)
    try:
        return checked_embedder(found() if isinstance(found, type) else found)
    except InvalidAgent as error:
        raise InvalidAgent(f"{place}: {error}") from error
    except Exception as error:
        raise InvalidAgent(f"{place} cannot be made: {type(error).__name__}: {error}") from error


def _with_children(agents: Sequence[Agent]) -> list[Agent]:
    """The agents, and those whose runs they start, each once."""
    known: dict[int, Agent] = {}
    todo = list(agents)
    while todo:
        agent = todo.pop(0)
        if id(agent) not in known:
            known[id(agent)] = agent
            todo.extend(tool.agent for tool in agent.tools if tool.agent is not None)
            if isinstance(agent, Workflow):
                todo.extend(agent.agents)
    return list(known.values())


def _import(name: str) -> ModuleType:
    try:
        return _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except InvalidAgent as error:  # of the module's own agents and tools, or of the file
        raise InvalidAgent(f"module {name}: {error}") from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise InvalidAgent(
                f"there is no module {name}: neither in {Path.cwd()} nor elsewhere on sys.path. "
                "Give a module's dotted name without an object's (shop.agents, not "
                "shop.agents:desk) or the path of a .py file; and start in the directory that "
                "holds it, or add that to PYTHONPATH"
            ) from error
        raise InvalidAgent(
            f"module {name} failed while it was imported: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InvalidAgent(f"there is no file {path}")
    # Under its own name, so that what it imports from beside it finds the same module.
    name = path.stem
    if name not in sys.stdlib_module_names:
        _make_importable(path.parent)
        importlib.invalidate_caches()  # the file may be younger than the last look at its directory
        module = importlib.import_module(name)
        if module.__file__ is not None and Path(module.__file__).resolve() == path:
            return module
    raise InvalidAgent(f"another module is called {name} too, so {path} is not found; rename it")


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
