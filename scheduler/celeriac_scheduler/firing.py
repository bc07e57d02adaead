"""Schedules whose time has come."""

from sqlalchemy import Connection

from celeriac.testpoints import reach
from celeriac_scheduler.one_by_one import one_by_one
from celeriac_storage import firing
from celeriac_storage.database import Database


def fire_schedules(database: Database) -> None:
    """Start what is due. The runs are published as those that clients start."""
    with database.connect() as connection:
        due = firing.due(connection)
    one_by_one(database, due, _fire)


def _fire(connection: Connection, key: firing.Key) -> None:
    firing.fire(connection, key)
    reach("schedules.before_commit")
