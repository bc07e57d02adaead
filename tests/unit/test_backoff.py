# features: 004-05
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.backoff import Backoff
from celeriac.think_backoff import DEFAULT_BACKOFF, NEVER, backoff_for
from celeriac.think_failure import ThinkFailure, ThinkFailureKind

DOUBLING = Backoff(first_seconds=1.0, factor=2.0, cap_seconds=20.0, max_attempts=7)
seeds = st.integers(0, 2**32)


def longest() -> float:
    return 0.999999


def shortest() -> float:
    return 0.0


def test_waits_double_up_to_the_cap() -> None:
    longest_waits = [round(DOUBLING.delay_seconds(n, random=longest), 3) for n in range(1, 8)]
    shortest_waits = [DOUBLING.delay_seconds(n, random=shortest) for n in range(1, 8)]

    assert longest_waits == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    assert shortest_waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_runs_that_failed_together_do_not_come_back_together() -> None:
    chance = random.Random(7)

    waits = sorted(DOUBLING.delay_seconds(4, random=chance.random) for _ in range(1000))

    assert 4.0 <= waits[0] < 4.1
    assert 7.9 < waits[-1] < 8.0
    assert max(later - earlier for earlier, later in pairwise(waits)) < 0.1


@given(attempt=st.integers(1, 100_000), seed=seeds)
def test_no_wait_exceeds_the_cap_however_many_attempts(attempt: int, seed: int) -> None:
    wait = DOUBLING.delay_seconds(attempt, random=random.Random(seed).random)

    assert 0.5 <= wait <= 20.0


@given(attempt=st.integers(1, 50), asked=st.floats(0, 3600), seed=seeds)
def test_a_provider_is_never_asked_sooner_than_it_wished(
    attempt: int, asked: float, seed: int
) -> None:
    wait = DOUBLING.delay_seconds(attempt, asked, random=random.Random(seed).random)

    assert asked <= wait <= max(20.0, asked + 1.0)


def test_those_told_the_same_retry_after_are_spread() -> None:
    first = DOUBLING.delay_seconds(1, 30.0, random=shortest)
    last = DOUBLING.delay_seconds(1, 30.0, random=longest)

    assert first == 30.0
    assert last == pytest.approx(31.0, abs=0.001)


def test_the_last_attempt_is_known_by_its_number() -> None:
    assert not DOUBLING.is_exhausted(6)
    assert DOUBLING.is_exhausted(7)
    assert NEVER.is_exhausted(1)


@pytest.mark.parametrize("kind", ThinkFailureKind)
def test_each_transient_kind_and_no_other_has_a_policy(kind: ThinkFailureKind) -> None:
    assert (kind in DEFAULT_BACKOFF) == kind.is_transient


def test_the_policy_follows_what_the_provider_says_about_its_failure() -> None:
    passing = ThinkFailure(ThinkFailureKind.BAD_REQUEST, "busy", is_transient=True)
    final = ThinkFailure(ThinkFailureKind.RATE_LIMITED, "no", is_transient=False)

    assert backoff_for(passing).max_attempts > 1
    assert backoff_for(final) is NEVER
