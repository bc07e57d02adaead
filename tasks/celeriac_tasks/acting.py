"""The act transition: execute the next calls of a response, each kind of effect in its own way."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.evidence import command_evidence
from celeriac.messages import results_message
from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac.testpoints import reach
from celeriac_storage import artifacts, consuming, effects
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.history import StoredResult
from celeriac_storage.step_record import Event, Message, Next, SettledEffect, StepRecord
from celeriac_tasks import approving, undoing
from celeriac_tasks.batch import BEGUN, Batch
from celeriac_tasks.calling import Outcome, Raised, Returned, call_here, call_in_time
from celeriac_tasks.decision_tool import refusal
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.lookback import call_result
from celeriac_tasks.tool_contexts import ToolContexts
from celeriac_tasks.transition import Transition


class ToolFailed(Exception):
    """A transactional tool raised; its transaction has to be rolled back."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.error["message"])
        self.raised = raised


class Acting:
    """One act step of a claimed run."""

    def __init__(self, database: Database, loaded: LoadedAgent, claim: Claim, batch: Batch) -> None:
        self._database = database
        self._loaded = loaded
        self._claim = claim
        self._batch = batch
        self.contexts = ToolContexts(database, loaded, claim)
        self._failures: list[Event] = []  # that are tried again
        self._checks: list[Event] = []  # of the decision that the call is made on

    @property
    def effects(self) -> Sequence[Effect]:
        """The calls of this step."""
        return self._batch.effects

    def missing_tool(self) -> Transition | None:
        """What to do if this worker's code lacks a tool that is still to be called, or the version
        of it that an undo needs."""
        for effect in self._batch.effects:
            if not effect.state.is_settled and effect.tool not in self._loaded.tools:
                message = (
                    f"tool {effect.tool} of call {effect.call_id} is no longer part of agent "
                    f"{self._claim.agent}: deploy code that has it, then "
                    f"`celeriac retry {self._claim.run_id}`"
                )
                return self.attention({"kind": "missing_tool", "message": message})
            if (other := undoing.other_version(self._claim, self._loaded, effect)) is not None:
                return self.attention(other)
        return None

    def read(self, known: Sequence[SettledEffect] = ()) -> Transition:
        """Run the read-only calls side by side; those settled before are only told to the model, as
        `known` if it has become known since what came of them."""
        todo = [effect for effect in self._batch.effects if not effect.state.is_settled]
        for effect in todo:
            if effect.requirement is not None:
                tool = self._loaded.tools[effect.tool]
                with approving.authorized(self._database, self._claim, tool, effect):
                    pass  # the decision is used up before anything is read
        if len(todo) <= 1:
            outcomes = [self._call(effect) for effect in todo]
        else:
            with ThreadPoolExecutor(len(todo)) as threads:
                # Each in a copy of this thread's context, to which its span belongs.
                calls = [threads.submit(copy_context().run, self._call, effect) for effect in todo]
                outcomes = [call.result() for call in calls]
        settled = [*known]
        waits: list[float] = []
        for effect, outcome in zip(todo, outcomes, strict=True):
            wait = self._wait_before_retry(effect, outcome)
            if wait is None:
                settled.append(self.settled(effect, outcome))
            else:
                waits.append(wait)
                settled.append(_still_planned(effect))
        return self._stay_for(max(waits), settled) if waits else self.done(settled)

    def mark(self, connection: Connection) -> None:
        """Mark the transactional call as in flight, in the transaction that it will write in.

        Raises `Fenced` or `RequestsChanged`, or `ApprovalLost` if a decision was needed and does
        not hold any more.
        """
        (effect,) = self._batch.effects
        tool = self._loaded.tools[effect.tool]
        effects.begin_transactional(connection, self._claim, effect.call_id, tool.timeout_seconds)
        if effect.requirement is not None:
            approving.check_with_code(tool, effect)
            consumed = consuming.consume(connection, self._claim, effect)
            # Not written here: the run's row would be locked for as long as the tool takes.
            self._checks = [Event(*each) for each in consuming.checked_events(effect, consumed)]
            self.contexts.approval_id = consumed.approval_id

    def transact(self, connection: Connection) -> Transition:
        """Run the marked call in the step's own transaction.

        Raises `ToolFailed` if the tool failed or the database refused: the caller must then roll
        back, which undoes the tool's writes, and commit `failed(...)` in a transaction of its own.
        """
        (effect,) = self._batch.effects
        tool = self._loaded.tools[effect.tool]
        reach("act.before_tool", self._claim.step)
        outcome = call_here(tool, self.contexts.of(effect, tool, connection), effect.arguments)
        reach("act.after_tool", self._claim.step)
        if isinstance(outcome, Raised):
            raise ToolFailed(outcome)
        settled = self.settled(effect, outcome, connection)
        done = self.done([replace(settled, was=EffectState.IN_FLIGHT)])
        memories = self.contexts.memories
        decided = [] if memories is None else memories.events
        return replace(done, record=replace(done.record, events=[*decided, *done.record.events]))

    def failed(self, raised: Raised) -> Transition:
        """The transactional call failed and everything it wrote is undone: try it again later, or
        tell the model."""
        (effect,) = self._batch.effects
        again = self.again(effect, raised) if raised.is_retried else None
        return again or self.told(effect, self.settled(effect, raised))

    def told(self, effect: Effect, settled: SettledEffect) -> Transition:
        """The call is over: the model is told; or, of an undo that failed, a person is."""
        if effect.undoes is None or settled.state is not EffectState.FAILED:
            return self.done([settled])
        error, still = undoing.failed(self._claim, effect, settled)
        return self.attention(error, [still])

    def again(self, effect: Effect, raised: Raised) -> Transition | None:
        """Try this call again later, as its tool's policy says; None after the last attempt."""
        wait = self._wait_before_retry(effect, raised)
        if wait is None:
            return None
        tried = _still_planned(effect)
        if effect.state in BEGUN:
            tried = SettledEffect(
                effect.call_id,
                effect.state,
                EffectState.NOT_DONE,
                is_attempt=True,
                evidence=raised.error,
            )
        return self._stay_for(wait, [tried])

    def _call(self, effect: Effect) -> Outcome:
        tool = self._loaded.tools[effect.tool]
        reach("act.before_tool", self._claim.step)
        outcome = call_in_time(tool, self.contexts.of(effect, tool), effect.arguments)
        reach("act.after_tool", self._claim.step)
        return outcome

    def _with_evidence(self, settled: SettledEffect) -> SettledEffect:
        """With what the call has left behind, to be kept with its attempt."""
        if not settled.is_attempt or settled.state is EffectState.NOT_DONE:
            return settled
        (effect,) = (each for each in self._batch.effects if each.call_id == settled.call_id)
        evidence: dict[str, JsonValue] = {}
        if (
            effect.mutates_workspace
            and (changes := self.contexts.changes.get(effect.call_id)) is not None
        ):
            evidence["changes"] = changes.to_json()
        if settled.state is EffectState.COMMITTED and (effect.mutates_workspace or effect.verifies):
            evidence |= command_evidence(settled.result)
        if not evidence:
            return settled
        return replace(settled, evidence={**(settled.evidence or {}), **evidence})

    def note(self, event: Event) -> None:
        """Have the step's commit tell this as well."""
        self._failures.append(event)

    def settled(
        self, effect: Effect, outcome: Outcome, connection: Connection | None = None
    ) -> SettledEffect:
        if isinstance(outcome, Returned):
            return SettledEffect(
                effect.call_id,
                effect.state,
                EffectState.COMMITTED,
                outcome.result,
                self.artifact(outcome.result, connection),
            )
        return SettledEffect(effect.call_id, effect.state, EffectState.FAILED, error=outcome.error)

    def artifact(self, result: JsonValue, connection: Connection | None = None) -> bytes | None:
        """The hash of the artifact that a large result is stored as; None of any other."""
        text = dumps(result)
        if not artifacts.is_large(text):
            return None
        if connection is not None:
            return artifacts.store(connection, text)
        with self._database.connect() as own:
            return artifacts.store(own, text)

    def done(self, settled: Sequence[SettledEffect]) -> Transition:
        batch = self._batch
        outcomes = {effect.call_id: effect for effect in settled}
        if self._claim.is_activity:
            return self._ended(settled)
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
        following = Next.queued(Phase.WAITING_TOOL if batch.remaining else Phase.WAITING_MODEL)
        if batch.remaining and approving.waits(batch.remaining):
            following = approving.WAIT_FOR_PEOPLE
        reason = "after_tools"
        handed = [e for e in batch.effects if e.is_handoff and e.state is EffectState.COMMITTED]
        if handed:  # the only call of its response
            following = Next(RunStatus.COMPLETED, outcome="completed", result=handed[0].result)
            reason = "terminal"
        state: dict[str, JsonValue] = {}
        if batch.remaining:
            state["pending"] = [effect.call_id for effect in batch.remaining]
        if "corrections" in self._claim.state:
            state["corrections"] = self._claim.state["corrections"]
        told: list[JsonValue] = [effect.call_id for effect in batch.effects]
        return Transition(
            StepRecord(
                next=following,
                kind=StepKind.ACT,
                reason=reason,
                state=state,
                messages=[Message("results", {"calls": told})],
                events=self._events(settled),
                settled=[self._with_evidence(each) for each in settled],
            ),
            [results_message(results)],
            batch.remaining,
        )

    def _ended(self, settled: Sequence[SettledEffect]) -> Transition:
        """The call was all that there is to the run; nobody is told but the workflow."""
        (effect,) = self._batch.effects
        outcome = settled[0] if settled else effect
        following = Next(RunStatus.COMPLETED, outcome="completed")  # the call has its result
        if outcome.state is not EffectState.COMMITTED:
            error: dict[str, JsonValue] = {
                "kind": outcome.state.value,
                "message": f"the call of {effect.tool} is {outcome.state}",
                **(outcome.error or {}),
            }
            if outcome.state is EffectState.FAILED:
                error["is_certain"] = True  # that it has changed nothing
            following = Next.failed("activity_failed", error)
            if (refused := refusal(effect.tool, outcome.state, error)) is not None:
                following = Next(RunStatus.COMPLETED, outcome="completed", result=refused)
        return Transition(
            StepRecord(
                next=following,
                kind=StepKind.ACT,
                reason="terminal",
                events=self._events(settled),
                settled=[self._with_evidence(each) for each in settled],
            )
        )

    def _events(self, settled: Sequence[SettledEffect]) -> list[Event]:
        to_be_made = (EffectState.PLANNED, EffectState.APPROVED)
        news = [e for e in settled if e.state not in to_be_made and not e.is_check]
        return [
            *self._checks,
            *self.contexts.progress,
            *self._failures,
            *map(self._outcome_event, news),
        ]

    def _outcome_event(self, settled: SettledEffect) -> Event:
        (tool,) = (e.tool for e in self._batch.effects if e.call_id == settled.call_id)
        data: dict[str, JsonValue] = {"call_id": settled.call_id, "tool": tool}
        if settled.error is not None:
            data["error"] = settled.error
        return Event(f"effect.{settled.state}", data)

    def stay(self, following: Next, reason: str, settled: Sequence[SettledEffect]) -> Transition:
        """The step did not get there: the run stays, with what became known about its calls."""
        return Transition(
            StepRecord(
                next=following,
                kind=StepKind.ACT,
                reason=reason,
                advances=False,
                events=self._events(settled),
                settled=[self._with_evidence(each) for each in settled],
            )
        )

    def attention(
        self, error: dict[str, JsonValue], settled: Sequence[SettledEffect] = ()
    ) -> Transition:
        """Only a person can say how the step goes on."""
        return self.stay(
            Next.needs_attention(Phase.WAITING_TOOL, error), "needs_attention", settled
        )

    def _wait_before_retry(self, effect: Effect, outcome: Outcome) -> float | None:
        """Seconds until the call is tried again; None if it is not."""
        if not isinstance(outcome, Raised) or not outcome.is_retried:
            return None
        retry = self._loaded.tools[effect.tool].recovery.retry
        if retry is None:  # the worker that said so had other code
            return None
        attempt = effect.attempt if effect.state in BEGUN else effect.attempt + 1
        if retry.backoff.is_exhausted(attempt):
            return None
        seconds = retry.backoff.delay_seconds(attempt)
        data: dict[str, JsonValue] = {
            "call_id": effect.call_id,
            "tool": effect.tool,
            "attempt": attempt,
            "error": outcome.error,
            "retry_in_seconds": round(seconds, 3),
        }
        self.note(Event("tool.failed", data))
        return seconds

    def _stay_for(self, seconds: float, settled: Sequence[SettledEffect]) -> Transition:
        pause = Next.waiting_for_timer(seconds, Phase.WAITING_TOOL)
        return self.stay(pause, "tool_failed", settled)


def _still_planned(effect: Effect) -> SettledEffect:
    """One more attempt at a call without effect has failed, and it is still to be made."""
    return SettledEffect(effect.call_id, effect.state, effect.state)
