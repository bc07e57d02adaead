"""Proposals that nobody has decided in time."""

import logging

from sqlalchemy import Connection

from celeriac.ids import ApprovalId
from celeriac_scheduler.one_by_one import one_by_one
from celeriac_storage import expiring
from celeriac_storage.database import Database

logger = logging.getLogger(__name__)


def expire_proposals(database: Database) -> None:
    """End each of them; their runs go on, without the call having been made."""
    with database.connect() as connection:
        overdue = expiring.overdue(connection)
    one_by_one(database, overdue, _expire)


def _expire(connection: Connection, approval_id: ApprovalId) -> None:
    if expiring.expire(connection, approval_id):
        logger.info("proposal %s has expired", approval_id)
