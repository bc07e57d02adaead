"""Two runs step by step, and where they part. Nothing here writes.

What is compared is what was said, asked for and told, never ids or times: two runs that have done
the same are the same, and so are a fork and its origin up to where it was forked.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.replay import Difference, DoneCall, Side, Stage
from celeriac.states import RunStatus
from celeriac_storage import effects, history
from celeriac_storage.requests import erased, unknown_run
from celeriac_storage.run_report import use_of


def difference(connection: Connection, left: RunId, right: RunId) -> Difference:
    """Where the two part. Needs a transaction that has read nothing yet: it is made one snapshot.
    Raises `UnknownRun`, and `Conflict` if what one of them worked with was erased."""
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    runs = [_run(connection, run_id) for run_id in (left, right)]
    stages = [list(_stages(connection, run_id)) for run_id in (left, right)]
    same, parts_by = _part(*stages)
    ours, theirs = (
        Side(
            run_id,
            run.agent,
            run.agent_hash,
            RunStatus(run.status),
            run.outcome,
            run.result,
            run.error,
            run.step,
            run.tool_calls_used,
            use_of(connection, run_id),
            of_run[same:],
        )
        for run_id, run, of_run in zip((left, right), runs, stages, strict=True)
    )
    if parts_by is None and _ending(runs[0]) != _ending(runs[1]):
        parts_by = "ends"
    return Difference(ours, theirs, runs[0].input == runs[1].input, same, parts_by)


def _run(connection: Connection, run_id: RunId) -> Any:
    row: Any = connection.exec_driver_sql(
        "SELECT agent, agent_hash, status, outcome, input, result, error, step, tool_calls_used,"
        " erased_at FROM celeriac.runs WHERE run_id = %s",
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row.erased_at is not None:
        raise erased(run_id, row.erased_at)
    return row


def _ending(run: Any) -> tuple[JsonValue, ...]:
    return run.status, run.outcome, run.result, run.error


def _stages(connection: Connection, run_id: RunId) -> Iterator[Stage]:
    """The run's steps, after those of the runs that it is a fork of, up to where each was forked.

    The step in which a fork plans calls once more that its origin has asked for is none of its own.
    """
    links: Any = connection.exec_driver_sql(
        """
        WITH RECURSIVE link AS (
            SELECT run_id, forked_from, forked_step, NULL::integer AS until, 1 AS number
            FROM celeriac.runs WHERE run_id = %s
            UNION ALL
            SELECT origin.run_id, origin.forked_from, origin.forked_step, link.forked_step,
                number + 1
            FROM link JOIN celeriac.runs AS origin ON origin.run_id = link.forked_from
        )
        SELECT run_id, until FROM link ORDER BY number DESC
        """,
        (run_id,),
    ).all()
    for of_run, until in links:
        yield from _steps(connection, of_run, until)


def _steps(connection: Connection, run_id: RunId, until: int | None) -> Iterator[Stage]:
    steps: Any = connection.exec_driver_sql(
        """
        SELECT last.step, last.kind, last.reason, last.message_count,
            lag(last.message_count, 1, (forked_from IS NULL)::int) OVER (ORDER BY last.step)
                AS before
        FROM celeriac.checkpoints AS last JOIN celeriac.runs AS run USING (run_id)
        WHERE run_id = %s AND last.step < coalesce(%s::int, last.step + 1) ORDER BY last.step
        """,
        (run_id, until),
    ).all()
    messages = history.load_messages(connection, run_id)
    calls = _calls(connection, run_id)
    for step, kind, reason, count, before in steps:
        added = messages[before:count]
        told = [call for message in added for call in _told(connection, message, calls)]
        said = [text for message in added for text in _texts(message.body)]
        asked = [call for call in calls.values() if call.call_id.startswith(f"{step}.")]
        if reason != "forked":
            yield Stage(run_id, step, kind, said, asked if kind == "think" else [], told)
        elif told:
            yield Stage(run_id, step, kind, [], [], told)


def _calls(connection: Connection, run_id: RunId) -> dict[CallId, DoneCall]:
    rows = connection.exec_driver_sql(
        "SELECT call_id FROM celeriac.effects WHERE run_id = %s AND rolls_back IS NULL", (run_id,)
    )
    loaded = effects.load(connection, run_id, [CallId(row[0]) for row in rows])
    return {
        call.call_id: DoneCall(
            call.call_id, call.tool, call.arguments, call.state, call.result, call.error
        )
        for call in loaded
    }


def _told(
    connection: Connection, message: history.StoredMessage, calls: dict[CallId, DoneCall]
) -> list[DoneCall]:
    if message.role != "results":
        return []
    of_run: Any = message.body.get("run", message.run_id)
    known = calls if of_run == message.run_id else _calls(connection, of_run)
    listed: Any = message.body["calls"]
    return [known[call] for call in listed]


def _texts(body: dict[str, JsonValue]) -> Iterator[str]:
    parts = body.get("parts")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and part.get("part_kind") in (None, "retry-feedback"):
            content = part.get("content", part.get("feedback"))
            if isinstance(content, str):
                yield content


def _part(left: Sequence[Stage], right: Sequence[Stage]) -> tuple[int, str | None]:
    """After how many steps, and by what."""
    for number, (ours, theirs) in enumerate(zip_longest(left, right)):
        if ours is None or theirs is None:
            return number, "ends"
        for name in ("said", "asked", "told"):
            if _compared(name, ours) != _compared(name, theirs):
                return number, name
    return len(left), None


def _compared(name: str, stage: Stage) -> Sequence[object]:
    if name == "said":
        return [stage.kind, *stage.said]
    if name == "asked":
        return [(call.tool, call.arguments) for call in stage.asked]
    return [(call.tool, call.arguments, call.state, call.result, call.error) for call in stage.told]
