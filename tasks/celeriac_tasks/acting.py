"""The act transition: execute the next calls of a response, each kind of effect in its own way."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.context import ToolContext
from celeriac.ids import effect_key
from celeriac.messages import results_message
from celeriac.states import EffectKind, EffectState, Phase, StepKind
from celeriac.testpoints import reach
from celeriac.tools import Tool
from celeriac_storage import artifacts, effects
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.history import StoredResult
from celeriac_storage.steps import Event, Message, Next, SettledEffect, StepRecord
from celeriac_tasks.calling import Outcome, Raised, Returned, call_here, call_in_time
from celeriac_tasks.conversation import call_result
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.transition import Transition

MAX_PARALLEL_READS = 16
MAX_PROGRESS_EVENTS = 20  # of one step: progress is for people, not a log


@dataclass(frozen=True, slots=True)
class Batch:
    """The calls of one act step, and those that come after it."""

    effects: Sequence[Effect]
    remaining: Sequence[Effect]

    @property
    def kind(self) -> EffectKind:
        """How the batch is executed; calls that are settled already only need to be told."""
        first = self.effects[0]
        return EffectKind.NONE if _only_reads(first) else first.kind


def next_batch(pending: Sequence[Effect]) -> Batch:
    """All adjacent calls from the first on that may run side by side, or exactly one other."""
    size = 1
    if _may_run_beside_others(pending[0]):
        while size < len(pending) and _may_run_beside_others(pending[size]):
            size += 1
    return Batch(pending[:size], pending[size:])


def _may_run_beside_others(effect: Effect) -> bool:
    return _only_reads(effect) and not effect.is_exclusive


def _only_reads(effect: Effect) -> bool:
    return effect.kind is EffectKind.NONE or effect.state.is_settled


class ToolFailed(Exception):
    """A transactional tool raised; its transaction has to be rolled back."""

    def __init__(self, error: dict[str, JsonValue]) -> None:
        super().__init__(error["message"])
        self.error = error


class Acting:
    """One act step of a claimed run."""

    def __init__(self, database: Database, loaded: LoadedAgent, claim: Claim, batch: Batch) -> None:
        self._database = database
        self._loaded = loaded
        self._claim = claim
        self._batch = batch
        self._progress: list[Event] = []
        self._lock = threading.Lock()

    @property
    def tool_name(self) -> str:
        return self._batch.effects[0].tool

    def lost_attempt(self) -> Transition | None:
        """What to do if an earlier worker left the call in flight: never make it again."""
        effect = self._batch.effects[0]
        if effect.state is not EffectState.IN_FLIGHT:
            return None
        message = f"the worker of attempt {effect.attempt} was lost during the call"
        return self._unknown(effect, {"kind": "worker_lost", "message": message})

    def missing_tool(self) -> Transition | None:
        """What to do if this worker's code lacks a tool that is still to be called."""
        for effect in self._batch.effects:
            if not effect.state.is_settled and effect.tool not in self._loaded.tools:
                message = (
                    f"tool {effect.tool} of call {effect.call_id} is no longer part of agent "
                    f"{self._claim.agent}: deploy code that has it, then "
                    f"`celeriac retry {self._claim.run_id}`"
                )
                return self._attention({"kind": "missing_tool", "message": message})
        return None

    def read(self) -> Transition:
        """Run the read-only calls side by side; those settled before are only told to the model."""
        todo = [effect for effect in self._batch.effects if not effect.state.is_settled]
        if len(todo) <= 1:
            outcomes = [self._call(effect) for effect in todo]
        else:
            with ThreadPoolExecutor(min(len(todo), MAX_PARALLEL_READS)) as threads:
                outcomes = list(threads.map(self._call, todo))
        return self._done(
            [self._settled(effect, outcome) for effect, outcome in zip(todo, outcomes, strict=True)]
        )

    def mark(self, connection: Connection) -> None:
        """Mark the transactional call as in flight, in the transaction that it will write in.

        Raises `Fenced` or `RequestsChanged`.
        """
        (effect,) = self._batch.effects
        tool = self._loaded.tools[effect.tool]
        effects.begin_transactional(connection, self._claim, effect.call_id, tool.timeout_seconds)

    def transact(self, connection: Connection) -> Transition:
        """Run the marked call in the step's own transaction.

        Raises `ToolFailed` if the tool failed or the database refused: the caller must then roll
        back, which undoes the tool's writes, and commit `failed(...)` in a transaction of its own.
        """
        (effect,) = self._batch.effects
        tool = self._loaded.tools[effect.tool]
        reach("act.before_tool", self._claim.step)
        outcome = call_here(tool, self._context(effect, tool, connection), effect.arguments)
        reach("act.after_tool", self._claim.step)
        if isinstance(outcome, Raised):
            raise ToolFailed(outcome.error)
        settled = self._settled(effect, outcome, connection)
        return self._done([replace(settled, was=EffectState.IN_FLIGHT)])

    def failed(self, error: dict[str, JsonValue]) -> Transition:
        """The transactional call failed and everything it wrote is undone: tell the model."""
        (effect,) = self._batch.effects
        return self._done([self._settled(effect, Raised(error, is_definite=True))])

    def call_external(self) -> Transition:
        """Record the attempt, make the call, and say what came of it.

        Raises `Fenced` or `RequestsChanged` before the call is made.
        """
        (effect,) = self._batch.effects
        tool = self._loaded.tools[effect.tool]
        reach("act.before_in_flight", self._claim.step)
        with self._database.connect() as connection:
            attempt = effects.begin_attempt(
                connection, self._claim, effect.call_id, tool.timeout_seconds
            )
        context = replace(
            self._context(effect, tool), attempt=attempt.attempt, deadline=attempt.deadline_at
        )
        reach("act.before_call", self._claim.step)
        outcome = call_in_time(tool, context, effect.arguments)
        reach("act.after_call", self._claim.step)
        begun = replace(effect, state=EffectState.IN_FLIGHT, attempt=attempt.attempt)
        if isinstance(outcome, Raised) and not outcome.is_definite:
            return self._unknown(begun, outcome.error)
        return self._done([replace(self._settled(begun, outcome), is_attempt=True)])

    def _call(self, effect: Effect) -> Outcome:
        tool = self._loaded.tools[effect.tool]
        reach("act.before_tool", self._claim.step)
        outcome = call_in_time(tool, self._context(effect, tool), effect.arguments)
        reach("act.after_tool", self._claim.step)
        return outcome

    def _context(
        self, effect: Effect, tool: Tool[..., Any], connection: Connection | None = None
    ) -> ToolContext:
        claim = self._claim
        return ToolContext(
            tool=tool.name,
            run_id=claim.run_id,
            thread_id=claim.thread_id,
            user_id=claim.user_id,
            tenant_id=claim.tenant_id,
            step=claim.step,
            call_id=effect.call_id,
            idempotency_key=effect_key(claim.tenant_id, claim.run_id, effect.call_id),
            attempt=effect.attempt + 1,
            _connection=connection,
            _report=lambda text: self._note_progress(effect, text),
        )

    def _note_progress(self, effect: Effect, text: str) -> None:
        with self._lock:
            if len(self._progress) < MAX_PROGRESS_EVENTS:
                data: dict[str, JsonValue] = {"call_id": effect.call_id, "text": text}
                self._progress.append(Event("tool.progress", data))

    def _settled(
        self, effect: Effect, outcome: Outcome, connection: Connection | None = None
    ) -> SettledEffect:
        if isinstance(outcome, Returned):
            return SettledEffect(
                effect.call_id,
                effect.state,
                EffectState.COMMITTED,
                outcome.result,
                self._artifact(outcome.result, connection),
            )
        return SettledEffect(effect.call_id, effect.state, EffectState.FAILED, error=outcome.error)

    def _artifact(self, result: JsonValue, connection: Connection | None) -> bytes | None:
        text = dumps(result)
        if not artifacts.is_large(text):
            return None
        if connection is not None:
            return artifacts.store(connection, text)
        with self._database.connect() as own:
            return artifacts.store(own, text)

    def _done(self, settled: Sequence[SettledEffect]) -> Transition:
        batch = self._batch
        outcomes = {effect.call_id: effect for effect in settled}
        results = [
            call_result(
                StoredResult(
                    effect.call_id,
                    effect.provider_call_id,
                    effect.tool,
                    outcomes[effect.call_id].result
                    if effect.call_id in outcomes
                    else effect.result,
                    outcomes[effect.call_id].error if effect.call_id in outcomes else effect.error,
                )
            )
            for effect in batch.effects
        ]
        following = Phase.WAITING_TOOL if batch.remaining else Phase.WAITING_MODEL
        state: dict[str, JsonValue] = {}
        if batch.remaining:
            state["pending"] = [effect.call_id for effect in batch.remaining]
        if "corrections" in self._claim.state:
            state["corrections"] = self._claim.state["corrections"]
        told: list[JsonValue] = [effect.call_id for effect in batch.effects]
        return Transition(
            StepRecord(
                next=Next.queued(following),
                kind=StepKind.ACT,
                reason="after_tools",
                state=state,
                messages=[Message("results", {"calls": told})],
                events=[*self._progress, *(self._outcome_event(effect) for effect in settled)],
                settled=settled,
            ),
            [results_message(results)],
            batch.remaining,
        )

    def _outcome_event(self, settled: SettledEffect) -> Event:
        (tool,) = (e.tool for e in self._batch.effects if e.call_id == settled.call_id)
        data: dict[str, JsonValue] = {"call_id": settled.call_id, "tool": tool}
        if settled.error is not None:
            data["error"] = settled.error
        return Event(f"effect.{settled.state}", data)

    def _unknown(self, effect: Effect, why: dict[str, JsonValue]) -> Transition:
        """Nobody knows whether the call took effect: a person must say."""
        run_id, call_id = self._claim.run_id, effect.call_id
        message = (
            f"the outcome of {effect.tool} (call {call_id}, attempt {effect.attempt}) is unknown: "
            f"{why['message']}. Look at the target, then say `celeriac resolve {run_id} {call_id} "
            "--committed JSON` or `--not-done`"
        )
        settled = SettledEffect(
            call_id,
            EffectState.IN_FLIGHT,
            EffectState.UNKNOWN,
            error=why,
            is_attempt=True,
            evidence=why,
        )
        return self._attention({"kind": "unknown_effect", "message": message}, [settled])

    def _attention(
        self, error: dict[str, JsonValue], settled: Sequence[SettledEffect] = ()
    ) -> Transition:
        return Transition(
            StepRecord(
                next=Next.needs_attention(Phase.WAITING_TOOL, error),
                kind=StepKind.ACT,
                reason="needs_attention",
                advances=False,
                events=[*self._progress, *(self._outcome_event(effect) for effect in settled)],
                settled=settled,
            )
        )
