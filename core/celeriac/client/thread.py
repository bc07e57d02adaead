"""What clients ask about threads."""

from typing import TYPE_CHECKING

from celeriac.client.ask import Ask
from celeriac.client.named import user_named
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import get, one, pages
from celeriac.errors import UnknownThread
from celeriac.ids import ThreadId, is_id
from celeriac.reports import Thread, ThreadLine
from celeriac_storage import conversations

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk


def list_threads(*, user_id: str | None = None, limit: int = 50) -> Ask[list[ThreadLine]]:
    """Conversations, of that user or of all, each with its latest run; those that began last come
    first."""
    user = None if user_id is None else user_named(user_id)

    def in_database(desk: "DatabaseDesk") -> list[ThreadLine]:
        return desk.read(
            lambda connection: conversations.list_threads(
                connection, desk.tenant_id, user, limit=limit
            )
        )

    return Ask(
        in_database,
        lambda: pages("/v1/threads", "threads", reader(ThreadLine), limit, {"user_id": user}),
    )


def get_thread(thread_id: str) -> Ask[Thread]:
    """The conversation and its latest runs, the newest first. Raises `UnknownThread`."""
    if not is_id(thread_id):
        raise UnknownThread(f"there is no thread {thread_id!r}; it begins with its first run")
    thread = ThreadId(thread_id)
    return Ask(
        lambda desk: desk.read(
            lambda connection: conversations.read_thread(connection, desk.tenant_id, thread)
        ),
        lambda: one(get(f"/v1/threads/{thread}"), reader(Thread)),
    )
