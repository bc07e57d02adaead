"""What a tool knows about the call that it serves, and the connection it may write through."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from celeriac.codec import JsonValue
from celeriac.errors import NoConnection
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from celeriac.evidence import Changes
    from celeriac.memory.tools import Memories

MAX_PROGRESS_CHARACTERS = 500


def _ignore(text: str) -> None:
    """Where progress goes that nobody watches."""


def _forget(changes: "Changes") -> None:
    """Where evidence goes that nobody keeps."""


def _no_input() -> JsonValue:
    """What a run was given that nobody started."""
    return None


def _goes_on() -> bool:
    """What is asked of a run that nobody started."""
    return False


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Given to a tool that has a parameter of this type. Valid during the call only.

    A step makes it; the fields with an underscore are for it, and for tests of a tool.
    """

    tool: str
    run_id: RunId
    thread_id: ThreadId
    user_id: UserId
    tenant_id: TenantId
    step: int
    call_id: CallId
    idempotency_key: str
    """Send it with the request to the other system. It is the same at every attempt at this call,
    and no other call has it, so a target that honours idempotency keys acts only once."""
    attempt: int = 1
    """Which try at the call this is, from 1."""
    deadline: datetime | None = None
    """When the call is given up (UTC, by the database's clock); give your clients the time that is
    left as their timeout. In a `verify` that looks for a lost call: when it would have been."""
    undoes_key: str | None = None
    """In an undo: the `idempotency_key` of the call that it takes back. The undo's own key is
    derived from it, and so is the same in every rollback."""
    _connection: "Connection | None" = field(default=None, repr=False)
    _undone_result: JsonValue = field(default=None, repr=False)
    _report: Callable[[str], None] = field(default=_ignore, repr=False)
    _memories: "Memories | None" = field(default=None, repr=False)
    _read_input: Callable[[], JsonValue] = field(default=_no_input, repr=False)
    _is_to_stop: Callable[[], bool] = field(default=_goes_on, repr=False)
    _note_changes: "Callable[[Changes], None]" = field(default=_forget, repr=False)

    @property
    def is_to_stop(self) -> bool:
        """Whether the run was asked to stop since the call began: to be cancelled or interrupted,
        or at its deadline. Read from the database when asked for; False while that is away."""
        return self._is_to_stop()

    @property
    def input(self) -> JsonValue:
        """The run's input, as it was checked and stored. Read from the database when asked for."""
        return self._read_input()

    @property
    def connection(self) -> "Connection":
        """A connection in the step's own transaction, for tools with `effect="transactional"`.

        What is written through it commits together with the step, or not at all. The step commits;
        the tool must not. Raises `NoConnection` in a tool that declares another effect.
        """
        if self._connection is None:
            raise NoConnection(
                f"tool {self.tool!r} has no ctx.connection, because it does not write in the "
                'step\'s own transaction; declare it with @tool(effect="transactional") if all '
                "that it changes is in this database, or let it open a connection of its own"
            )
        return self._connection

    def note_changes(self, changes: "Changes") -> None:
        """Keep what this call did to files, as evidence (`celeriac.evidence`); for a tool with
        `mutates_workspace=True`, from the call itself or from its `verify`. What is noted last
        counts. It is written when the call is settled."""
        self._note_changes(changes)

    def progress(self, text: str) -> None:
        """Tell people how the call is going; each text becomes an event when the step commits.

        The first 20 of a step are kept, each cut to `MAX_PROGRESS_CHARACTERS` characters. The model
        does not see them.
        """
        if len(text) > MAX_PROGRESS_CHARACTERS:
            text = text[: MAX_PROGRESS_CHARACTERS - 1] + "…"
        self._report(text)
