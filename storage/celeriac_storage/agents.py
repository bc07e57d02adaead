"""Agents as workers registered them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert as upsert

from celeriac.codec import JsonValue
from celeriac.ids import WorkerId
from celeriac_storage import tables
from celeriac_storage.workers import IS_ALIVE


def register_agent(
    connection: Connection, agent: str, agent_hash: str, definition: dict[str, JsonValue]
) -> None:
    """Record an agent's definition under its hash, as the latest one: it may come back when a
    deploy is rolled back."""
    connection.execute(
        upsert(tables.agents)
        .values(agent=agent, agent_hash=agent_hash, definition=definition)
        .on_conflict_do_update(
            index_elements=["agent", "agent_hash"],
            set_={"registered_at": func.clock_timestamp()},
        )
    )


def latest_definition(connection: Connection, agent: str) -> dict[str, JsonValue] | None:
    """The agent's definition as a worker last registered it, or None if none ever did."""
    row = connection.execute(
        select(tables.agents.c.definition)
        .where(tables.agents.c.agent == agent)
        .order_by(tables.agents.c.registered_at.desc())
        .limit(1)
    ).first()
    return None if row is None else row.definition


def known_agents(connection: Connection) -> list[str]:
    """The names of all agents any worker ever registered, in order."""
    return list(
        connection.scalars(select(tables.agents.c.agent).distinct().order_by(tables.agents.c.agent))
    )


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent as workers registered it, and those of them that live."""

    agent: str
    definition: dict[str, JsonValue]  # the latest
    workers: Sequence[WorkerId]
    queues: Sequence[str]  # that those workers serve


def list_known_agents(connection: Connection) -> list[KnownAgent]:
    """Every agent that some worker ever registered, by name."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT agent, definition,
            ARRAY(
                SELECT worker_id FROM celeriac.workers
                WHERE agent = ANY (agents) AND {IS_ALIVE} ORDER BY worker_id
            ),
            ARRAY(
                SELECT DISTINCT queue FROM celeriac.workers, unnest(queues) AS queue
                WHERE agent = ANY (agents) AND {IS_ALIVE} ORDER BY queue
            )
        FROM (
            SELECT DISTINCT ON (agent) agent, definition FROM celeriac.agents
            ORDER BY agent, registered_at DESC
        ) AS registered
        ORDER BY agent
        """
    ).fetchall()
    return [KnownAgent(*row) for row in rows]
