"""Which calls the next act step makes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from celeriac.states import EffectKind, EffectState
from celeriac_storage.effects import Effect

MAX_PARALLEL_READS = 16
"""Of one step, which has the time of one call: what is left is the next step."""
BEGUN = (EffectState.IN_FLIGHT, EffectState.UNKNOWN)
"""Of a call that has been begun, and of which no outcome is known yet."""


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

    @property
    def is_elsewhere(self) -> bool:
        """Whether these calls are to be requested from another process."""
        first = self.effects[0]
        return first.is_elsewhere and not first.state.is_settled

    @property
    def is_delegated(self) -> bool:
        """Whether runs of other agents are to answer these calls."""
        first = self.effects[0]
        return first.is_child and not first.state.is_settled

    @property
    def is_sleep(self) -> bool:
        """Whether the call only lets time pass."""
        first = self.effects[0]
        return first.is_sleep and not first.state.is_settled


def next_batch(pending: Sequence[Effect]) -> Batch:
    """Adjacent calls from the first on that run side by side, at most `MAX_PARALLEL_READS`; all
    adjacent ones that another process is to execute, up to the first that changes files; all that
    other runs are to answer; or exactly one other.

    Of those that can be made now: a call that waits for a person stays where it is, and what was
    begun is seen to its end first. At least one must be left (`approving.waits`).
    """
    ready = [effect for effect in pending if effect.state is not EffectState.PROPOSED]
    begun = [effect for effect in ready if effect.state in BEGUN]
    chosen = begun[:1] or ready[:1]
    if not begun and _may_run_beside_others(ready[0]):
        chosen = list(takewhile(_may_run_beside_others, ready))[:MAX_PARALLEL_READS]
    elif not begun and _may_be_requested_with_others(ready[0]):
        chosen = _up_to_a_change(takewhile(_may_be_requested_with_others, ready))
    elif not begun and _may_be_delegated_with_others(ready[0]):
        chosen = list(takewhile(_may_be_delegated_with_others, ready))
    calls = {effect.call_id for effect in chosen}
    return Batch(chosen, [effect for effect in pending if effect.call_id not in calls])


def _may_run_beside_others(effect: Effect) -> bool:
    if effect.state.is_settled:
        return True
    return _only_reads(effect) and not effect.is_exclusive and effect.requirement is None


def _may_be_requested_with_others(effect: Effect) -> bool:
    is_free = not effect.is_exclusive and effect.requirement is None
    return effect.is_elsewhere and not effect.state.is_settled and is_free


def _up_to_a_change(effects: Iterable[Effect]) -> list[Effect]:
    """What comes after a call that changes files may build on what it did, so it is asked for when
    that is done; and so it is known which of two changes came first."""
    chosen: list[Effect] = []
    for effect in effects:
        chosen.append(effect)
        if effect.mutates_workspace:
            break
    return chosen


def _may_be_delegated_with_others(effect: Effect) -> bool:
    return effect.is_child and not effect.state.is_settled and effect.requirement is None


def _only_reads(effect: Effect) -> bool:
    return effect.kind is EffectKind.NONE or effect.state.is_settled
