"""The log of a workflow: what its code asked for, in the order in which it asked, and what came of
it (docs/workflows.md).

The code runs from its start to where it waits, over and over, in whichever process takes the next
step of the run. What it asks for is compared with the log: an entry that is there already is
answered from it, and only what goes beyond the log is new.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from celeriac.codec import JsonValue, dumps


class EntryKind(StrEnum):
    ACTIVITY = "activity"  # one call of a tool, made by a run of its own
    APPROVAL = "approval"  # the same, but what people decide is all that there is to it
    MODEL = "model"  # one question to a model, asked by a run of its own
    CHILD = "child"  # a run of an agent or of another workflow
    TIMER = "timer"
    EVENT = "event"  # something that somebody outside tells the run
    VALUE = "value"  # the time, a random number: read once, the same ever after
    VERSION = "version"  # of the code, where it was changed while runs were in progress

    @property
    def is_answered_at_once(self) -> bool:
        return self in (EntryKind.VALUE, EntryKind.VERSION)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the code asked for. `number` counts from 0, in the order of asking."""

    number: int
    kind: EntryKind
    name: str  # of the tool, agent, workflow, event; of a value what it is
    arguments: JsonValue = None
    value: JsonValue = None  # of what is answered at once
    # How to do it: the schema of an answer, who may approve. Later code may say otherwise for the
    # same thing, so it is neither compared nor in the log.
    terms: JsonValue = None
    label: str | None = None  # what it is for, for people; in the log, and not compared

    @property
    def fingerprint(self) -> str:
        """By which a replay knows that the code asks for the same again: SHA-256, in hex."""
        asked = {"kind": self.kind.value, "name": self.name, "arguments": self.arguments}
        return hashlib.sha256(dumps(asked).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log: what was asked for, and what came of it, once that is known.

    `told` counts the ends of a run's entries in the order in which they became known, which is the
    order in which the code learns of them in every process. None: it goes on, or was answered at
    once.

    `result`, by kind: what the tool returned; `{is_approved, reason, arguments}` of an approval; a
    model's text, or JSON of the schema in its terms; a run's result; nothing of a timer; the data
    of an event. `error` has `kind` and `message`; `run_id`, if a run has failed; and `is_certain`,
    if a call had no effect for sure and may be made anew: its effect is `failed`.
    """

    asked: Asked
    told: int | None = None
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None


class EndKind(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CONTINUED = "continued"  # as new: with another input and an empty log
    DIVERGED = "diverged"  # the code asks for something else than the log says


@dataclass(frozen=True, slots=True)
class End:
    kind: EndKind
    value: JsonValue = None  # the result, or the new input
    error: dict[str, JsonValue] | None = None  # of `failed` and `diverged`
    because_of: Sequence[int] = ()  # of `failed`: the entries by whose failure the code failed


@dataclass(frozen=True, slots=True)
class Turn:
    """How far the code came: what it asked for beyond the log, and what it waits for now.

    `groups` has every entry that is waited for, with the group it is in: the code goes on when all
    entries of any one group have ended, and cannot before.
    """

    asked: Sequence[Asked] = ()
    groups: Mapping[int, int] = field(default_factory=dict)
    end: End | None = None
