"""Forgetting a user, a thread or a tenant: the payloads go, hashes and what happened stay
(docs/retention.md).

The work is done by functions of the database's owner (migration 0017). More tables with payloads of
their own join in as another function in `PARTS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.errors import Conflict, InvalidInput, NotSetUp
from celeriac.ids import RunId, TenantId, ThreadId, UserId
from celeriac.states import RunStatus
from celeriac_storage import audit_trail, memories, pruning, requests
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.tenancy import SEES_ALL_TENANTS

BATCH_RUNS = 100
NAMED_RUNS = 5  # of those in the way, so many are named
NOT_AT_REST = "CE007"


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose payloads: all of the tenant's, or of one user or thread of it."""

    tenant_id: TenantId
    user_id: UserId | None = None
    thread_id: ThreadId | None = None

    @property
    def kind(self) -> Literal["user", "thread", "tenant"]:
        if self.user_id is not None:
            return "user"
        return "tenant" if self.thread_id is None else "thread"

    @property
    def id(self) -> str:
        return self.user_id or self.thread_id or self.tenant_id


@dataclass(slots=True)
class Erased:
    """What was done."""

    runs: int = 0  # that were not erased before
    answers: int = 0  # to API requests
    artifacts: int = 0  # large values
    artifacts_waiting: int = 0  # for their hour to be over


Part = Callable[[Connection, Scope, UserId], None]


def _erase_schedules(connection: Connection, scope: Scope, _by: UserId) -> None:
    if scope.kind != "thread":  # each run that a schedule starts has a thread of its own
        connection.exec_driver_sql(
            "SELECT celeriac.erase_schedules(%s, %s)", (scope.tenant_id, scope.user_id)
        )


def _forget_memories(connection: Connection, scope: Scope, by: UserId) -> None:
    if scope.kind == "thread":  # they are the user's, wherever they come from
        return
    rows = connection.exec_driver_sql(
        "SELECT user_id, namespace, memory_key FROM celeriac.memories WHERE tenant_id = %s"
        " AND user_id = coalesce(%s::text, user_id) AND deleted_at IS NULL ORDER BY 1, 2, 3",
        (scope.tenant_id, scope.user_id),
    ).all()
    for owner, namespace, key in rows:
        memories.forget(connection, scope.tenant_id, owner, namespace, key, by=by)


PARTS: Sequence[Part] = (_erase_schedules, _forget_memories)
"""What else there is to erase of a scope, each in a transaction of its own. Idempotent, since after
a kill in the middle the whole is said again."""

# A fork of a run of a thread has a thread of its own, and goes on with that run's messages; what
# undoes one has a thread of its own too, and its arguments.
_OF_THREAD = """
    WITH RECURSIVE of_thread AS (
        SELECT run_id FROM celeriac.runs
        WHERE tenant_id = %(tenant_id)s AND thread_id = %(thread_id)s
        UNION
        SELECT fork.run_id FROM of_thread JOIN celeriac.runs AS fork
            ON fork.forked_from = of_thread.run_id
    )
    SELECT run_id FROM of_thread
"""
_OF_SCOPE = f"""
    tenant_id = %(tenant_id)s AND user_id = coalesce(%(user_id)s::text, user_id)
    AND (%(thread_id)s::text IS NULL OR run_id IN ({_OF_THREAD})
        OR parent_run_id IN ({_OF_THREAD}))
"""


def erase(
    database: Database, scope: Scope, by: UserId, *, cancels: bool = False, batch: int = BATCH_RUNS
) -> Erased:
    """Erase all payloads of the scope, in batches; a repetition goes on where this was stopped.

    With `cancels`, runs that go on are cancelled first. Raises `NotSetUp` if the login may not
    erase; `InvalidInput` if there is no such user, thread or tenant; `Conflict` while something is
    still to happen with one of the runs, or if somebody begins such a thing meanwhile.
    """
    with database.begin() as connection:
        _check_may(connection)
        _check_exists(connection, scope)
    if cancels:
        with database.begin() as connection:  # or it starts runs anew while these are ended
            _erase_schedules(connection, scope, by)
        for run_id in _going_on(database, scope):
            with database.begin() as connection:
                _cancel(connection, run_id, by)
    with database.begin() as connection:
        _refuse_the_restless(connection, scope)
        found = len(_runs(connection, scope, is_erased=False))
        audit_trail.note(
            connection,
            scope.tenant_id,
            by,
            f"{scope.kind}.erase",
            scope.id,
            runs=found,
            cancels=cancels,
        )
        # Waits for one that fires just now, whose run is then not at rest.
        _erase_schedules(connection, scope, by)
    done = Erased()
    while runs := _next(database, scope, batch):
        try:
            with database.begin() as connection:
                done.runs += connection.exec_driver_sql(
                    "SELECT celeriac.erase_runs(%s)", (runs,)
                ).scalar_one()
        except DBAPIError as error:
            if sqlstate(error) != NOT_AT_REST:
                raise
            with database.begin() as connection:
                _refuse_the_restless(connection, scope)
            raise Conflict(
                f"something has begun with the runs of {scope.kind} {scope.id} meanwhile: "
                f"{done.runs} are erased; say it again"
            ) from error
    for part in PARTS:
        with database.begin() as connection:
            part(connection, scope, by)
    with database.begin() as connection:
        done.answers = _erase_answers(connection, scope)
        done.artifacts = pruning.sweep_artifacts(connection)
        done.artifacts_waiting = connection.exec_driver_sql(
            "SELECT count(*) FROM celeriac.artifacts WHERE unused_since IS NOT NULL"
        ).scalar_one()
        audit_trail.note(
            connection,
            scope.tenant_id,
            by,
            f"{scope.kind}.erased",
            scope.id,
            runs=done.runs,
            answers=done.answers,
        )
    return done


def _check_may(connection: Connection) -> None:
    login, may = connection.exec_driver_sql(
        "SELECT current_user,"
        " has_function_privilege('celeriac.erase_runs(text[])', 'EXECUTE') AND " + SEES_ALL_TENANTS
    ).one()
    if not may:
        raise NotSetUp(
            f"the database's role {login} may not erase, so nothing was erased: it takes a login "
            "that is a member of celeriac_retention, and of celeriac_api not"
        )


def _check_exists(connection: Connection, scope: Scope) -> None:
    table, column = {
        "user": ("users", "user_id"),
        "thread": ("threads", "thread_id"),
        "tenant": ("tenants", "tenant_id"),
    }[scope.kind]
    row = connection.exec_driver_sql(
        f"SELECT FROM celeriac.{table} WHERE tenant_id = %s AND {column} = %s",
        (scope.tenant_id, scope.id),
    ).fetchone()
    if row is None:
        raise InvalidInput(
            f"there is no {scope.kind} {scope.id} of tenant {scope.tenant_id}; nothing was erased"
        )


def _going_on(database: Database, scope: Scope) -> list[RunId]:
    with database.connect() as connection:
        return _runs(connection, scope, "AND status NOT IN ('completed', 'failed', 'cancelled')")


def _cancel(connection: Connection, run_id: RunId, by: UserId) -> None:
    try:
        requests.request_cancel(connection, run_id, by)
    except Conflict:
        return  # it has ended meanwhile


def _refuse_the_restless(connection: Connection, scope: Scope) -> None:
    """Raise `Conflict` if a run of the scope is not at rest, with why of the first few."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT run_id, status, (
            SELECT string_agg(format('%%s (%%s) is %%s', call_id, tool, state), ', ')
            FROM celeriac.effects
            WHERE effects.run_id = run.run_id AND state IN ('in_flight', 'unknown', 'known_bad')
        ), count(*) OVER ()
        FROM celeriac.runs AS run
        WHERE {_OF_SCOPE} AND erased_at IS NULL AND NOT celeriac.is_at_rest(run_id)
        -- What goes on comes first: others may only wait for that.
        ORDER BY status IN ('completed', 'failed', 'cancelled'), created_at LIMIT {NAMED_RUNS}
        """,
        _parameters(scope),
    ).all()
    if not rows:
        return
    told = "; ".join(
        f"run {run_id} is {status}" + (f", and its call {calls}" if calls else "")
        for run_id, status, calls, _ in rows
    )
    hint = "cancel them, or say it with --cancel"
    if all(RunStatus(status).is_terminal for _, status, _, _ in rows):
        hint = "say what came of the calls with `celeriac resolve`"
    raise Conflict(
        f"{scope.kind} {scope.id} cannot be erased yet, since something is still to happen with "
        f"{rows[0][3]} of the runs: {told}. Nothing more was erased: {hint}, and say it again when "
        "they have ended"
    )


def _next(database: Database, scope: Scope, batch: int) -> list[RunId]:
    with database.connect() as connection:
        return _runs(connection, scope, is_erased=False, limit=batch)


def _runs(
    connection: Connection,
    scope: Scope,
    more: str = "",
    *,
    is_erased: bool | None = None,
    limit: int | None = None,
) -> list[RunId]:
    rows = connection.exec_driver_sql(
        f"""
        SELECT run_id FROM celeriac.runs
        WHERE {_OF_SCOPE} {more}
            AND coalesce((erased_at IS NOT NULL) = %(is_erased)s::boolean, true)
        ORDER BY run_id LIMIT %(limit)s
        """,
        {**_parameters(scope), "is_erased": is_erased, "limit": limit},
    )
    return [RunId(row[0]) for row in rows]


def _erase_answers(connection: Connection, scope: Scope) -> int:
    runs = None if scope.kind == "tenant" else _runs(connection, scope)
    return int(
        connection.exec_driver_sql(
            "SELECT celeriac.erase_answers(%s, %s, %s)", (scope.tenant_id, scope.user_id, runs)
        ).scalar_one()
    )


def _parameters(scope: Scope) -> dict[str, object]:
    return {
        "tenant_id": scope.tenant_id,
        "user_id": scope.user_id,
        "thread_id": scope.thread_id,
    }
