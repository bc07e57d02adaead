"""The think transition: ask the model, and turn what it says into a step record."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

from pydantic_ai.messages import ModelResponse
from pydantic_ai.settings import ModelSettings

from celeriac import model_loop, models, prices
from celeriac.codec import JsonValue, stored_form
from celeriac.limits import Limits
from celeriac.messages import dump_message, load_message, question_message
from celeriac.scripted import ScriptedModel
from celeriac.selection import ContextTooLong
from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac.testpoints import reach
from celeriac.think_backoff import backoff_for
from celeriac.think_failure import (
    UNBILLED,
    ThinkFailure,
    ThinkFailureKind,
    check_response,
    classify,
)
from celeriac_storage.claims import Claim
from celeriac_storage.step_record import Event, Message, ModelCall, Next, PlannedEffect, StepRecord
from celeriac_tasks import delegating, observing
from celeriac_tasks.approving import WAIT_FOR_PEOPLE, proposal_events
from celeriac_tasks.hearing import Hearing
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.memorizing import without_secrets
from celeriac_tasks.planning import as_stored, plan, proposed, unproposed
from celeriac_tasks.selecting import Question
from celeriac_tasks.text_stream import TextStreams
from celeriac_tasks.transition import Transition

LOOP_MARGIN_SECONDS = 5.0  # beyond the request's own timeout: then the loop itself is stuck
EMPTY_ANSWER = "Your last answer was empty. Call a tool, or answer with text."


def think(
    loaded: LoadedAgent,
    claim: Claim,
    question: Question,
    hearing: Hearing,
    text_streams: TextStreams | None,
) -> Transition:
    """Ask the model once. Holds no connection; may take as long as the agent's think timeout.

    With `text_streams`, an agent that streams is read while it writes. What becomes of the step
    depends on the whole response alone.

    The request is cancelled, and its connection closed, if the run is asked to stop meanwhile.
    """
    with observing.model_call(loaded, claim) as seen:
        left = _thought(loaded, claim, question, hearing, text_streams)
        seen.record = left.record.model_call
    return question.recorded_in(left)


def _thought(
    loaded: LoadedAgent,
    claim: Claim,
    question: Question,
    hearing: Hearing,
    text_streams: TextStreams | None,
) -> Transition:
    reach("think.before_model_call", claim.step)
    try:
        response = _ask(loaded, claim, question, hearing, text_streams)
        if response is None:
            return Transition(_stopped(loaded, claim))
        failure = check_response(response)
    except Exception as error:  # noqa: BLE001 - SDKs raise anything; `classify` sorts it
        return Transition(_failed(loaded, claim, classify(error), None))
    response = without_secrets(loaded, response)  # before any of it is stored
    reach("think.after_model_call", claim.step)
    if failure is None:
        return _answered(loaded, claim, response)
    if failure.kind is ThinkFailureKind.EMPTY_RESPONSE:
        return _asked_back(loaded, claim, response)
    return Transition(_failed(loaded, claim, failure, response))


def unaskable(claim: Claim, error: ContextTooLong) -> StepRecord:
    """The model is not asked: what must be sent does not fit its context, now and later."""
    why = _error(ThinkFailureKind.CONTEXT_TOO_LONG, str(error))
    return StepRecord(
        next=Next.failed("model_failed", why),
        kind=StepKind.THINK,
        reason="context_too_long",
        advances=False,
        failed_thinks=claim.failed_thinks,
    )


def _ask(
    loaded: LoadedAgent,
    claim: Claim,
    question: Question,
    hearing: Hearing,
    text_streams: TextStreams | None,
) -> ModelResponse | None:
    """The model's response, or None if the run was asked to stop before there was one."""
    agent = loaded.agent
    if agent.stream and text_streams is not None:
        with text_streams.attempt(claim.run_id, claim.epoch, claim.step) as on_text:
            return _wait_for(loaded, claim, question, hearing, on_text)
    if isinstance(loaded.model, ScriptedModel):
        turn = loaded.model.answer(question.messages)
        if turn.delay_seconds == 0:
            return loaded.model.respond(question.messages, turn)
    return _wait_for(loaded, claim, question, hearing, None)


def _wait_for(
    loaded: LoadedAgent,
    claim: Claim,
    question: Question,
    hearing: Hearing,
    on_text: Callable[[str], None] | None,
) -> ModelResponse | None:
    agent = loaded.agent
    timeout_seconds = agent.think_timeout_seconds + LOOP_MARGIN_SECONDS
    future = model_loop.submit(
        models.request(
            loaded.model,
            question.messages,
            instructions=agent.instructions,
            tools=loaded.definitions,
            timeout_seconds=agent.think_timeout_seconds,
            settings=_settings(loaded),
            on_text=on_text,
        ),
        timeout_seconds=timeout_seconds,
    )
    with hearing.waiting(claim.run_id, future.cancel) as wait:
        try:
            return model_loop.wait(future, timeout_seconds)
        except CancelledError:
            if wait.is_over:
                return None
            raise


def _settings(loaded: LoadedAgent) -> ModelSettings | None:
    most = loaded.agent.max_output_tokens
    return None if most is None else ModelSettings(max_tokens=most)


def _answered(loaded: LoadedAgent, claim: Claim, response: ModelResponse) -> Transition:
    body = dump_message(response)
    stored_body = stored_form(body)  # without secrets, as another worker will read it
    assert isinstance(stored_body, dict)
    planned = delegating.checked(loaded, claim, plan(loaded, claim.step, response.tool_calls))
    planned, proposals = proposed(loaded, claim, planned, response.text or "")
    corrections = _corrections(claim, planned)
    state: dict[str, JsonValue] = {}
    if planned:
        is_undecided = all(effect.state is EffectState.PROPOSED for effect in planned)
        following = WAIT_FOR_PEOPLE if is_undecided else Next.queued(Phase.WAITING_TOOL)
        reason = "before_tools"
        state["pending"] = [effect.call_id for effect in planned]
    elif response.state == "suspended":
        following = Next.queued(Phase.WAITING_MODEL)
        reason = "suspended"
    else:
        following = Next(RunStatus.COMPLETED, outcome="completed", result=response.text or "")
        reason = "terminal"
    if corrections:
        state["corrections"] = corrections
    limits = Limits.from_json(claim.limits)
    if corrections > limits.corrections:
        following = Next.failed(
            "invalid_calls",
            _error(
                "invalid_calls",
                f"the model made {corrections} responses in a row without one valid tool call; "
                f"the limit is {limits.corrections}",
            ),
        )
    elif claim.tool_calls_used + len(planned) > limits.tool_calls:
        following = Next.failed(
            "limit_exceeded",
            _error(
                "limit_exceeded",
                f"the model asked for {len(planned)} more tool calls after "
                f"{claim.tool_calls_used}; the limit is {limits.tool_calls}",
            ),
        )
    if following.status.is_terminal:
        reason = "terminal"
        planned, proposals = [unproposed(effect) for effect in planned], []
    return Transition(
        StepRecord(
            next=following,
            kind=StepKind.THINK,
            reason=reason,
            state=state,
            messages=[Message("assistant", body)],
            events=[
                _answer_event(claim, planned, response.text if loaded.agent.stream else None),
                *proposal_events(proposals, {effect.call_id: effect.tool for effect in planned}),
            ],
            planned=planned,
            proposed=proposals,
            model_call=_model_call(loaded, claim, "answered", response),
            tool_calls=len(planned),
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
        ),
        [load_message(stored_body)],
        [as_stored(effect) for effect in planned],
    )


def _corrections(claim: Claim, planned: Sequence[PlannedEffect]) -> int:
    """Responses in a row that led to nothing but a question back to the model, with this one."""
    if planned and all(effect.state is EffectState.INVALID for effect in planned):
        return _corrections_so_far(claim) + 1
    return 0


def _corrections_so_far(claim: Claim) -> int:
    corrections = claim.state.get("corrections", 0)
    assert isinstance(corrections, int)
    return corrections


def _asked_back(loaded: LoadedAgent, claim: Claim, response: ModelResponse) -> Transition:
    """The model said nothing. Ask again in words, a bounded number of times."""
    corrections = _corrections_so_far(claim) + 1
    limit = Limits.from_json(claim.limits).corrections
    if corrections > limit:
        failure = ThinkFailure(
            ThinkFailureKind.EMPTY_RESPONSE,
            f"the model gave {corrections} empty answers in a row; the limit is {limit}",
        )
        return Transition(_failed(loaded, claim, failure, response))
    question = dump_message(question_message(EMPTY_ANSWER))
    return Transition(
        StepRecord(
            next=Next.queued(Phase.WAITING_MODEL),
            kind=StepKind.THINK,
            reason="question",
            state={"corrections": corrections},
            messages=[Message("question", question)],
            events=[Event("model.questioned", {**_asked(claim), "why": "empty_response"})],
            model_call=_model_call(loaded, claim, "empty_response", response),
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
        ),
        [load_message(question)],
    )


def _stopped(loaded: LoadedAgent, claim: Claim) -> StepRecord:
    """The attempt is a row; where the run goes is what was asked for, which the commit learns."""
    error = _error("interrupted", "the run was asked to stop, and the request was cancelled")
    attempt = claim.failed_thinks + 1
    return StepRecord(
        next=Next.queued(Phase.WAITING_MODEL),
        kind=StepKind.THINK,
        reason="interrupted",
        advances=False,
        events=[Event("model.interrupted", {**_asked(claim), "attempt": attempt})],
        model_call=_model_call(loaded, claim, "interrupted", None, error),
        failed_thinks=attempt,
    )


def _failed(
    loaded: LoadedAgent, claim: Claim, failure: ThinkFailure, response: ModelResponse | None
) -> StepRecord:
    """A failed attempt is a row; the step is tried again later, or the run ends."""
    attempt = claim.failed_thinks + 1
    backoff = backoff_for(failure)
    error = _error(failure.kind, failure.message)
    if failure.status_code is not None:
        error["status_code"] = failure.status_code
    data: dict[str, JsonValue] = {**_asked(claim), "attempt": attempt, "kind": failure.kind}
    if failure.is_transient and not backoff.is_exhausted(attempt):
        delay = backoff.delay_seconds(attempt, failure.retry_after_seconds)
        data["retry_in_seconds"] = round(delay, 3)
        following = Next.waiting_for_timer(delay, Phase.WAITING_MODEL)
    else:
        following = Next.failed("model_failed", {**error, "attempts": attempt})
    return StepRecord(
        next=following,
        kind=StepKind.THINK,
        reason="model_failed",
        advances=False,
        events=[Event("model.failed", data)],
        model_call=_model_call(loaded, claim, failure.kind, response, error),
        input_tokens=response.usage.input_tokens if response else 0,
        output_tokens=response.usage.output_tokens if response else 0,
        failed_thinks=attempt,
    )


def _model_call(
    loaded: LoadedAgent,
    claim: Claim,
    outcome: str,
    response: ModelResponse | None,
    error: dict[str, JsonValue] | None = None,
) -> ModelCall:
    has_changed = claim.agent_hash not in (None, loaded.agent_hash)
    return ModelCall(
        attempt=claim.failed_thinks + 1,
        model=loaded.model.model_name,
        message_count=claim.message_count,
        outcome=outcome,
        started_at=claim.step_started_at,
        input_tokens=response.usage.input_tokens if response else 0,
        output_tokens=response.usage.output_tokens if response else 0,
        usage=dict(response.usage.details) or None if response else None,
        error=error,
        # The run pinned its versions at its first step; only a later deploy is worth a note.
        prompt_hash=loaded.prompt_hash if has_changed else None,
        tools_hash=loaded.tools_hash if has_changed else None,
        cost=None if response is None else prices.cost_of(response, loaded.agent.price),
        is_metered=outcome in UNBILLED
        if response is None
        else not response.usage.unmeasured_requests,
    )


def _answer_event(claim: Claim, planned: Sequence[PlannedEffect], text: str | None) -> Event:
    data = _asked(claim)
    if planned:
        data["calls"] = [
            {"call_id": effect.call_id, "tool": effect.tool, "state": effect.state}
            for effect in planned
        ]
    if text:
        data["text"] = text  # whoever has read the pieces gets the whole at the same place
    return Event("model.answered", data)


def _asked(claim: Claim) -> dict[str, JsonValue]:
    """Which attempt at which step an event is about; its pieces of text carry the same."""
    return {"step": claim.step, "epoch": claim.epoch}


def _error(kind: str, message: str) -> dict[str, JsonValue]:
    return {"kind": str(kind), "message": message}
