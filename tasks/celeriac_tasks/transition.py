"""What a think or act step leaves for its commit and for the step after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage

from celeriac_storage.effects import Effect
from celeriac_storage.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class Transition:
    """The record to commit, the messages it adds, and the calls that are still to be made."""

    record: StepRecord
    messages: Sequence[ModelMessage] = ()
    pending: Sequence[Effect] = ()
