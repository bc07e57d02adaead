"""Pages of a list: a cursor is where the last one ended, opaque to whoever carries it.

It names a time and an id, so that what begins or ends meanwhile moves no row from one page to the
next. It is no secret and grants nothing: whose rows are listed is asked anew each time.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import Query

from celeriac.errors import InvalidInput
from celeriac.ids import is_id

Row = TypeVar("Row")

MOST_ROWS = 200
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="How many rows at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=400, description="`next_cursor` of the page before; none for the first."),
]


def cursor_after(at: datetime, id_: str) -> str:
    """The cursor of a page that ends with this row."""
    text = json.dumps([at.isoformat(), id_])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def place_of(cursor: str | None) -> tuple[datetime, str] | None:
    """Where the page begins; None at the top. Raises `InvalidInput` for what is no cursor."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        at, id_ = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        place = (datetime.fromisoformat(at), str(id_))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        place = None
    if place is None or place[0].tzinfo is None or not is_id(place[1]):
        raise InvalidInput("this is no cursor: take `next_cursor` of the page before as it is")
    return place


def cut(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], bool]:
    """A page of at most `limit` of `rows`, which were asked for one more; whether more follow."""
    return rows[:limit], len(rows) > limit
