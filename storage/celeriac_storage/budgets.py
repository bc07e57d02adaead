"""Budgets at work: reserved before a step, settled in its commit, and given room again.

The functions of migration 0011 do the counting, each in one call. They lock budgets in the order of
their ids; a step's commit has locked its run before, and nobody who holds a budget waits for a run.
What people say about limits is in `budget_limits`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from sqlalchemy import Connection

from celeriac.budget import Measure, Use
from celeriac.codec import JsonValue, dumps
from celeriac.errors import Fenced
from celeriac.states import Phase
from celeriac_storage import pauses
from celeriac_storage.claims import Claim
from celeriac_storage.database import driver_of
from celeriac_storage.dispatch import BATCH, Due


@dataclass(frozen=True, slots=True)
class Notice:
    """One budget that has something to say about a step that is about to begin."""

    budget_id: int
    scope: str
    subject: str
    measure: Measure
    kind: str  # warn; pause or fail, if there is not enough left; busy: calls hold it just now
    needed: Decimal
    used: Decimal
    reserved: Decimal
    soft_limit: Decimal | None
    hard_limit: Decimal | None

    @property
    def is_refusal(self) -> bool:
        return self.kind != "warn"


def reserve(connection: Connection, claim: Claim, needs: Mapping[Measure, Decimal]) -> list[Notice]:
    """Reserve what the step may use, of all budgets of its run; or, if one of them refuses, of
    none. One statement, in autocommit. Asking again under the same claim reserves nothing more.

    Raises `Fenced` if the claim no longer holds the step.
    """
    rows = (
        driver_of(connection)
        .execute(
            "SELECT budget_id, scope, subject, measure, verdict, needed, used, reserved,"
            " soft_limit, hard_limit FROM celeriac.reserve(%s, %s, %s, %s::jsonb)",
            (claim.run_id, claim.step, UUID(claim.token), dumps(_amounts(needs))),
        )
        .fetchall()
    )
    if any(row[4] == "fenced" for row in rows):
        raise Fenced(
            f"run {claim.run_id}: this worker's claim of step {claim.step} (epoch {claim.epoch}) "
            "is over; nothing was reserved for it"
        )
    return [Notice(row[0], row[1], row[2], Measure(row[3]), *row[4:]) for row in rows]


SETTLE = ", celeriac.settle(run_id, %(step)s, epoch, %(budget_uses)s::jsonb, %(warned)s::jsonb)"
"""In the select list of a step's commit, from its run."""


def settle(connection: Connection, claim: Claim, use: Use) -> None:
    """The same in a statement of its own, the last of the step's transaction."""
    driver_of(connection).execute(
        "SELECT celeriac.settle(%(run_id)s, %(step)s, %(epoch)s, %(budget_uses)s::jsonb,"
        " %(warned)s::jsonb)",
        {
            "run_id": claim.run_id,
            "step": claim.step,
            "epoch": claim.epoch,
            **settle_parameters(use),
        },
    )


def release_ended(connection: Connection) -> None:
    """Give back what lost claims of runs that have ended since reserved of steps, calls and time:
    no further step of theirs does."""
    connection.exec_driver_sql("SELECT celeriac.release_ended()")


def settle_parameters(use: Use) -> dict[str, str]:
    return {
        "budget_uses": dumps(_amounts(use.amounts)),
        "warned": dumps([str(each) for each in use.warned]),
    }


def wake_for_room(connection: Connection) -> list[Due]:
    """Queue runs for which there is room again, the smallest needs first, marked as published; and
    those for which there will be none, if their budget ends them. Publish them all."""
    return pauses.wake(
        connection,
        Phase.WAITING_BUDGET,
        """
        SELECT run_id FROM celeriac.runs WHERE run_id IN (
            SELECT waiting.run_id FROM (
                SELECT run_id, awaited_budget_id, awaited_amount,
                    sum(awaited_amount) OVER (PARTITION BY awaited_budget_id
                        ORDER BY awaited_amount, paused_at, run_id) AS with_those_before
                FROM celeriac.runs WHERE status = 'paused' AND phase = 'waiting_budget'
            ) AS waiting
            JOIN (
                SELECT *, hard_limit - used - reserved AS room FROM celeriac.budgets
            ) AS budget ON budget_id = awaited_budget_id
            WHERE hard_limit IS NULL OR room > 0 AND with_those_before <= room
                OR on_exceeded = 'fail'
                    AND (room + celeriac.in_flight(budget_id) < awaited_amount
                        OR room + celeriac.in_flight(budget_id) <= 0)
        )
        LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED
        """,
        {"batch": BATCH},
        is_published=True,
    )


def _amounts(amounts: Mapping[Measure, Decimal | None]) -> dict[str, JsonValue]:
    return {
        measure.value: None if amount is None else str(amount)
        for measure, amount in amounts.items()
    }
