"""A run's timeline: its steps and what happened between them, the oldest first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from celeriac.ids import CallId, WorkerId
from celeriac.reports import Effect, Event, Run, Step
from celeriac.states import RunStatus
from celeriac_api.console.words import BAD, event_words
from celeriac_storage.timelines import ModelCall, Process, Timeline

_TOLD_BY_STEP = frozenset({"model.answered", "effect.committed", "tool.progress", "run.heard"})
_LEADS_TO_PROPOSAL = frozenset({"approval.requested", "proposal.edited"})
_OUTCOMES = frozenset(
    {"effect.committed", "effect.failed", "effect.invalid", "effect.precondition_failed",
     "effect.rejected", "effect.not_done", "effect.unknown", "effect.known_bad",
     "effect.rolled_back", "tool.failed"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    seq: int
    at: datetime
    words: str
    is_bad: bool
    approval_id: str | None


@dataclass(frozen=True, slots=True)
class Takeover:
    """A step that was taken from a worker, and who has it since."""

    seq: int
    at: datetime  # of the verdict
    step: int
    reason: str  # how it was noticed
    lost: WorkerId | None
    lost_process: Process | None
    by: WorkerId | None  # None: nobody yet
    by_process: Process | None
    after_seconds: float | None  # from the verdict to the claim; None: nobody yet, or lost again


@dataclass(slots=True)
class Card:
    """One committed step."""

    step: int
    kind: str
    worker_id: WorkerId
    process: Process | None
    committed_at: datetime
    seconds: float
    model_calls: list[ModelCall]
    texts: Sequence[str]
    planned: list[Effect]  # the calls that a think asks for
    made: list[Effect] = field(default_factory=list)  # those of which an act tells what came
    lines: list[Line] = field(default_factory=list)

    @property
    def input_tokens(self) -> int:
        return sum(each.input_tokens for each in self.model_calls)

    @property
    def output_tokens(self) -> int:
        return sum(each.output_tokens for each in self.model_calls)


Item = Card | Line | Takeover


def items(run: Run, timeline: Timeline) -> list[Item]:
    """The steps and events that are shown, in the order in which they came to be."""
    calls = {effect.call_id: effect for effect in run.effects}
    since = timeline.events[0].at if timeline.events and not timeline.is_whole else None
    moments: list[tuple[datetime, int, Step | Event]] = [
        (step.committed_at, -1, step)
        for step in run.steps
        if since is None or step.committed_at >= since
    ]
    moments += [(event.at, event.seq, event) for event in timeline.events]
    found: list[Item] = []
    card: Card | None = None  # the step whose commit the next events may belong to
    for _, _, moment in sorted(moments, key=lambda each: each[:2]):
        if isinstance(moment, Step):
            card = _card(moment, run, timeline)
            found.append(card)
        elif moment.type == "run.recovered":
            found.append(_takeover(moment, run, timeline))
            card = None
        elif card is not None and _belongs(moment):
            effect = calls.get(CallId(str(moment.data.get("call_id"))))
            if moment.type in _OUTCOMES and effect is not None and effect not in card.made:
                card.made.append(effect)
            if moment.type not in _TOLD_BY_STEP or moment.type == "tool.progress":
                card.lines.append(_line(moment))
        else:
            found.append(_line(moment))
            card = None
    return found


def open_calls(run: Run) -> list[Effect]:
    """The calls that nothing is known of yet, or nothing good."""
    return [effect for effect in run.effects if not effect.state.is_settled]


def _belongs(event: Event) -> bool:
    """Whether it was written with the step before it: its outcome, and not what came later."""
    return event.type in _OUTCOMES | {"model.answered", "model.questioned", "tool.progress"}


def _card(step: Step, run: Run, timeline: Timeline) -> Card:
    return Card(
        step.step,
        step.kind.value,
        step.worker_id,
        timeline.workers.get(step.worker_id),
        step.committed_at,
        (step.committed_at - step.started_at).total_seconds(),
        [call for call in timeline.model_calls if call.step == step.step],
        timeline.texts.get(step.step, ()),
        [effect for effect in run.effects if effect.call_id.startswith(f"{step.step}.")],
    )


def _line(event: Event) -> Line:
    approval_id = event.data.get("approval_id") if event.type in _LEADS_TO_PROPOSAL else None
    return Line(
        event.seq,
        event.at,
        event_words(event),
        event.type in BAD,
        approval_id if isinstance(approval_id, str) else None,
    )


def _takeover(event: Event, run: Run, timeline: Timeline) -> Takeover:
    lost, step = _worker_of(event), event.data.get("step")
    assert isinstance(step, int)
    by, claimed_at = _successor(event, step, run, timeline)
    return Takeover(
        event.seq,
        event.at,
        step,
        str(event.data.get("reason")),
        lost,
        None if lost is None else timeline.workers.get(lost),
        by,
        None if by is None else timeline.workers.get(by),
        None if claimed_at is None else max(0.0, (claimed_at - event.at).total_seconds()),
    )


def _successor(
    event: Event, step: int, run: Run, timeline: Timeline
) -> tuple[WorkerId | None, datetime | None]:
    """Who has claimed the step after it was taken away, and when, as far as that is recorded: of
    a claim that was lost again only by whom."""
    losses = [
        each for each in timeline.events
        if each.type == "run.recovered" and each.data.get("step") == step
    ]  # fmt: skip
    for one, next_one in pairwise(losses):
        if one.seq == event.seq:
            return _worker_of(next_one), None
    for committed in run.steps:
        if committed.step == step:
            return committed.worker_id, committed.started_at
    if run.status is RunStatus.RUNNING and run.step == step:
        return run.worker_id, timeline.step_started_at
    return None, None


def _worker_of(event: Event) -> WorkerId | None:
    """The worker that the event tells of."""
    named = event.data.get("worker_id")
    return WorkerId(named) if isinstance(named, str) else None
