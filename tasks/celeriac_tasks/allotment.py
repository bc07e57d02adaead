"""What a step may use of its run's budgets: reserved before it acts, charged in its commit.

Only for runs that have budgets (`Claim.is_budgeted`): others pay no round trip for them. A call
that somebody has begun, and what takes calls back, is never refused, and charged like any other.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from celeriac import prices
from celeriac.budget import Measure, Use
from celeriac.codec import JsonValue
from celeriac.reports import to_json
from celeriac.states import EffectState, StepKind
from celeriac.testpoints import reach
from celeriac_storage import budgets
from celeriac_storage.budgets import Notice
from celeriac_storage.claims import Claim
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Event, ModelCall, Next, SettledEffect, StepRecord
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.worker_process import WorkerProcess

OUTPUT_TOKENS = 4096
"""What an answer is expected to take at most, if neither agent nor model says so: longer ones are
charged all the same, and may pass the limit by what they are longer."""

_CALLED = (
    EffectState.COMMITTED,
    EffectState.FAILED,
    EffectState.UNKNOWN,
    EffectState.KNOWN_BAD,
)
"""What a call is that was made, as far as anybody knows."""
_TO_BE_COUNTED = (EffectState.PLANNED, EffectState.APPROVED, EffectState.IN_FLIGHT)
"""What a call was that no budget has counted yet, unless it was handed out."""


class Allotment:
    """The share of one step."""

    def __init__(self, worker: WorkerProcess, loaded: LoadedAgent) -> None:
        self._worker = worker
        self._loaded = loaded
        self._began_at = time.monotonic()
        self._warnings: Sequence[Notice] = ()

    def reserve_question(self, claim: Claim, input_tokens: int) -> StepRecord | None:
        """Reserve what asking the model may cost; what becomes of the run if it is refused."""
        if not claim.is_budgeted:
            return None
        loaded = self._loaded
        output_tokens = loaded.agent.max_output_tokens or _own_limit(loaded) or OUTPUT_TOKENS
        cost = prices.estimate(loaded.model, loaded.agent.price, input_tokens, output_tokens)
        needs = {Measure.TOKENS: Decimal(input_tokens + output_tokens), Measure.USD: cost}
        return self._reserve(claim, needs)

    def reserve_calls(self, claim: Claim, effects: Sequence[Effect]) -> StepRecord | None:
        """The same for calling tools; without calls, for a step that only tells something."""
        if not claim.is_budgeted or claim.is_rollback:
            return None
        calls = sum(not effect.state.is_settled for effect in effects)
        return self._reserve(claim, {Measure.TOOL_CALLS: Decimal(calls)} if calls else {})

    def charge(self, claim: Claim, record: StepRecord, requested: Sequence[Effect]) -> StepRecord:
        """The record with what the step used, and the warnings that it leaves. `requested` are
        calls that were handed out before, and counted then."""
        if not claim.is_budgeted:
            return record
        counted = {effect.call_id for effect in requested}
        calls = record.handed_out + sum(
            _is_made(effect) for effect in record.settled if effect.call_id not in counted
        )
        amounts = {
            **_charge_of(self._loaded, record.model_call),
            Measure.STEPS: Decimal(int(record.advances)),
            Measure.TOOL_CALLS: Decimal(calls),
            Measure.SECONDS: _seconds(time.monotonic() - self._began_at),
        }
        events = [Event("budget.warned", _facts(each, "soft_limit")) for each in self._warnings]
        warned = tuple(each.budget_id for each in self._warnings)
        return replace(record, budget_use=Use(amounts, warned), events=[*record.events, *events])

    def _reserve(self, claim: Claim, needs: Mapping[Measure, Decimal]) -> StepRecord | None:
        reach("step.before_reserve", claim.step)
        with self._worker.active, self._worker.database.connect() as connection:
            notices = budgets.reserve(
                connection, claim, {**needs, Measure.STEPS: Decimal(1), Measure.SECONDS: Decimal(0)}
            )
        reach("step.after_reserve", claim.step)
        refusals = [notice for notice in notices if notice.is_refusal]
        self._warnings = () if refusals else notices
        return _refused(claim, refusals) if refusals else None


def _refused(claim: Claim, refusals: Sequence[Notice]) -> StepRecord:
    """A step that was not begun: its run ends, or waits for room."""
    kind = StepKind.of(claim.phase)
    final = next((each for each in refusals if each.kind == "fail"), None)
    worst = final or next((each for each in refusals if each.kind == "pause"), refusals[0])
    following = Next.waiting_for_budget(worst.budget_id, worst.needed, claim.phase)
    if final is not None:
        following = Next.failed(
            "limit_exceeded", {"kind": "limit_exceeded", "message": _sentence(final)}
        )
    return StepRecord(
        following,
        kind,
        "budget_exceeded",
        advances=False,
        # Without one, calls in flight hold what is needed, and will give it back.
        events=[
            Event("budget.exceeded", _facts(each, "hard_limit"))
            for each in refusals
            if each.kind != "busy"
        ],
        failed_thinks=claim.failed_thinks,
    )


def _sentence(refusal: Notice) -> str:
    figures = (
        f"; of {_plain(refusal.hard_limit)}, {_plain(refusal.used)} are used and "
        f"{_plain(refusal.reserved)} reserved"
    )
    return (
        f"the budget of {refusal.measure} of {refusal.scope} {refusal.subject} does not allow the "
        f"next step: it may use {_plain(refusal.needed)}{'' if _is_secret(refusal) else figures}"
    )


def _is_secret(notice: Notice) -> bool:
    """Whether its figures are not for the run's user: they tell what all others have used."""
    return notice.scope == "tenant"


def _facts(notice: Notice, limit: str) -> dict[str, JsonValue]:
    names = ("needed",) if _is_secret(notice) else ("needed", "used", "reserved", limit)
    return {
        "scope": notice.scope,
        "subject": notice.subject,
        "measure": notice.measure,
        **{name: _plain(getattr(notice, name)) for name in names},
    }


def _plain(amount: Decimal | None) -> str:
    return str(to_json(amount))


def _charge_of(loaded: LoadedAgent, call: ModelCall | None) -> dict[Measure, Decimal | None]:
    """What the model was paid for. Nothing if it was not asked; unknown if nobody has seen a bill:
    then what was reserved stays so."""
    if call is None:
        return {Measure.TOKENS: Decimal(0), Measure.USD: Decimal(0)}
    if not call.is_metered:
        return {Measure.TOKENS: None, Measure.USD: None}
    cost = call.cost
    if cost is None:  # nobody knows its price
        cost = prices.estimate(
            loaded.model, loaded.agent.price, call.input_tokens, call.output_tokens
        )
    return {Measure.TOKENS: Decimal(call.input_tokens + call.output_tokens), Measure.USD: cost}


def _is_made(effect: SettledEffect) -> bool:
    """Whether this step is the one that counts the call: it was made, or may have been. One of
    which that is found out later was counted when it became unknown."""
    if effect.was is EffectState.NOT_DONE:  # and is given up, unless it was done after all
        return effect.state in (EffectState.COMMITTED, EffectState.UNKNOWN)
    return effect.state in _CALLED and effect.was in _TO_BE_COUNTED


def _seconds(elapsed: float) -> Decimal:
    return Decimal(round(elapsed, 3)).quantize(Decimal("0.001"))


def _own_limit(loaded: LoadedAgent) -> int | None:
    settings = loaded.model.settings
    return None if settings is None else settings.get("max_tokens")
