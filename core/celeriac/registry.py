"""Finding agents in the modules that a user names."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from celeriac.agent import Agent
from celeriac.errors import InvalidAgent


def load_agents(modules: Sequence[str]) -> dict[str, Agent]:
    """Import modules, by dotted name or path of a .py file, and return their agents by name.

    The current directory is importable, as for Celery. Raises `InvalidAgent` if a module cannot be
    imported or has no agent, or if two agents have one name.
    """
    if not modules:
        raise InvalidAgent(
            "no agents: name the modules that hold them with --agents or CELERIAC_AGENTS, "
            "comma-separated, for example examples/order_desk.py"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    agents: dict[str, Agent] = {}
    origins: dict[str, str] = {}
    for name in modules:
        found = [value for value in vars(_import(name)).values() if isinstance(value, Agent)]
        if not found:
            raise InvalidAgent(f"module {name} has no Agent at its top level")
        for agent in found:
            if agents.get(agent.name, agent) is not agent:
                raise InvalidAgent(
                    f"two agents are called {agent.name}: in {origins[agent.name]} and in {name}"
                )
            agents[agent.name] = agent
            origins[agent.name] = name
    return agents


def _import(name: str) -> ModuleType:
    try:
        return _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except InvalidAgent:
        raise
    except Exception as error:
        raise InvalidAgent(
            f"module {name} cannot be imported ({type(error).__name__}: {error}); give a dotted "
            f"name that Python finds from {Path.cwd()}, or the path of a .py file"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidAgent(f"there is no file {path.absolute()}")
    # Under its own name, so that what it imports from beside it finds the same module.
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path.absolute()):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.absolute().parent))
    spec.loader.exec_module(module)
    return module
