"""What a model is about to be sent, where that is not the whole conversation."""

from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac_storage.claims import Claim
from celeriac_storage.database import driver_of


def keep(connection: Connection, claim: Claim, selection: dict[str, JsonValue]) -> None:
    """Store the selection of this step, which later claims of it bring along (`Claim.selection`).

    One statement, in autocommit, fenced: a worker that lost its claim stores nothing, lest it take
    the place of what another one has selected and sent. Raises nothing then; its commit will.
    """
    driver_of(connection).execute(
        """
        INSERT INTO celeriac.selections (run_id, step, selection)
        SELECT run_id, step, %s::jsonb FROM celeriac.runs
        WHERE run_id = %s AND step = %s AND claim_token = %s
        ON CONFLICT DO NOTHING
        """,
        (dumps(selection), claim.run_id, claim.step, UUID(claim.token)),
    )
