"""Identifiers: one type for each, so that a type checker finds the two that were mixed up.

A user owns threads, a thread holds runs. The three scopes are never interchangeable
(`docs/architecture.md`), and neither are their ids.
"""

import re
import secrets
import time
from typing import NewType

from celeriac.errors import InvalidInput

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)
ThreadId = NewType("ThreadId", str)
RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
"""One tool call of a run, minted here as `step.index`: providers repeat their own ids."""
ApprovalId = NewType("ApprovalId", str)
"""One version of one call, as it was proposed. An edit makes another."""
TokenId = NewType("TokenId", str)
"""Names a bearer token, and is not one."""
ScheduleId = NewType("ScheduleId", str)
"""The name of a schedule, which whoever adds it chooses."""
SessionId = NewType("SessionId", str)
"""Names somebody's stay in the console; its cookie is another value."""
WorkerId = NewType("WorkerId", str)
ClaimToken = NewType("ClaimToken", str)
"""32 hex digits, fresh and random for each claim. A counter would not do: when Postgres forgets an
asynchronously committed claim, both sides would end up with the same number."""

DEFAULT_TENANT = TenantId("default")
DEFAULT_USER = UserId("local")
DEFAULT_QUEUE = "celeriac"

MAX_ID_CHARACTERS = 128
# Ids stand in URLs, Celery task ids ("RUN:STEP") and shell commands: no colon, space or quote.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base 32: sorts as it counts
_MINTED_RUN_ID = re.compile(f"r[{_ALPHABET}]{{17}}")


def new_run_id() -> RunId:
    """A fresh run id of 18 characters; ids sort by creation to the millisecond.

    Short, because every row of a run repeats it: 36 characters would add a tenth to the database.
    """
    return RunId(_timed_id("r"))


def may_be_run_of(run_id: str, tenant_id: str) -> bool:
    """Whether a new run of this tenant may be called that: an id as they are minted here, or one of
    the tenant's own part of all ids, `NAME@TENANT`; those without an @ are the default tenant's.

    Ids are unique in the whole installation. Each tenant choosing from a part of its own, nobody
    learns from a refusal which ids another one has taken.
    """
    if _MINTED_RUN_ID.fullmatch(run_id):
        return True
    _, at, tenant = run_id.partition("@")
    return tenant == tenant_id if at else tenant_id == DEFAULT_TENANT


def new_thread_id() -> ThreadId:
    return ThreadId(_timed_id("t"))


def new_approval_id() -> ApprovalId:
    return ApprovalId(_timed_id("a"))


def new_token_id() -> TokenId:
    return TokenId(_timed_id("k"))


def new_session_id() -> SessionId:
    return SessionId(_timed_id("s"))


def new_worker_id() -> WorkerId:
    return WorkerId("w" + _base32(secrets.randbits(60), 12))


def new_claim_token() -> ClaimToken:
    return ClaimToken(secrets.token_hex(16))


def call_id(step: int, index: int) -> CallId:
    """The id of the call at `index` (from 0) in the response of think step `step`."""
    return CallId(f"{step}.{index}")


def effect_key(tenant_id: str, run_id: str, call_id: str) -> str:
    """The idempotency key of a tool call: the same at each attempt, and no other call's, anywhere.

    Never of the arguments: two intended identical calls are two effects.
    """
    return f"{tenant_id}:{run_id}:{call_id}"  # no id contains a colon


def undo_key(key: str) -> str:
    """The idempotency key of taking back the call that was made with `key`, in whichever run."""
    return f"{key}:undo"


def is_id(value: str) -> bool:
    """Whether it can be the id of anything."""
    return _ID.fullmatch(value) is not None


def checked_id(value: str, what: str) -> str:
    """Return `value`, or raise `InvalidInput` if it cannot be the id of a `what`."""
    if not is_id(value):
        raise InvalidInput(
            f"{value!r} cannot be a {what}: an id has 1 to {MAX_ID_CHARACTERS} letters, digits and "
            "the signs . _ @ - and begins with a letter or digit"
        )
    return value


def _timed_id(prefix: str) -> str:
    milliseconds = time.time_ns() // 1_000_000
    return prefix + _base32(milliseconds, 9) + _base32(secrets.randbits(40), 8)


def _base32(number: int, digits: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (digits - 1), -1, -5))
