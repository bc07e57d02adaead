"""What people and programs tell a workflow: kept until its code waits for an event of that name.

An event ends the oldest entry that waits for it, while the run is paused for what it has asked for:
at once, or in the commit of the turn that begins to wait. While a turn is due or in progress the
event stays here, because that turn may not wait any more, as when its time was up.

Rows are locked in this order: the run, the mail, the entry.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict
from celeriac.ids import RunId, UserId
from celeriac.states import Phase, RunKind, RunStatus
from celeriac_storage import run_events
from celeriac_storage.dispatch import Due
from celeriac_storage.entry_ends import Outcome, end_entry
from celeriac_storage.entry_ids import entry_id
from celeriac_storage.requests import unknown_run


def send(
    connection: Connection,
    run_id: RunId,
    name: str,
    data: JsonValue,
    by: UserId,
    key: str | None = None,
) -> RunStatus:
    """Tell the workflow of an event; where it stands then. Needs a transaction. The scheduler
    publishes what goes on by that.

    With a `key`, telling the same again under it changes nothing, also after the run has ended.
    Raises `UnknownRun`, or `Conflict` if it is no workflow, has ended or is being cancelled, or if
    something else was told under the key.
    """
    row: Any = connection.exec_driver_sql(
        "SELECT kind, status, phase, cancel_requested_at IS NOT NULL FROM celeriac.runs"
        " WHERE run_id = %s FOR UPDATE",
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    kind, status, phase, is_cancelled = row
    status = RunStatus(status)
    if key is not None and _was_sent(connection, run_id, name, data, key):
        return status
    if kind != RunKind.WORKFLOW:
        raise Conflict(f"run {run_id} is no workflow and waits for no event: nothing was told")
    if status.is_terminal or is_cancelled:
        stands = status if status.is_terminal else "being cancelled"
        raise Conflict(f"run {run_id} is {stands} and learns of nothing any more")
    body = dumps(data)
    connection.exec_driver_sql(
        "INSERT INTO celeriac.mailbox (run_id, name, body, hash, key, sent_by)"
        " VALUES (%(run_id)s, %(name)s, %(body)s::jsonb,"
        " sha256(convert_to(%(body)s::jsonb::text, 'UTF8')), %(key)s, %(by)s)",
        {"run_id": run_id, "name": name, "body": body, "key": key, "by": by},
    )
    run_events.append(
        connection, run_id, [("run.told", {"name": name, "by": by})], is_request=False
    )
    if (status, phase) != (RunStatus.PAUSED, Phase.WAITING_ACTIVITY):
        return status
    return status if deliver(connection, run_id) is None else RunStatus.QUEUED


@dataclass(frozen=True, slots=True)
class _Match:
    mail_id: int
    generation: int
    number: int
    body: JsonValue


def deliver(connection: Connection, run_id: RunId, *, is_published: bool = False) -> Due | None:
    """End the entries that wait for events which are kept; the workflow's next turn, if it is due
    by that. The caller has locked the run, which is paused for what it has asked for; with
    `is_published` it publishes the turn."""
    due: Due | None = None
    for match in _matches(connection, run_id):
        connection.exec_driver_sql(
            "UPDATE celeriac.mailbox SET taken_generation = %s, taken_number = %s"
            " WHERE run_id = %s AND mail_id = %s",
            (match.generation, match.number, run_id, match.mail_id),
        )
        entry = entry_id(match.generation, match.number)
        outcome = Outcome(result=match.body)
        woken = end_entry(connection, run_id, entry, outcome, is_published=is_published)
        due = due or woken
    return due


def _matches(connection: Connection, run_id: RunId) -> list[_Match]:
    """Of each name the oldest mail for the entry that was asked for first, and so on."""
    rows = connection.exec_driver_sql(
        """
        SELECT mail_id, generation, number, body FROM (
            SELECT mail_id, name, body, row_number() OVER (PARTITION BY name ORDER BY mail_id)
                AS place
            FROM celeriac.mailbox WHERE run_id = %(run_id)s AND taken_number IS NULL
        ) AS mail JOIN (
            SELECT entry.generation, number, name,
                row_number() OVER (PARTITION BY name ORDER BY number) AS place
            FROM celeriac.activities AS entry JOIN celeriac.runs AS run USING (run_id, generation)
            WHERE run_id = %(run_id)s AND entry.kind = 'event' AND entry.told IS NULL
                AND wait_group IS NOT NULL
        ) AS wait USING (name, place)
        ORDER BY mail_id
        """,
        {"run_id": run_id},
    )
    return [_Match(*row) for row in rows]


def _was_sent(connection: Connection, run_id: RunId, name: str, data: JsonValue, key: str) -> bool:
    row = connection.exec_driver_sql(
        "SELECT name, hash = sha256(convert_to(said::text, 'UTF8')) FROM celeriac.mailbox,"
        " CAST(%s AS jsonb) AS said WHERE run_id = %s AND key = %s",
        (dumps(data), run_id, key),
    ).fetchone()
    if row is None:
        return False
    if row[0] != name or not row[1]:
        raise Conflict(
            f"something else was told to run {run_id} under the key {key} before, and nothing was "
            "told now; give what is new a key of its own"
        )
    return True
