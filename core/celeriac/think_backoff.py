"""How long to wait before a failed model call is made again."""

from celeriac.backoff import Backoff
from celeriac.think_failure import ThinkFailure, ThinkFailureKind

NEVER = Backoff(first_seconds=0.0, factor=1.0, cap_seconds=0.0, max_attempts=1)
"""For what asking again cannot cure."""

_PROVIDER_TROUBLE = Backoff(first_seconds=1.0, factor=2.0, cap_seconds=60.0, max_attempts=8)

DEFAULT_BACKOFF: dict[ThinkFailureKind, Backoff] = {
    # Most limits are per minute; ten attempts take about six, if the provider asks for no more.
    ThinkFailureKind.RATE_LIMITED: Backoff(2.0, 2.0, 120.0, max_attempts=10),
    ThinkFailureKind.SERVER_ERROR: _PROVIDER_TROUBLE,
    ThinkFailureKind.CONNECTION: _PROVIDER_TROUBLE,
    # Each attempt holds a slot for the whole timeout, and may be billed.
    ThinkFailureKind.TIMEOUT: Backoff(1.0, 2.0, 30.0, max_attempts=4),
    # Answered, and mostly billed: a third odd answer will not be the last.
    ThinkFailureKind.MALFORMED_RESPONSE: Backoff(0.5, 2.0, 10.0, max_attempts=3),
    ThinkFailureKind.EMPTY_RESPONSE: Backoff(0.5, 2.0, 10.0, max_attempts=3),
    # Not the provider's doing: another worker can ask at once.
    ThinkFailureKind.INTERRUPTED: Backoff(0.1, 2.0, 5.0, max_attempts=8),
}


def backoff_for(failure: ThinkFailure) -> Backoff:
    """The default policy after `failure`; `NEVER` if it is permanent.

    A provider may say that an error which looks permanent will pass (`x-should-retry`).
    """
    if not failure.is_transient:
        return NEVER
    return DEFAULT_BACKOFF.get(failure.kind, _PROVIDER_TROUBLE)
