"""What a think step sends to its model: the whole conversation, or what of it fits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage

from celeriac.codec import JsonValue, stored_form
from celeriac.selection import apply_cuts, cuts_of, ranges_of, select, to_record, tokens_of
from celeriac.token_count import message_tokens
from celeriac_storage import selections
from celeriac_storage.claims import Claim
from celeriac_storage.recalls import Recalled
from celeriac_tasks.conversation import Conversation
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.lookback import load_places
from celeriac_tasks.transition import Transition
from celeriac_tasks.worker_process import WorkerProcess


@dataclass(frozen=True, slots=True)
class Question:
    """What the model is asked."""

    messages: Sequence[ModelMessage]
    tokens: int  # an estimate, with instructions and tools
    selection: dict[str, JsonValue] | None = None  # None: the messages are all that there are
    recalled: Recalled | None = None  # the memories that the messages quote

    def recalling(self, messages: Sequence[ModelMessage], recalled: Recalled | None) -> "Question":
        """The same with memories quoted among its messages."""
        there = {id(message) for message in self.messages}
        more = sum(message_tokens(each) for each in messages if id(each) not in there)
        return replace(self, messages=messages, tokens=self.tokens + more, recalled=recalled)

    def recorded_in(self, left: Transition) -> Transition:
        """The transition, its model call with what was selected for it."""
        call = left.record.model_call
        if call is None or (self.selection is None and self.recalled is None):
            return left
        selection = dict(self.selection or {})
        if self.recalled is not None:
            selection["memories"] = self.recalled.to_json()
        record = replace(left.record, model_call=replace(call, selection=selection))
        return replace(left, record=record)


def question_of(
    worker: WorkerProcess, loaded: LoadedAgent, claim: Claim, conversation: Conversation
) -> Question:
    """Select what fits, and store the selection before it is sent: whoever asks again after a crash
    sends the same, also if its code would select otherwise. Raises `ContextTooLong`."""
    if claim.selection is not None:
        return _again(worker, loaded, claim.selection)
    places = conversation.places
    if loaded.room is None:
        tokens = sum(place.tokens for place in places)
        return Question([place.message for place in places], loaded.fixed_tokens + tokens)
    selection = select(places, loaded.room)
    tokens = loaded.fixed_tokens + selection.tokens
    if selection.is_everything:
        return Question([place.message for place in places], tokens)
    record = stored_form(to_record(selection, loaded.room, claim.run_id))
    assert isinstance(record, dict)
    with worker.active, worker.database.connect() as connection:
        selections.keep(connection, claim, record)
    return Question(selection.messages, tokens, record)


def _again(worker: WorkerProcess, loaded: LoadedAgent, selection: dict[str, JsonValue]) -> Question:
    with worker.active, worker.database.connect() as connection:
        places = load_places(connection, ranges_of(selection))
    messages = apply_cuts(places, cuts_of(selection))
    return Question(messages, loaded.fixed_tokens + tokens_of(selection), selection)
