"""What PostgreSQL refused, in one line for people."""

import psycopg

from celeriac.secrets import redact
from celeriac_storage.database import sqlstate

_WHAT_TO_DO = {
    "42501": "this login may not do that; `celeriac migrate` needs the database's owner, all else "
    "a member of celeriac_worker",
    "42P01": "`celeriac migrate` makes the tables",
    "3F000": "`celeriac migrate` makes the tables",
    "57014": "it took too long; try again when the database has less to do",
    "55P03": "another session holds the lock; try again",
    "53100": "the server's disk is full",
}
"""By SQLSTATE: appendix A of PostgreSQL's manual."""


def refusal(error: Exception) -> str:
    """An error of SQLAlchemy or of the driver, without the statement and its parameters."""
    cause = getattr(error, "orig", None) or error
    message = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    told = redact(message or str(cause).strip().partition("\n")[0] or type(cause).__name__)
    code = sqlstate(error)
    hint = _WHAT_TO_DO.get(code or "")
    return (
        f"PostgreSQL refused it{f' ({code})' if code else ''}: {told}{f': {hint}' if hint else ''}"
    )
