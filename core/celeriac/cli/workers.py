"""`celeriac workers` and `celeriac agents`: who is there, and what they can run."""

from typing import TYPE_CHECKING, Any

import typer

from celeriac.cli.environment import database_url, environment
from celeriac.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.settings import Settings
    from celeriac_storage.agents import KnownAgent


def workers(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers: the live ones first, then the ones that left last."""
    with environment(context).client() as client:
        found = client.workers()
    if as_json:
        for worker in found:
            print_json(worker)
        return
    print_table(
        ["worker", "host", "pid", "alive", "running"],
        [
            (
                worker.worker_id,
                worker.hostname,
                worker.pid,
                "yes" if worker.alive else "no",
                ", ".join(worker.running) or None,
            )
            for worker in found
        ],
        empty="no worker has ever been here; start one with `celeriac worker --agents MODULE`",
    )


def agents(context: typer.Context, as_json: AsJson = False) -> None:
    """List the agents in the named modules, and the ones that workers registered."""
    settings = environment(context).settings()
    here = _agents_here(settings)
    there = _agents_there(settings) if settings.database_url is not None or not here else {}
    lines = [_line(name, here.get(name), there.get(name)) for name in sorted({*here, *there})]
    if as_json:
        for line in lines:
            print_json(line)
        return
    print_table(
        ["agent", "in modules", "model", "tools", "live workers", "queues"],
        [
            (
                line["agent"],
                "yes" if line["in_modules"] else "no",
                line["model"],
                ", ".join(line["tools"]) or None,
                len(line["workers"]),
                ", ".join(line["queues"]) or None,
            )
            for line in lines
        ],
        empty="no agents; name the modules that hold them with --agents or CELERIAC_AGENTS",
    )


def _agents_here(settings: "Settings") -> "dict[str, Agent]":
    if not settings.agent_modules:
        return {}
    from celeriac.registry import load_agents

    return load_agents(settings.agent_modules)


def _agents_there(settings: "Settings") -> "dict[str, KnownAgent]":
    from celeriac_storage.agents import list_known_agents
    from celeriac_storage.database import Database
    from celeriac_storage.schema import check_schema

    database = Database(database_url(settings), connections=1)
    try:
        check_schema(database)
        with database.connect() as connection:
            return {found.agent: found for found in list_known_agents(connection)}
    finally:
        database.close()


def _line(name: str, here: "Agent | None", there: "KnownAgent | None") -> dict[str, Any]:
    """What is known of the agent; of its code in the named modules rather than a worker's."""
    definition: Any = here.definition() if here else there.definition if there else {}
    return {
        "agent": name,
        "in_modules": here is not None,
        "model": definition.get("model"),
        "tools": [tool["name"] for tool in definition.get("tools", [])],
        "workers": there.workers if there else [],
        "queues": there.queues if there else [],
    }
