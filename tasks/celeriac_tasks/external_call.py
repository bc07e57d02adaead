"""One external call: recorded before it is made, looked at when lost, never repeated blindly.

check      the precondition, if the tool has one
begin      one statement: the attempt is in flight, before anybody calls anything
call       outside any transaction, with the idempotency key, up to the tool's timeout
verify     if the tool has one: what the target shows counts, not what the tool returned
settle     by the step's commit, or by whoever recovers the attempt (`recovering`)
"""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.recovery import Done, Finding, NotDone, Unclear
from celeriac.secrets import redact
from celeriac.states import EffectState, Phase
from celeriac.testpoints import reach
from celeriac_storage import effects, lost_calls
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.lost_calls import LostCall
from celeriac_storage.step_record import Next, SettledEffect
from celeriac_tasks.acting import Acting
from celeriac_tasks.approving import authorized, look
from celeriac_tasks.calling import Outcome, Raised, Returned, call_in_time, in_time
from celeriac_tasks.late_reports import committed_after_all
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.preconditions import obstacle
from celeriac_tasks.recovering import Ask, LookLater, SendAgain, Settle, decide
from celeriac_tasks.transition import Transition

Details = dict[str, JsonValue]

# The clock that goes on while the machine is suspended, as the database's does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


class ExternalCall:
    """The call of an act step whose tool changes something elsewhere."""

    def __init__(
        self, database: Database, loaded: LoadedAgent, claim: Claim, acting: Acting
    ) -> None:
        self._database = database
        self._claim = claim
        self._acting = acting
        (self._effect,) = acting.effects
        self._tool = loaded.tools[self._effect.tool]
        self._recovery = self._tool.recovery

    @staticmethod
    def is_lost(effect: Effect) -> bool:
        """Whether an attempt was begun whose outcome is not known."""
        return effect.state in (EffectState.IN_FLIGHT, EffectState.UNKNOWN)

    def make(self) -> Transition:
        """Ask the precondition, record the attempt, make the call, and say what came of it.

        Raises `Fenced`, `RequestsChanged` or `ApprovalLost` before the call is made.
        """
        step = self._claim.step
        is_in_doubt = self._effect.state is EffectState.UNKNOWN  # what an earlier attempt has done
        if told := committed_after_all(self._database, self._claim, self._acting, [self._effect]):
            return self._acting.done(told)
        if self._tool.precondition is not None:
            # First, or people who have taken back their word would hear of a condition instead.
            look(self._database, self._claim, self._tool, self._effect)
            stopped = obstacle(self._acting, self._claim, self._tool, self._effect)
            if stopped is not None:
                return stopped
        reach("act.before_in_flight", step)
        begun_at = _now()  # no later than the moment that the deadline counts from
        with authorized(self._database, self._claim, self._tool, self._effect) as (
            connection,
            decision,
        ):
            attempt = effects.begin_attempt(
                connection,
                self._claim,
                self._effect.call_id,
                self._tool.timeout_seconds,
                None if decision is None else (decision.approval_id, decision.version),
                follows_doubt=is_in_doubt,
            )
        context = replace(
            self._acting.contexts.of(self._effect, self._tool),
            attempt=attempt.attempt,
            deadline=attempt.deadline_at,
        )
        reach("act.before_call", step)
        outcome = self._call(context, begun_at)
        reach("act.after_call", step)
        begun = replace(self._effect, state=EffectState.IN_FLIGHT, attempt=attempt.attempt)
        if isinstance(outcome, Returned):
            return self._verified(begun, outcome)
        if is_in_doubt and outcome.is_definite:
            return self._refused_in_doubt(begun, outcome)
        if outcome.is_retried and (again := self._acting.again(begun, outcome)) is not None:
            return again
        if outcome.is_definite:
            settled = self._acting.settled(begun, outcome)
            return self._acting.told(begun, replace(settled, is_attempt=True))
        return self._lost(begun, outcome)

    def _call(self, context: ToolContext, begun_at: float) -> Outcome:
        # A worker that was frozen until now is thought to be dead, and past the deadline others
        # take the call for over: they may have made it anew. A freeze between this look and the
        # request cannot be noticed here; then only the target can tell by the key.
        late_seconds = _now() - begun_at - self._tool.timeout_seconds
        if late_seconds < 0:
            return call_in_time(self._tool, context, self._effect.arguments)
        message = (
            f"tool {self._tool.name} was not called: {late_seconds:.1f} s after its deadline it "
            "had not been begun"
        )
        return Raised({"kind": "too_late", "message": message}, is_definite=True)

    def recover(self) -> Transition | None:
        """Find out what came of an attempt whose outcome is not known, and go on from there. None
        if the call is to be made once more, with its key (`make`): only the target can tell."""
        effect = self._effect
        message = f"the worker of attempt {effect.attempt} was lost during the call"
        why: Details = {"kind": "worker_lost", "message": message}
        if effect.state is EffectState.UNKNOWN and effect.error is not None:
            why = effect.error
        return self._decided(effect, why)

    def _verified(self, begun: Effect, outcome: Returned) -> Transition:
        """The tool says that it worked. If it can be checked, what the target shows counts."""
        settled = replace(self._acting.settled(begun, outcome), is_attempt=True)
        if self._recovery.verify is None:
            return self._acting.done([settled])
        finding = self._look()
        reach("act.after_verify", self._claim.step)
        match finding:
            case Done():
                return self._acting.done([replace(settled, evidence={"verified": True})])
            case NotDone():
                message = "the tool said that it worked, but the target does not show it yet"
            case Unclear(unclear):
                message = f"the tool said that it worked, but the target cannot tell: {unclear}"
        why: Details = {"kind": "unverified", "message": message}
        return self._look_later(
            begun,
            LookLater(self._recovery.visibility_seconds, message),
            {**why, "is_over": True, "returned": outcome.result},
            why,
        )

    def _refused_in_doubt(self, begun: Effect, outcome: Raised) -> Transition:
        """This attempt changed nothing, which says nothing of the one before."""
        said = str(outcome.error["message"])
        message = f"an earlier attempt may have taken effect; this one was refused: {said}"
        error = {**outcome.error, "message": message}
        if self._recovery.verify is None and error["kind"] != "too_late":
            return self._ask(begun, Ask(EffectState.UNKNOWN, message), {**error, "is_over": True})
        return self._lost(begun, replace(outcome, error=error))

    def _lost(self, begun: Effect, outcome: Raised) -> Transition:
        """The call came to no good end here, so it may have taken effect or not."""
        evidence = dict(outcome.error)
        if outcome.error["kind"] != "timeout":  # a call that timed out may be going on
            evidence["is_over"] = True
        message = str(outcome.error["message"])
        if self._recovery.is_for_people:
            return self._ask(begun, Ask(EffectState.UNKNOWN, message), evidence)
        wait = LookLater(self._recovery.visibility_seconds, message)
        return self._look_later(begun, wait, evidence, outcome.error)

    def _decided(self, effect: Effect, why: Details) -> Transition | None:
        lost = self._find(effect)
        decision = decide(
            self._recovery,
            effect.attempt,
            lost,
            lambda: self._look(lost.seconds_until_deadline),
            str(why["message"]),
        )
        reach("act.after_recovery", self._claim.step)
        match decision:
            case Settle(state, result, error, is_retried, is_seen):
                outcome: Outcome = Returned(result)
                if error is not None:
                    outcome = Raised(error, is_definite=True, is_retried=is_retried)
                    if (again := self._acting.again(effect, outcome)) is not None:
                        return again
                settled = replace(
                    self._acting.settled(effect, outcome),
                    state=state,
                    is_attempt=True,
                    evidence={"recovered": why, **({"verified": True} if is_seen else {})},
                )
                return self._acting.told(effect, settled)
            case SendAgain(_, is_certain=False) if effect.state is EffectState.UNKNOWN:
                return None
            case SendAgain(reason, is_certain=False):
                lost_too = SettledEffect(
                    effect.call_id,
                    effect.state,
                    EffectState.UNKNOWN,
                    error=why,
                    is_attempt=True,
                    evidence={**why, "message": reason},
                )
                return self._acting.stay(
                    Next.queued(Phase.WAITING_TOOL), "outcome_unknown", [lost_too]
                )
            case SendAgain(reason):
                not_done = SettledEffect(
                    effect.call_id,
                    effect.state,
                    EffectState.NOT_DONE,
                    is_attempt=True,
                    evidence={"message": reason},
                )
                return self._acting.stay(Next.queued(Phase.WAITING_TOOL), "sent_again", [not_done])
            case LookLater():
                return self._look_later(effect, decision, {**why, "message": decision.why}, why)
            case Ask():
                return self._ask(effect, decision, {**why, "message": decision.why})

    def _find(self, effect: Effect) -> LostCall:
        with self._database.connect() as connection:
            return lost_calls.find(
                connection,
                self._claim.run_id,
                effect.call_id,
                effect.attempt,
                self._recovery.visibility_seconds,
            )

    def _look(self, seconds_until_deadline: float = 0.0) -> Finding:
        context = replace(
            self._acting.contexts.of(self._effect, self._tool),
            attempt=max(1, self._effect.attempt),
            deadline=datetime.now(UTC) + timedelta(seconds=seconds_until_deadline),
        )
        tool = self._tool
        try:
            arguments = tool.call_arguments(self._effect.arguments)
            finding: Finding = in_time(lambda: self._recovery.look(context, arguments), tool)
            return finding
        except TimeoutError as error:
            return Unclear(str(error) or f"verify took longer than {tool.timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - a target that cannot be asked cannot tell
            return Unclear(redact(f"{type(error).__name__}: {error}"))

    def _look_later(
        self, effect: Effect, decision: LookLater, evidence: Details, why: Details
    ) -> Transition:
        unknown = SettledEffect(
            effect.call_id,
            effect.state,
            EffectState.UNKNOWN,
            error=why,
            is_attempt=True,
            evidence=evidence,
        )
        pause = Next.waiting_for_timer(decision.seconds, Phase.WAITING_TOOL)
        return self._acting.stay(pause, "outcome_unknown", [unknown])

    def _ask(self, effect: Effect, ask: Ask, evidence: Details) -> Transition:
        run_id, call_id = self._claim.run_id, effect.call_id
        words = "--committed JSON` or `--not-done`"
        if ask.state is EffectState.KNOWN_BAD:
            words = "--not-done` once it is certain that it never will be done"
            if effect.undoes is not None:
                words = (
                    "--committed JSON` if it was undone by hand, or `--not-done` if it will not be"
                )
        told = (
            f"{ask.why}. Look at the target, then say `celeriac resolve {run_id} {call_id} {words}"
        )
        called = f"{effect.tool} (call {call_id}, attempt {effect.attempt})"
        if ask.state is EffectState.KNOWN_BAD:
            kind, message = "known_bad_effect", f"{called} did not do what it reported: {told}"
        else:
            kind, message = "unknown_effect", f"the outcome of {called} is unknown: {told}"
        settled = SettledEffect(
            call_id,
            effect.state,
            ask.state,
            error={"kind": str(evidence["kind"]), "message": ask.why},
            is_attempt=True,
            evidence=evidence,
        )
        return self._acting.attention({"kind": kind, "message": message}, [settled])
