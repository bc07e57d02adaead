"""Proposals that nobody has decided in time."""

import logging

from celeriac_storage import expiring
from celeriac_storage.database import Database

logger = logging.getLogger(__name__)


def expire_proposals(database: Database) -> None:
    """End each of them; their runs go on, without the call having been made."""
    with database.connect() as connection:
        overdue = expiring.overdue(connection)
    for approval_id in overdue:
        with database.begin() as connection:
            if expiring.expire(connection, approval_id):
                logger.info("proposal %s has expired", approval_id)
