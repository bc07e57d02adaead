"""Proposals that nobody has decided in time."""

import logging

import psycopg
from sqlalchemy.exc import DBAPIError

from celeriac_storage import expiring
from celeriac_storage.database import Database

logger = logging.getLogger(__name__)


def expire_proposals(database: Database) -> None:
    """End each of them; their runs go on, without the call having been made.

    What went wrong with one of them is raised after the others have had their turn.
    """
    with database.connect() as connection:
        overdue = expiring.overdue(connection)
    trouble: Exception | None = None
    for approval_id in overdue:
        try:
            with database.begin() as connection:
                if expiring.expire(connection, approval_id):
                    logger.info("proposal %s has expired", approval_id)
        except (DBAPIError, psycopg.Error) as error:
            trouble = error
    if trouble is not None:
        raise trouble
