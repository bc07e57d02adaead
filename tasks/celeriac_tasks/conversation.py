"""The message log of a run in memory, parsed once and extended by what is new."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage
from sqlalchemy import Connection

from celeriac.ids import CallId, RunId
from celeriac.messages import CallResult, load_message, results_message
from celeriac.states import EffectState
from celeriac_storage.claims import Claim
from celeriac_storage.effects import Effect
from celeriac_storage.history import (
    StoredMessage,
    StoredResult,
    load_messages,
    load_thread_messages,
)

CACHED_CONVERSATIONS = 256
"""Conversations one process keeps; one more costs a run its next load, nothing else."""


class Conversation:
    """What the model is shown: the thread's earlier messages and the run's own up to `position`."""

    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []
        self.position = 0  # in the run's log, of the next message that is not in here
        self._is_fresh = True
        self._pending: Sequence[Effect] = ()
        self._pending_epoch = -1

    def has_all(self, claim: Claim) -> bool:
        """Whether there is nothing to read for this claim."""
        return not self._is_fresh and self.position == claim.message_count

    def remember_pending(self, claim: Claim, pending: Sequence[Effect]) -> None:
        """Keep the calls that the step committed under this claim leaves to the next one."""
        self._pending, self._pending_epoch = pending, claim.epoch

    def pending(self, claim: Claim) -> Sequence[Effect] | None:
        """The calls of this act step, or None if they have to be read.

        What was remembered holds for the next step under the same claim, or for the very next
        claim: in between nobody had the run, so nobody has moved an effect. Except for those that
        wait for a person, who needs no claim.
        """
        is_current = self._pending_epoch in (claim.epoch, claim.epoch - 1)
        wanted = pending_calls(claim)
        is_decided = all(effect.state is not EffectState.PROPOSED for effect in self._pending)
        if is_current and is_decided and [effect.call_id for effect in self._pending] == wanted:
            return self._pending
        return None

    def catch_up(self, connection: Connection, claim: Claim) -> None:
        """Read what the database has and this does not."""
        if self._is_fresh:
            earlier = load_thread_messages(connection, claim)
            self.messages.extend(_parsed(stored) for stored in earlier)
            self._is_fresh = False
        if self.position < claim.message_count:
            new = load_messages(connection, claim.run_id, self.position)
            self.extend([_parsed(stored) for stored in new])

    def extend(self, messages: Sequence[ModelMessage]) -> None:
        """Append the next messages of the run itself."""
        self.messages.extend(messages)
        self.position += len(messages)


class ConversationCache:
    """Conversations of the runs that this process stepped last.

    `take` removes what it returns, so that no two threads extend one conversation. The database
    decides what is true: a cached conversation only ever lacks the newest messages, because
    messages are never changed.
    """

    def __init__(self, capacity: int = CACHED_CONVERSATIONS) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._conversations: OrderedDict[RunId, Conversation] = OrderedDict()

    def take(self, claim: Claim) -> Conversation:
        with self._lock:
            conversation = self._conversations.pop(claim.run_id, None)
        if conversation is None or conversation.position > claim.message_count:
            return Conversation()
        return conversation

    def put(self, run_id: RunId, conversation: Conversation) -> None:
        with self._lock:
            self._conversations[run_id] = conversation
            if len(self._conversations) > self._capacity:
                self._conversations.popitem(last=False)


def pending_calls(claim: Claim) -> list[CallId]:
    """The calls that the latest checkpoint says are still to be made, in order."""
    pending = claim.state.get("pending", [])
    assert isinstance(pending, list)
    return [CallId(str(call)) for call in pending]


def call_result(stored: StoredResult) -> CallResult:
    """What the model reads of a settled call: its result, or the error in words."""
    if stored.error is None:
        return CallResult(stored.provider_call_id, stored.tool, stored.result, is_error=False)
    return CallResult(
        stored.provider_call_id, stored.tool, stored.error.get("message"), is_error=True
    )


def _parsed(stored: StoredMessage) -> ModelMessage:
    if stored.role == "results":
        return results_message([call_result(result) for result in stored.results])
    return load_message(stored.body)
