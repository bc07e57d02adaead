"""What people say about budgets: their limits, and top-ups. What is used, `budgets` counts.

A budget's row is locked here, and nothing after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from celeriac.budget import MAX_AMOUNT, Allowance, Measure, Scope
from celeriac.codec import JsonValue
from celeriac.errors import Conflict, InvalidInput, UnknownBudget, UnknownRun, UnknownThread
from celeriac.ids import RunId, TenantId, UserId
from celeriac.reports import Budget
from celeriac_storage import audit_trail
from celeriac_storage.owners import know_tenant

WAITERS_SHOWN = 5

HAS_BUDGETS = """EXISTS (
    SELECT FROM celeriac.budgets AS b
    WHERE b.tenant_id = run.tenant_id AND (b.scope, b.subject) IN (
        ('tenant', run.tenant_id), ('user', run.user_id), ('thread', run.thread_id),
        ('run', run.run_id))
)"""
"""Whether the use of the run called `run` is counted."""

_REPORT = """
    SELECT scope, subject, measure, soft_limit, hard_limit, on_exceeded, used, reserved,
        reserved - celeriac.in_flight(budget_id), (
            SELECT count(*) FROM celeriac.runs
            WHERE status = 'paused' AND phase = 'waiting_budget' AND awaited_budget_id = budget_id
        )
    FROM celeriac.budgets
"""


def set_budget(
    connection: Connection,
    tenant_id: TenantId,
    scope: Scope,
    subject: str,
    measure: Measure,
    allowance: Allowance,
    by: UserId,
) -> Budget:
    """Set the limits, of a new budget or instead of what they were; what is used stays counted.

    Needs a transaction. It counts what is claimed from its commit on. Raises `UnknownThread` or
    `UnknownRun`; a user need not have been here before.
    """
    _check_subject(connection, tenant_id, scope, subject)
    know_tenant(connection, tenant_id)
    connection.exec_driver_sql(
        "INSERT INTO celeriac.budgets (tenant_id, scope, subject, measure, on_exceeded)"
        " VALUES (%s, %s, %s, %s, 'pause') ON CONFLICT DO NOTHING",
        (tenant_id, scope, subject, measure),
    )
    # What was reserved meanwhile was, under the limits before; the row's lock puts one before the
    # other.
    return _change(connection, tenant_id, scope, subject, measure, by, allowance=allowance)


def top_up(
    connection: Connection,
    tenant_id: TenantId,
    scope: Scope,
    subject: str,
    measure: Measure,
    amount: Decimal,
    by: UserId,
    key: str | None = None,
) -> Budget:
    """Add to the hard limit. Runs that wait for room are queued by the scheduler. Needs a
    transaction. Told again under its `key`, it adds nothing more.

    Raises `UnknownBudget`; `InvalidInput` for an amount that is not above 0; `Conflict` if there is
    no hard limit, or the key belongs to another top-up of this budget.
    """
    if not (amount.is_finite() and 0 < amount <= MAX_AMOUNT):
        raise InvalidInput(f"a top-up of {amount} cannot be made; give an amount above 0")
    return _change(connection, tenant_id, scope, subject, measure, by, amount=amount, key=key)


def list_budgets(
    connection: Connection,
    tenant_id: TenantId,
    *,
    scope: Scope | None = None,
    subject: str | None = None,
    owner: UserId | None = None,
) -> list[Budget]:
    """The tenant's budgets by scope, subject and measure; all, or those of one of them; of that
    user, and of the threads and runs that are the user's."""
    rows: Any = connection.exec_driver_sql(
        f"""{_REPORT} AS budget
        WHERE tenant_id = %(tenant_id)s AND scope = coalesce(%(scope)s, scope)
            AND subject = coalesce(%(subject)s, subject)
            AND (%(owner)s::text IS NULL OR %(owner)s = CASE scope WHEN 'user' THEN subject
                WHEN 'thread' THEN (SELECT user_id FROM celeriac.threads AS thread
                    WHERE (thread.tenant_id, thread_id) = (budget.tenant_id, subject))
                WHEN 'run' THEN (SELECT user_id FROM celeriac.runs AS run
                    WHERE (run.tenant_id, run_id) = (budget.tenant_id, subject))
            END)
        ORDER BY scope, subject, measure
        """,
        {"tenant_id": tenant_id, "scope": scope, "subject": subject, "owner": owner},
    )
    return [Budget(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Waiter:
    """A run that waits for room in a budget."""

    run_id: RunId
    user_id: UserId
    since: datetime


def list_waiters(
    connection: Connection, tenant_id: TenantId, owner: UserId | None = None
) -> dict[tuple[str, str, str], list[Waiter]]:
    """Those of the tenant, or of that user, by scope, subject and measure of their budget, the
    longest waiting first: a few of each."""
    rows: Any = connection.exec_driver_sql(
        """
        SELECT scope, subject, measure, run_id, user_id, paused_at
        FROM celeriac.budgets AS budget CROSS JOIN LATERAL (
            SELECT run_id, user_id, paused_at FROM celeriac.runs
            WHERE status = 'paused' AND phase = 'waiting_budget'
                AND awaited_budget_id = budget.budget_id
                AND user_id = coalesce(%(owner)s::text, user_id)
            ORDER BY paused_at, run_id LIMIT %(most)s
        ) AS waiter
        WHERE tenant_id = %(tenant_id)s ORDER BY paused_at, run_id
        """,
        {"tenant_id": tenant_id, "owner": owner, "most": WAITERS_SHOWN},
    )
    found: dict[tuple[str, str, str], list[Waiter]] = {}
    for scope, subject, measure, run_id, user_id, since in rows:
        waiter = Waiter(RunId(run_id), UserId(user_id), since)
        found.setdefault((scope, subject, measure), []).append(waiter)
    return found


def awaited_by(connection: Connection, run_id: RunId) -> Budget | None:
    """The budget that the run waits for room in, if it waits for one."""
    row: Any = connection.exec_driver_sql(
        f"{_REPORT} WHERE budget_id = (SELECT awaited_budget_id FROM celeriac.runs"
        " WHERE run_id = %s AND status = 'paused' AND phase = 'waiting_budget')",
        (run_id,),
    ).fetchone()
    return None if row is None else Budget(*row)


def _change(
    connection: Connection,
    tenant_id: TenantId,
    scope: Scope,
    subject: str,
    measure: Measure,
    by: UserId,
    *,
    allowance: Allowance | None = None,
    amount: Decimal | None = None,
    key: str | None = None,
) -> Budget:
    row: Any = connection.exec_driver_sql(
        "SELECT budget_id, soft_limit, hard_limit, on_exceeded FROM celeriac.budgets"
        " WHERE (tenant_id, scope, subject, measure) = (%s, %s, %s, %s) FOR NO KEY UPDATE",
        (tenant_id, scope, subject, measure),
    ).fetchone()
    if row is None:
        raise UnknownBudget(
            f"{scope} {subject} has no budget of {measure}; set one with `celeriac budgets set`"
        )
    budget_id, soft_limit, hard_limit, on_exceeded = row
    if amount is not None and _is_made(connection, budget_id, key, amount):
        return _read(connection, budget_id)
    if amount is not None:
        if hard_limit is None:
            raise Conflict(
                f"the budget of {measure} of {scope} {subject} has no hard limit that could be "
                "raised; nothing was changed"
            )
        hard_limit += amount
    if allowance is not None:
        soft_limit, hard_limit = allowance.soft_limit, allowance.hard_limit
        on_exceeded = allowance.on_exceeded
    parameters = {
        "budget_id": budget_id,
        "soft_limit": soft_limit,
        "hard_limit": hard_limit,
        "on_exceeded": on_exceeded,
        "amount": amount,
        "key": key,
        "by": by,
    }
    connection.exec_driver_sql(
        """
        WITH budget AS (
            UPDATE celeriac.budgets SET soft_limit = %(soft_limit)s, hard_limit = %(hard_limit)s,
                on_exceeded = %(on_exceeded)s, last_seq = last_seq + 1,
                warned_at = CASE WHEN used + reserved >= %(soft_limit)s THEN warned_at END
            WHERE budget_id = %(budget_id)s
            RETURNING budget_id, tenant_id, last_seq
        )
        INSERT INTO celeriac.budget_changes (budget_id, seq, tenant_id, amount, soft_limit,
            hard_limit, on_exceeded, key, by)
        SELECT budget_id, last_seq, tenant_id, %(amount)s, %(soft_limit)s, %(hard_limit)s,
            %(on_exceeded)s, %(key)s, %(by)s
        FROM budget
        """,
        parameters,
    )
    detail: dict[str, JsonValue] = {
        "measure": measure.value,
        **{
            name: None if parameters[name] is None else str(parameters[name])
            for name in ("amount", "soft_limit", "hard_limit", "on_exceeded")
        },
    }
    action = "budget.set" if amount is None else "budget.top_up"
    audit_trail.note(connection, tenant_id, by, action, f"{scope}:{subject}", budget=detail)
    return _read(connection, budget_id)


def _is_made(connection: Connection, budget_id: int, key: str | None, amount: Decimal) -> bool:
    """Whether this top-up was made before, under its key."""
    if key is None:
        return False
    made: Any = connection.exec_driver_sql(
        "SELECT amount FROM celeriac.budget_changes WHERE budget_id = %s AND key = %s",
        (budget_id, key),
    ).fetchone()
    if made is not None and made[0] != amount:
        raise Conflict(
            f"key {key} belongs to a top-up of {made[0]}, and this one is of {amount}; nothing was "
            "changed. Give a key of its own to each top-up"
        )
    return made is not None


def _read(connection: Connection, budget_id: int) -> Budget:
    row: Any = connection.exec_driver_sql(f"{_REPORT} WHERE budget_id = %s", (budget_id,)).one()
    return Budget(*row)


def _check_subject(connection: Connection, tenant_id: TenantId, scope: Scope, subject: str) -> None:
    if scope == "tenant" and subject != tenant_id:
        raise InvalidInput(f"{subject} is not this tenant, which is {tenant_id}")
    if scope == "thread" and not _exists(connection, "threads", "thread_id", tenant_id, subject):
        raise UnknownThread(f"there is no thread {subject}; it begins with its first run")
    if scope == "run" and not _exists(connection, "runs", "run_id", tenant_id, subject):
        raise UnknownRun(f"there is no run {subject}")


def _exists(connection: Connection, table: str, column: str, tenant_id: TenantId, id_: str) -> bool:
    found: Sequence[object] | None = connection.exec_driver_sql(
        f"SELECT 1 FROM celeriac.{table} WHERE tenant_id = %s AND {column} = %s", (tenant_id, id_)
    ).fetchone()
    return found is not None
