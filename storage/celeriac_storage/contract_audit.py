"""Runs that completed although their contract was not met: each is judged once more.

No query could, so this is the one check that is none. It reads what the step read that judged.
"""

from collections.abc import Iterator

from sqlalchemy import Connection

from celeriac.completion import unmet
from celeriac.contract import Contract
from celeriac.ids import RunId
from celeriac_storage import deeds

INVARIANT = 4
NAME = "a run that completed under a strict contract has met it"


def unmet_contracts(connection: Connection, run_id: RunId | None) -> Iterator[tuple[RunId, str]]:
    """Each such run, of all or if it is this one, with what is missing."""
    rows = connection.exec_driver_sql(
        """
        SELECT run_id, contract FROM celeriac.runs
        WHERE status = 'completed' AND contract ->> 'enforcement' = 'strict' AND erased_at IS NULL
            AND run_id = coalesce(%s::text, run_id)
        ORDER BY run_id
        """,
        (run_id,),
    ).fetchall()
    for found, contract in rows:
        missing = unmet(Contract.from_json(contract), deeds.load(connection, RunId(found)).deeds)
        if missing:
            yield RunId(found), "; ".join(f"{each.requirement}: {each.why}" for each in missing)
