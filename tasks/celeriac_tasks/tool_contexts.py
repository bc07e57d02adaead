"""What the tools of a step are given, and what they tell meanwhile."""

import threading
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import DatabaseUnavailable
from celeriac.evidence import Changes
from celeriac.ids import ApprovalId, CallId, effect_key, undo_key
from celeriac.tools import Tool
from celeriac_storage import history, requests
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Event
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.memorizing import RunMemories

MAX_PROGRESS_EVENTS = 20  # of one step: progress is for people, not a log


class ToolContexts:
    """Makes the contexts of one act step's calls, which may run side by side."""

    def __init__(self, database: Database, loaded: LoadedAgent, claim: Claim) -> None:
        self._database = database
        self._loaded = loaded
        self._claim = claim
        self._lock = threading.Lock()
        self.progress: list[Event] = []
        self.changes: dict[CallId, Changes] = {}  # of files, as the calls have told
        self.memories: RunMemories | None = None  # of the transactional call
        self.approval_id: ApprovalId | None = None  # of the decision that the call is made on

    def of(
        self, effect: Effect, tool: Tool[..., Any], connection: Connection | None = None
    ) -> ToolContext:
        """The context of the call's next attempt; with `connection`, in that transaction."""
        claim, undoes = self._claim, effect.undoes
        key = effect_key(claim.tenant_id, claim.run_id, effect.call_id)
        undoes_key: str | None = None
        if undoes is not None:
            undoes_key = effect_key(claim.tenant_id, undoes.run_id, undoes.call_id)
            key = undo_key(undoes_key)
        return ToolContext(
            tool=tool.name,
            run_id=claim.run_id,
            thread_id=claim.thread_id,
            user_id=claim.user_id,
            tenant_id=claim.tenant_id,
            step=claim.step,
            call_id=effect.call_id,
            idempotency_key=key,
            attempt=effect.attempt + 1,
            undoes_key=undoes_key,
            _undone_result=None if undoes is None else undoes.result,
            _connection=connection,
            _memories=self._memories_for(effect, connection),
            _report=lambda text: self._note_progress(effect, text),
            _read_input=self._read_input,
            _is_to_stop=self._is_to_stop,
            _note_changes=lambda changes: self._keep_changes(effect, changes),
        )

    def _memories_for(self, effect: Effect, connection: Connection | None) -> RunMemories | None:
        if self._loaded.agent.memory is None:
            return None
        made = RunMemories(self._database, connection, self._claim, effect, self.approval_id)
        if connection is not None:
            self.memories = made  # anew at each try, so that none tells what another has done
        return made

    def _read_input(self) -> JsonValue:
        claim = self._claim
        run_id = claim.parent_run_id if claim.is_activity else claim.run_id
        assert run_id is not None
        # On a connection of its own, in a transactional tool too: the input never changes.
        with self._database.connect() as connection:
            return history.load_input(connection, run_id)

    def _is_to_stop(self) -> bool:
        try:
            with self._database.connect() as connection:
                return bool(requests.asked_to_stop(connection, [self._claim.run_id]))
        except DatabaseUnavailable:
            return False

    def _note_progress(self, effect: Effect, text: str) -> None:
        with self._lock:
            if len(self.progress) < MAX_PROGRESS_EVENTS:
                data: dict[str, JsonValue] = {"call_id": effect.call_id, "text": text}
                self.progress.append(Event("tool.progress", data))

    def _keep_changes(self, effect: Effect, changes: Changes) -> None:
        with self._lock:
            self.changes[effect.call_id] = changes
