"""Celeriac with one of its protections switched off, in the process that calls one of these.

Named in `CRASH_TEST_MUTANT`, they show that a scenario notices when the protection is missing. The
product itself has no such switch.
"""

from typing import cast
from uuid import uuid4

from kombu.transport.redis import MultiChannelPoller

from celeriac_scheduler.failover import Failover
from celeriac_scheduler.redispatch import Redispatch
from celeriac_storage import steps
from celeriac_storage.verdicts import Suspect, Verdict
from celeriac_tasks import tool_contexts
from celeriac_tasks.external_call import ExternalCall
from celeriac_tasks.watchdog import Watchdog


def no_token_fence() -> None:
    """Whoever has once claimed a step may commit it."""
    steps.FENCE = "true"


def no_in_flight_record() -> None:
    """An external call is made like one that only reads: nothing is written before it."""
    ExternalCall.make = lambda self: self._acting.read()  # type: ignore[method-assign]


def no_effect_key() -> None:
    """Each attempt at a call has a key of its own."""
    assert hasattr(tool_contexts, "effect_key")
    setattr(tool_contexts, "effect_key", lambda *_: uuid4().hex)  # noqa: B010 - it is not exported


def no_redispatch() -> None:
    """What was published once is never published again."""
    Redispatch.publish_overdue = _do_nothing  # type: ignore[method-assign]
    Redispatch.watch_broker = _do_nothing  # type: ignore[method-assign]


def no_publishing_of_new_steps() -> None:
    """A step that its worker, or its client, did not publish stays unpublished."""
    Redispatch.publish_new = _do_nothing  # type: ignore[method-assign]


def one_tick_verdict() -> None:
    """A lifeline that is missing once means death, even if the server was just restarted."""

    def verdict(self: Failover, suspect: Suspect) -> Verdict | None:  # noqa: ARG001 - a method
        return "lifeline" if suspect.is_lifeline_missing else None

    Failover._verdict = verdict  # type: ignore[method-assign]


def a_consumer_that_misses_no_answer() -> None:
    """Celery waits for ever on a connection that Redis knows nothing of, as with older kombus; and
    the watchdog is one that a test can wait for."""
    assert hasattr(MultiChannelPoller, "maybe_check_brpop_health")
    setattr(MultiChannelPoller, "maybe_check_brpop_health", _do_nothing)  # noqa: B010 - not in stubs
    defaults = cast(dict[str, float], Watchdog.__init__.__kwdefaults__)
    defaults |= {"check_seconds": 0.5, "silence_seconds": 3.0}


def _do_nothing(self: Redispatch) -> None:
    pass
