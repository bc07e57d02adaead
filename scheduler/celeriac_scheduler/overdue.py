"""Runs whose deadline has passed, and runs whose parents have ended."""

import logging

from sqlalchemy import Connection

from celeriac.errors import Conflict
from celeriac.ids import RunId
from celeriac_scheduler.one_by_one import one_by_one
from celeriac_storage import children, deadlines, requests
from celeriac_storage.database import Database

logger = logging.getLogger(__name__)


def end_overdue(database: Database) -> None:
    """End the runs whose deadline has passed, or have their steps do so."""
    with database.connect() as connection:
        overdue = deadlines.overdue(connection)
    one_by_one(database, overdue, _end)


def _end(connection: Connection, run_id: RunId) -> None:
    if deadlines.end(connection, run_id):
        logger.info("the deadline of run %s has passed", run_id)


def cancel_orphans(database: Database) -> None:
    """Cancel the children of runs that have ended."""
    with database.connect() as connection:
        orphans = children.orphans(connection)
    one_by_one(database, orphans, _cancel)


def _cancel(connection: Connection, orphan: tuple[RunId, RunId]) -> None:
    run_id, parent = orphan
    try:
        requests.request_cancel(connection, run_id, requests.by_parent(parent))
    except Conflict as ended:
        logger.info("run %s needs no cancelling: %s", run_id, ended)
