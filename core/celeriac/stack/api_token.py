"""The token with which the user of a stack uses its API: made once, kept in `DATA/api-token`. And
the one with which he signs in to its console: another at each start, good for once."""

from celeriac.ids import DEFAULT_TENANT, DEFAULT_USER
from celeriac.roles import Role
from celeriac.stack.folder import Folder
from celeriac_storage import console_sessions, tokens
from celeriac_storage.database import Database

NAME = "celeriac up"


def make_api_token(folder: Folder, database: Database) -> str | None:
    """Make it unless the folder has one that is good; return it only where it is new.

    Written after the commit: killed between the two, the next start makes another, and the first,
    which nobody has seen, stays in `celeriac token list`.
    """
    known = folder.read_token()
    with database.begin() as connection:
        if known is not None:
            found = tokens.find(connection, known)
            if found is not None and found.refused_because is None:
                return None
        _, secret = tokens.create(
            connection,
            DEFAULT_TENANT,
            DEFAULT_USER,
            name=NAME,
            roles=[Role.ADMIN.word],
            expires_days=None,
            by=DEFAULT_USER,
        )
    folder.write_token(secret)
    return secret


def make_one_time_token(database: Database) -> str:
    """It is kept nowhere: whoever has started the stack is shown it."""
    with database.begin() as connection:
        return console_sessions.make_one_time_token(
            connection, DEFAULT_TENANT, DEFAULT_USER, [Role.ADMIN.word]
        )
