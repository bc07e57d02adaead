"""The queries of the audit. Each selects `run_id` and `detail` of the rows that break its rule.

Their order is the invariants' (`docs/invariants.md`). The database refuses much of this by itself;
here it is checked all the same, because a restored dump, a disabled trigger or a mistaken repair
asks nobody.
"""

from celeriac_storage.audit_checks import (
    budgets,
    decisions,
    effects,
    hashes,
    history,
    memories,
    rollbacks,
    runs,
    waits,
)
from celeriac_storage.audit_checks.check import Check

CHECKS: tuple[Check, ...] = (
    runs.CLAIMS,
    effects.IN_FLIGHT,
    history.EVENT_NUMBERS,
    history.TERMINAL_EVENT,
    effects.ONE_EFFECT,
    effects.EFFECT_OUTCOME,
    effects.ATTEMPTS,
    effects.RECEIPTS,
    effects.LOCAL_CALLS,
    rollbacks.UNDONE_ONCE,
    rollbacks.UNDOS,
    rollbacks.ONE_ROLLBACK,
    waits.CHILDREN,
    runs.RUN_OUTCOME,
    decisions.DECISIONS,
    decisions.PROPOSALS,
    memories.ALLOWED,
    memories.GOVERNED,
    memories.OWNED,
    history.CHECKPOINTS,
    history.MESSAGE_POSITIONS,
    history.WORDS_WAITING,
    history.TOLD_RESULTS,
    history.SELECTIONS,
    hashes.CHECKPOINT_HASHES,
    hashes.MESSAGE_HASHES,
    hashes.RESULT_HASHES,
    hashes.FINGERPRINTS,
    hashes.APPROVAL_HASHES,
    memories.HASHES,
    hashes.ARTIFACTS,
    hashes.EFFECT_ARTIFACTS,
    hashes.ERASED,
    runs.OWNERS,
    runs.ORPHANS,
    runs.FORGOTTEN,
    waits.WAITING_PARENTS,
    waits.TIMERS,
    waits.FIRES,
    runs.USE_COUNTED,
    waits.CHILD_USE,
    runs.LIMITS,
    budgets.BUDGET_SUMS,
    budgets.BUDGET_LIMITS,
    budgets.BUDGET_CHARGES,
    budgets.BUDGET_EXCEEDED,
    budgets.BUDGET_RELEASED,
)
