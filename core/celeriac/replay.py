"""What a run's model was sent and has answered, as it stands in the rows; and where two runs part.

The fields are a contract, as those of `celeriac.reports`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.reports import Use
from celeriac.states import EffectState, RunStatus


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message as a model was sent it: results in place, and cut where they were cut."""

    run_id: RunId | None  # in whose log it stands; None: memories, which stand in none
    position: int | None
    message: Mapping[str, JsonValue]  # as pydantic-ai writes messages, without what has its default


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to the model."""

    attempt: int
    outcome: str  # answered, or what went wrong
    error: JsonValue
    input_tokens: int
    output_tokens: int
    usd: Decimal | None  # None: nobody knows the price
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """What a model was sent at one step, each time that it was asked, and its answer."""

    step: int
    model: str
    prompt_hash: str | None  # of the instructions, which `Replay.instructions` has
    tools_hash: str | None  # of the tools, which `Replay.tools` has
    shown: Sequence[Sequence[int]]  # ranges of `Replay.messages`: the first, and the one after
    attempts: Sequence[Attempt]
    answer: Mapping[str, JsonValue] | None  # None: there was none, or it was erased
    missing: Sequence[str]  # what it was sent and the rows do not have any more


@dataclass(frozen=True, slots=True)
class Replay:
    """A run's questions in order, and what they were made of, each thing once."""

    run_id: RunId
    agent: str
    status: RunStatus
    outcome: str | None
    questions: Sequence[Question]
    messages: Sequence[ShownMessage]
    instructions: Mapping[str, str]  # by their hash
    tools: Mapping[str, Sequence[JsonValue]]  # {name, description, parameters}, by their hash
    broken: Sequence[str]  # what does not have the hash that was recorded with it

    def messages_of(self, question: Question) -> list[ShownMessage]:
        """All that the question was, in order."""
        return [message for begin, end in question.shown for message in self.messages[begin:end]]


@dataclass(frozen=True, slots=True)
class DoneCall:
    """A tool call and what came of it."""

    call_id: CallId
    tool: str
    arguments: JsonValue
    state: EffectState
    result: JsonValue
    error: JsonValue


@dataclass(frozen=True, slots=True)
class Stage:
    """What one step has added to a conversation."""

    run_id: RunId  # whose step it is: of a fork, its origin's up to where it was forked
    step: int
    kind: str  # think or act
    said: Sequence[str]  # texts, of the model or of the user
    asked: Sequence[DoneCall]  # calls of the model's answer, as they stand now
    told: Sequence[DoneCall]  # calls of which the model was told here what came of them


@dataclass(frozen=True, slots=True)
class Side:
    """One of two runs, as it stands."""

    run_id: RunId
    agent: str
    agent_hash: str | None
    status: RunStatus
    outcome: str | None
    result: JsonValue
    error: JsonValue
    steps: int
    tool_calls: int
    use: Use
    stages: Sequence[Stage]  # from where they part


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part."""

    left: Side
    right: Side
    same_input: bool
    same_stages: int  # so many steps have said, asked and been told the same
    parts_by: str | None  # said, asked, told or ends, whichever is first; None: they do not
