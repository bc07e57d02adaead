"""Does the database keep the invariants? Asked with SQL, while everything goes on running."""

from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.limits import Limits
from celeriac_storage import contract_audit
from celeriac_storage.audit_checks import CHECKS
from celeriac_storage.audit_checks.check import Check
from celeriac_storage.database import Database

OVERDUE_SECONDS = 120.0
"""Twice the longest default wait before a queued step is published again."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One row that breaks an invariant, by its number in `docs/invariants.md`."""

    invariant: int
    run_id: str | None  # None: what is wrong belongs to no run
    detail: str


def audit(
    database: Database, run_id: RunId | None = None, *, overdue_seconds: float = OVERDUE_SECONDS
) -> list[Violation]:
    """All violations, of one run or of the whole database, by invariant and run; none is the rule.

    It reads one snapshot, so that a step which commits meanwhile is seen whole or not at all. It
    locks nothing and writes nothing. It recomputes every hash, so over a whole database it takes
    as long as reading all of it.

    A queued step counts as forgotten if it waits unpublished, or overtaken, for `overdue_seconds`
    while a worker that could take it lives; give more where `CELERIAC_REDISPATCH_CAP_SECONDS` is
    more than a minute. Steps that have waited that long because every slot is taken by a longer
    one are reported as well: the database cannot tell the two apart.
    """
    with database.begin() as connection:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        found = [
            violation
            for check in CHECKS
            for violation in _violations(connection, check, run_id, overdue_seconds)
        ]
        return found + [
            Violation(contract_audit.INVARIANT, of, f"{contract_audit.NAME}: {detail}")
            for of, detail in contract_audit.unmet_contracts(connection, run_id)
        ]


def _violations(
    connection: Connection, check: Check, run_id: RunId | None, overdue_seconds: float
) -> list[Violation]:
    of_run = "" if run_id is None else "WHERE run_id = %(run_id)s"
    rows = connection.exec_driver_sql(
        f"SELECT run_id, detail FROM ({check.sql}) AS violation {of_run} ORDER BY 1, 2",
        {
            "run_id": run_id,
            "overdue_seconds": overdue_seconds,
            # A limit that a run has not stored has its default.
            **{f"default_{name}": value for name, value in asdict(Limits()).items()},
        },
    )
    return [Violation(check.invariant, found, f"{check.name}: {detail}") for found, detail in rows]
