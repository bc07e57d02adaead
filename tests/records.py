"""Step records as workers write them, for tests that drive runs by hand (`tests.steps_by_hand`)."""

from collections.abc import Sequence
from datetime import UTC, datetime

from celeriac.codec import JsonValue
from celeriac.ids import CallId, call_id
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac_storage.claims import Claim
from celeriac_storage.step_record import (
    Event,
    Message,
    ModelCall,
    Next,
    PlannedEffect,
    SettledEffect,
    StepRecord,
)

ANSWER: dict[str, JsonValue] = {"kind": "response", "parts": []}
COMPLETED = Next(RunStatus.COMPLETED, outcome="completed", result="done")


def planned(step: int, kinds: Sequence[EffectKind]) -> list[PlannedEffect]:
    """One planned call of each kind."""
    return [
        PlannedEffect(
            call_id(step, index), index, f"p{index}", f"tool_{kind}", "1", kind, {"n": index}
        )
        for index, kind in enumerate(kinds)
    ]


def think(
    claim: Claim,
    following: Next | None = None,
    *,
    calls: Sequence[PlannedEffect] = (),
    input_tokens: int = 10,
    output_tokens: int = 5,
) -> StepRecord:
    """A model's answer: the calls it asks for, or the last word."""
    following = following or (Next.queued(Phase.WAITING_TOOL) if calls else COMPLETED)
    state: dict[str, JsonValue] = {} if following.phase is None else {"phase": following.phase}
    if calls:
        state["pending"] = [call.call_id for call in calls]
    return StepRecord(
        following,
        StepKind.THINK,
        "before_tools" if calls else "terminal",
        state=state,
        messages=[Message("assistant", ANSWER)],
        events=[Event("model.answered", {"step": claim.step, "epoch": claim.epoch})],
        planned=calls,
        model_call=ModelCall(
            claim.failed_thinks + 1,
            "scripted",
            claim.message_count,
            "answered",
            datetime.now(UTC),
            input_tokens,
            output_tokens,
        ),
        tool_calls=len(calls),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def act(
    settled: Sequence[SettledEffect],
    following: Next | None = None,
    *,
    told: Sequence[CallId] | None = None,
) -> StepRecord:
    """What calls came to; the message names those settled, or `told`."""
    following = following or Next.queued(Phase.WAITING_MODEL)
    calls: list[JsonValue] = list(told or [effect.call_id for effect in settled])
    return StepRecord(
        following,
        StepKind.ACT,
        "after_tools",
        state={} if following.phase is None else {"phase": following.phase},
        messages=[Message("results", {"calls": calls})],
        events=[
            Event(f"effect.{effect.state}", {"call_id": effect.call_id, "tool": "look"})
            for effect in settled
        ],
        settled=settled,
    )


def committed(
    call: CallId, result: JsonValue, was: EffectState = EffectState.PLANNED
) -> SettledEffect:
    """The call returned `result`; it ends an attempt if it `was` in flight."""
    return SettledEffect(
        call,
        was,
        EffectState.COMMITTED,
        result,
        is_attempt=was is EffectState.IN_FLIGHT,
    )
