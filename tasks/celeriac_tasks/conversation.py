"""The message log of a run in memory, parsed once and extended by what is new."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage
from sqlalchemy import Connection

from celeriac.ids import CallId, RunId
from celeriac.selection import Place
from celeriac.states import EffectState
from celeriac.token_count import message_tokens
from celeriac_storage.claims import Claim
from celeriac_storage.effects import Effect
from celeriac_storage.entries import FIRST_CALL
from celeriac_storage.history import load_messages
from celeriac_tasks.lookback import Log, load_end, placed

CACHED_CONVERSATIONS = 256
"""Conversations one process keeps; one more costs a run its next load, nothing else."""


class Conversation:
    """What there is to show the model: the thread's earlier messages and the run's own up to
    `position`; of a long one, the end of it that can fit, and the prompts that stay."""

    def __init__(self) -> None:
        self.places: list[Place] = []
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

    def catch_up(self, connection: Connection, claim: Claim, room: int | None) -> None:
        """Read what the database has and this does not: all of it, or without anything yet, from
        the end back as much as can fit into `room` tokens."""
        if self._is_fresh:
            log = Log(claim.run_id, claim.message_count, claim.history_until is not None)
            self.places = load_end(connection, log, room)
            self._is_fresh = False
        elif self.position < claim.message_count:
            self.places += placed(load_messages(connection, claim.run_id, self.position))
        self.position = claim.message_count

    def extend(self, run_id: RunId, messages: Sequence[ModelMessage]) -> None:
        """Append the next messages of the run itself."""
        for message in messages:
            place = Place(run_id, self.position, message, message_tokens(message))
            self.places.append(place)
            self.position += 1


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
    """The calls that the latest checkpoint says are still to be made, in order; of an activity its
    only one."""
    if claim.is_activity:
        return [FIRST_CALL]
    pending = claim.state.get("pending", [])
    assert isinstance(pending, list)
    return [CallId(str(call)) for call in pending]
