"""The log of a workflow as rows: read by its next turn, written by the commit of one.

Whoever writes here has locked the workflow's run. What a run is to do for an entry is inserted with
it, in one statement however many there are, so that neither is ever there without the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import RunId, call_id
from celeriac.limits import Use
from celeriac.states import EffectState, Phase
from celeriac.workflows.entry import Asked, Entry, EntryKind
from celeriac_storage import approvals, run_events
from celeriac_storage.approvals import Proposal
from celeriac_storage.claims import Claim
from celeriac_storage.database import fetch_row
from celeriac_storage.dispatch import Due
from celeriac_storage.entry_ids import entry_id
from celeriac_storage.step_record import Event, PlannedEffect

FIRST_CALL = call_id(0, 0)
"""Of an activity's run: the only one that it has."""


def load(
    connection: Connection, claim: Claim, *, from_number: int = 0, from_told: int = 0
) -> list[Entry]:
    """The entries from `from_number` on, and the earlier ones whose end is the `from_told`th or
    later, in the order of their numbers: as of one moment."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        """
        SELECT number, kind, name, arguments, label, told,
            CASE WHEN result_artifact IS NULL THEN result
                ELSE convert_from(content, 'UTF8')::jsonb END,
            error
        FROM (
            SELECT * FROM celeriac.activities
            WHERE run_id = %(run_id)s AND generation = %(generation)s
                AND number >= %(from_number)s
            UNION ALL
            SELECT * FROM celeriac.activities
            WHERE run_id = %(run_id)s AND generation = %(generation)s
                AND number < %(from_number)s AND told >= %(from_told)s
        ) AS entry LEFT JOIN celeriac.artifacts ON hash = result_artifact
        ORDER BY number
        """,
        {
            "run_id": claim.run_id,
            "generation": claim.generation,
            "from_number": from_number,
            "from_told": from_told,
        },
    ).fetchall()
    return [_entry(number, EntryKind(kind), *values) for number, kind, *values in rows]


def _entry(
    number: int,
    kind: EntryKind,
    name: str,
    arguments: JsonValue,
    label: str | None,
    told: int | None,
    result: JsonValue,
    error: dict[str, JsonValue] | None,
) -> Entry:
    if kind.is_answered_at_once:
        return Entry(Asked(number, kind, name, arguments, result, label=label))
    return Entry(Asked(number, kind, name, arguments, label=label), told, result, error)


def load_groups(connection: Connection, claim: Claim) -> dict[int, int]:
    """The entries that have not ended and that the run waits for, each with its group."""
    rows = connection.exec_driver_sql(
        "SELECT number, wait_group FROM celeriac.activities WHERE run_id = %s AND generation = %s"
        " AND told IS NULL AND wait_group IS NOT NULL",
        (claim.run_id, claim.generation),
    )
    return {row[0]: row[1] for row in rows}


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A line to be added, with what is to come of it."""

    asked: Asked
    wait_group: int | None = None
    made_by: RunId | None = None  # the run that makes it
    call: PlannedEffect | None = None  # that this run is made of, if it is an activity's
    proposal: Proposal | None = None  # of a call that people are to decide about
    events: Sequence[Event] = ()  # of that run, about the proposal
    due_at: datetime | None = None  # of a timer; or
    due_seconds: float | None = None  # from now


@dataclass(frozen=True, slots=True)
class Written:
    """What entries that were added leave to publish, and to hold against the limits."""

    due: Sequence[Due] = ()  # the steps to publish
    calls_before: int = 0  # that the workflow and the runs below it had begun, those that go on too


def write(connection: Connection, claim: Claim, new: Sequence[NewEntry]) -> Written:
    """Add the entries, the timers that they wait for, and the runs of activities, which are marked
    as published. Needs the transaction of the turn's commit.

    Runs of agents and workflows are started by themselves, before (`starting.start_child`).
    """
    if not new:
        return Written()
    row = fetch_row(
        connection,
        _WRITE,
        {
            "run_id": claim.run_id,
            "generation": claim.generation,
            "step": claim.step,
            "call_id": FIRST_CALL,
            "asked": dumps([_row(claim, entry) for entry in new]),
        },
    )
    assert row is not None
    for entry in new:
        if entry.proposal is not None:
            assert entry.made_by is not None
            _propose(connection, claim, entry.made_by, entry)
    due = [
        Due(entry.made_by, 0, claim.queue)
        for entry in new
        if entry.call is not None and entry.proposal is None and entry.made_by is not None
    ]
    return Written(due, int(row[0]))


@dataclass(frozen=True, slots=True)
class Below:
    """The runs below a workflow, as of one moment: what a run has used is added to its parent as it
    ends, so at any other it might be missed, or counted twice."""

    use: Use  # of those that have ended, and so far of those that go on
    live_runs: int  # of agents and workflows that go on


def count_children(connection: Connection, run_id: RunId, count: int) -> Below:
    """Count what the turn starts of agents and workflows, in the transaction of its commit; what
    stands below the run before."""
    steps, tool_calls, tokens, live_runs = connection.exec_driver_sql(
        f"""
        UPDATE celeriac.runs AS run SET children_started = children_started + %(count)s
        FROM (
            SELECT coalesce(sum(child.step + child.child_steps_used), 0) AS steps,
                coalesce(sum(child.tool_calls_used + child.child_tool_calls_used), 0) AS tool_calls,
                coalesce(sum(child.input_tokens_used + child.output_tokens_used
                    + child.child_tokens_used), 0) AS tokens,
                count(*) FILTER (WHERE child.kind <> 'activity') AS live_runs
            {_LIVE}
        ) AS live
        WHERE run_id = %(run_id)s
        RETURNING child_steps_used + steps, child_tool_calls_used + tool_calls,
            child_tokens_used + tokens, live_runs
        """,
        {"run_id": run_id, "count": count},
    ).one()
    # Of both kinds: a limit knows but one.
    return Below(Use(int(steps), int(tool_calls), input_tokens=int(tokens)), live_runs)


_LIVE = """
FROM celeriac.runs AS child
WHERE child.parent_run_id = %(run_id)s AND child.parent_call_id IS NOT NULL
    AND child.finished_at IS NULL
"""


def regroup(connection: Connection, claim: Claim, groups: Mapping[int, int | None]) -> None:
    """Say with which others the code waits for these entries now, of those that were there
    before."""
    if not groups:
        return
    connection.exec_driver_sql(
        """
        UPDATE celeriac.activities AS entry SET wait_group = changed.wait_group
        FROM unnest(%(numbers)s::int[], %(groups)s::int[]) AS changed (number, wait_group)
        WHERE run_id = %(run_id)s AND generation = %(generation)s
            AND entry.number = changed.number AND told IS NULL
        """,
        {
            "run_id": claim.run_id,
            "generation": claim.generation,
            "numbers": list(groups),
            "groups": list(groups.values()),
        },
    )


def continue_as_new(connection: Connection, claim: Claim, value: JsonValue) -> None:
    """Begin the next generation, with an empty log. What the last one waited for is not waited for
    any more. Needs the transaction of the turn's commit."""
    connection.exec_driver_sql(
        "UPDATE celeriac.activities SET wait_group = NULL WHERE run_id = %s AND generation = %s"
        " AND wait_group IS NOT NULL AND told IS NULL",
        (claim.run_id, claim.generation),
    )
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET generation = generation + 1, told = 0,"
        " generation_input = %s::jsonb WHERE run_id = %s",
        (dumps(value), claim.run_id),
    )


def _row(claim: Claim, new: NewEntry) -> dict[str, JsonValue]:
    asked, call = new.asked, new.call
    row: dict[str, JsonValue] = {
        "number": asked.number,
        "kind": asked.kind.value,
        "name": asked.name,
        "fingerprint": asked.fingerprint,
        "made_by": new.made_by,
        "wait_group": new.wait_group,
        "entry_id": entry_id(claim.generation, asked.number),
    }
    if asked.label is not None:
        row["label"] = asked.label
    if asked.arguments is not None:
        row["arguments"] = asked.arguments
    if asked.kind.is_answered_at_once:
        row["value"] = asked.value
    if asked.kind is EntryKind.TIMER:
        row["due_seconds"] = new.due_seconds
        row["due_at"] = None if new.due_at is None else new.due_at.isoformat()
    if call is not None:
        row["call"] = {
            "tool": call.tool,
            "tool_version": call.tool_version,
            "kind": call.kind.value,
            "flags": call.flags,
            "arguments": call.arguments,
            "state": call.state.value,
            "requirement": call.requirement,
            "error": call.error,
            "waits": call.state is EffectState.PROPOSED,
        }
    return row


_WRITE = f"""
WITH asked AS MATERIALIZED (
    SELECT value, entry.*, value -> 'call' AS call, (value #>> '{{call,waits}}')::boolean AS waits
    FROM jsonb_array_elements(%(asked)s::jsonb) AS value, jsonb_to_record(value) AS entry (
        number int, kind text, name text, label text, fingerprint text, made_by text,
        wait_group int, entry_id text, due_seconds float8, due_at timestamptz)
), timer AS (
    INSERT INTO celeriac.timers (run_id, timer_id, due_at)
    SELECT %(run_id)s, entry_id,
        coalesce(due_at, clock_timestamp() + make_interval(secs => due_seconds))
    FROM asked WHERE kind = 'timer'
), run AS (
    INSERT INTO celeriac.runs (run_id, tenant_id, user_id, thread_id, root_run_id, parent_run_id,
        parent_call_id, depth, kind, agent, status, phase, resume_phase, queue, limits,
        published_at, publish_count, message_count, last_event_seq, tool_calls_used, deadline_at,
        traceparent)
    SELECT made_by, tenant_id, user_id, thread_id, root_run_id, run_id, entry_id, depth + 1,
        'activity', agent, CASE WHEN waits THEN 'paused' ELSE 'queued' END,
        CASE WHEN waits THEN 'waiting_approval' ELSE 'waiting_tool' END,
        CASE WHEN waits THEN 'waiting_tool' END, queue, '{{}}',
        CASE WHEN NOT waits THEN clock_timestamp() END, (NOT waits)::int, 0, 1, 1, deadline_at,
        traceparent
    FROM asked, (SELECT * FROM celeriac.runs WHERE run_id = %(run_id)s) AS parent
    WHERE call IS NOT NULL
), event AS (
    INSERT INTO celeriac.events (run_id, seq, type, data)
    SELECT made_by, 1, 'run.created', jsonb_build_object('agent', agent, 'thread_id', thread_id,
        'parent_run_id', run_id, 'parent_call_id', entry_id)
    FROM asked, (SELECT * FROM celeriac.runs WHERE run_id = %(run_id)s) AS parent
    WHERE call IS NOT NULL
), effect AS (
    INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
        tool_version, kind, flags, arguments, fingerprint, state, requirement, error, settled_at)
    SELECT made_by, %(call_id)s, 0, 0, entry_id, effect.tool, effect.tool_version, effect.kind,
        effect.flags, effect.arguments, sha256(convert_to(concat_ws(E'\\n', effect.tool,
            effect.tool_version, effect.arguments::text), 'UTF8')), effect.state,
        effect.requirement, effect.error,
        CASE WHEN effect.state = 'invalid' THEN clock_timestamp() END
    FROM asked, jsonb_to_record(call) AS effect (tool text, tool_version text, kind text,
        flags jsonb, arguments jsonb, state text, requirement jsonb, error jsonb)
    WHERE call IS NOT NULL
), log AS (
    INSERT INTO celeriac.activities (run_id, generation, number, kind, name, label, arguments,
        fingerprint, step, made_by, wait_group, result, result_hash)
    SELECT %(run_id)s, %(generation)s, number, kind, name, label, value -> 'arguments',
        decode(fingerprint, 'hex'), %(step)s, made_by, wait_group, value -> 'value',
        sha256(convert_to((value -> 'value')::text, 'UTF8'))
    FROM asked
)
SELECT CASE WHEN EXISTS (SELECT FROM asked WHERE call IS NOT NULL) THEN
    tool_calls_used + child_tool_calls_used + (
        SELECT coalesce(sum(child.tool_calls_used + child.child_tool_calls_used), 0) {_LIVE}
    ) ELSE 0 END
FROM celeriac.runs WHERE run_id = %(run_id)s
"""


def _propose(connection: Connection, claim: Claim, run_id: RunId, new: NewEntry) -> None:
    assert new.proposal is not None
    connection.exec_driver_sql(
        approvals.INSERT.format(
            effects="(SELECT * FROM celeriac.effects WHERE run_id = %(run_id)s)"
        ),
        {
            "run_id": run_id,
            "tenant_id": claim.tenant_id,
            "user_id": claim.user_id,
            "is_terminal": False,
            "proposed": dumps([new.proposal.to_row()]),
        },
    )
    paused: dict[str, JsonValue] = {"phase": Phase.WAITING_APPROVAL}
    events = [(event.type, event.data) for event in new.events]
    run_events.append(connection, run_id, [*events, ("run.paused", paused)], is_request=False)
