"""Many things, each in its own transaction: what is wrong with one must not stop the others."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac_storage.database import Database

Thing = TypeVar("Thing")


def one_by_one(
    database: Database, things: Iterable[Thing], act: Callable[[Connection, Thing], None]
) -> None:
    """Do it with each of them. What the database refused about one of them, such as a row that
    somebody holds for too long, is raised after the others have had their turn."""
    trouble: Exception | None = None
    for thing in things:
        try:
            with database.begin() as connection:
                act(connection, thing)
        except (DBAPIError, psycopg.Error) as error:
            trouble = error
    if trouble is not None:
        raise trouble
