"""Taking a queued step, so that one worker has it and everybody else knows."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from celeriac.codec import JsonValue
from celeriac.errors import Fenced
from celeriac.ids import RunId, ThreadId, WorkerId, new_run_id
from celeriac.states import Phase, RunStatus, StepKind
from celeriac_storage import claims, effects, steps
from celeriac_storage.claims import (
    STRIKES_BEFORE_ATTENTION,
    STRIKES_BEFORE_ISOLATION,
    Claim,
    Unclaimed,
)
from celeriac_storage.database import Database
from celeriac_storage.step_record import Next, StepRecord
from tests.steps_by_hand import AGENT, Hand

BUG: dict[str, JsonValue] = {"kind": "KeyError", "message": "step 0 failed in the worker"}


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def claim(
    hand: Hand,
    run_id: RunId,
    step: int = 0,
    *,
    worker_id: WorkerId | None = None,
    agent: str = AGENT,
    is_alone: bool = False,
) -> Claim | None:
    with hand.database.connect() as connection:
        return claims.claim(
            connection,
            run_id,
            step,
            worker_id=worker_id or hand.worker_id,
            deadlines={"another": 600, agent: 90},
            is_alone=is_alone,
        )


def release(hand: Hand, held: Claim) -> bool:
    with hand.database.connect() as connection:
        return claims.release(connection, held)


def stumble(hand: Hand, held: Claim) -> bool:
    with hand.database.connect() as connection:
        return claims.stumble(connection, held, BUG)


def why_unclaimed(hand: Hand, run_id: RunId, step: int = 0) -> Unclaimed | None:
    with hand.database.connect() as connection:
        return claims.why_unclaimed(connection, run_id, step)


# Claiming -----------------------------------------------------------------------------------------


def test_a_claim_makes_the_step_this_workers(hand: Hand) -> None:
    # features: 003-14
    run_id = hand.start()

    held = claim(hand, run_id)

    assert held is not None
    row = hand.row(run_id)
    assert (row.status, row.worker_id, row.epoch) == ("running", hand.worker_id, 1)
    assert row.claim_token.hex == held.token
    assert 85 < (row.step_deadline - row.step_started_at).total_seconds() < 95
    assert row.started_at == held.working_since
    assert (held.step, held.phase, held.message_count, held.state) == (
        0,
        Phase.WAITING_MODEL,
        1,
        {},
    )
    assert held.input == "hello"


def test_of_twenty_workers_exactly_one_gets_the_step(hand: Hand) -> None:
    # features: 004-56
    run_id = hand.start()
    racers = [Hand(hand.database) for _ in range(20)]
    together = threading.Barrier(20)

    def race(racer: Hand) -> Claim | None:
        together.wait(10)
        return claim(hand, run_id, worker_id=racer.worker_id)

    with ThreadPoolExecutor(20) as workers:
        held = [won for won in workers.map(race, racers) if won is not None]

    (winner,) = held
    row = hand.row(run_id)
    assert (row.worker_id, row.claim_token.hex, row.epoch) == (winner.worker_id, winner.token, 1)


def test_of_ten_workers_that_come_for_one_call_one_has_an_attempt_in_flight(hand: Hand) -> None:
    # features: 004-56
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    racers = [Hand(hand.database) for _ in range(10)]
    together = threading.Barrier(10)

    def race(racer: Hand) -> bool:
        together.wait(10)
        held = claim(hand, run_id, 1, worker_id=racer.worker_id)
        if held is None:
            return False
        with hand.database.connect() as connection:
            effects.begin_attempt(connection, held, call, timeout_seconds=30)
        return True

    with ThreadPoolExecutor(10) as workers:
        assert sorted(workers.map(race, racers)) == [False] * 9 + [True]

    assert (hand.effect(run_id, call).state, hand.effect(run_id, call).attempt) == ("in_flight", 1)
    assert hand.attempts(run_id, call) == [(1, 0, "started", None)]
    with pytest.raises(IntegrityError), hand.database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.effect_attempts SELECT * FROM celeriac.effect_attempts"
        )


@pytest.mark.parametrize(
    "gone", ["dead_at = now(), verdict = 'lifeline'", "stopped_at = now()", ""]
)
def test_a_worker_that_others_take_for_gone_claims_nothing(hand: Hand, gone: str) -> None:
    """Its steps would be taken from it at once, again and again, with a strike for each."""
    run_id = hand.start()
    stranger = Hand(hand.database).worker_id if gone else WorkerId("never-registered")
    if gone:
        with hand.database.connect() as connection:
            connection.exec_driver_sql(
                f"UPDATE celeriac.workers SET {gone} WHERE worker_id = %s", (stranger,)
            )

    assert claim(hand, run_id, worker_id=stranger) is None

    assert (hand.row(run_id).status, hand.row(run_id).epoch) == ("queued", 0)


def earlier_step(hand: Hand, run_id: RunId) -> int:
    hand.finish(hand.claim(run_id), Next.queued(Phase.WAITING_MODEL))
    return 0


def later_step(hand: Hand, run_id: RunId) -> int:
    return int(hand.row(run_id).step) + 1


def step_of_a_running_run(hand: Hand, run_id: RunId) -> int:
    hand.claim(run_id)
    return 0


def step_of_a_paused_run(hand: Hand, run_id: RunId) -> int:
    pause = Next(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=Phase.WAITING_MODEL)
    hand.finish(hand.claim(run_id), pause)
    return 1


def step_of_a_finished_run(hand: Hand, run_id: RunId) -> int:
    hand.complete(run_id)
    return 1


@pytest.mark.parametrize(
    "stale_step",
    [
        earlier_step,
        later_step,
        step_of_a_running_run,
        step_of_a_paused_run,
        step_of_a_finished_run,
    ],
)
def test_a_message_for_any_other_step_moves_nothing(
    hand: Hand, stale_step: Callable[[Hand, RunId], int]
) -> None:
    # features: 002-24, 003-18
    run_id = hand.start()
    step = stale_step(hand, run_id)
    before = hand.row(run_id)

    assert claim(hand, run_id, step) is None

    assert hand.row(run_id) == before
    obstacle = why_unclaimed(hand, run_id, step)
    assert obstacle is not None
    assert not obstacle.is_queued_here


def test_an_unknown_run_is_not_created(hand: Hand) -> None:
    # features: 003-18
    run_id = new_run_id()

    assert claim(hand, run_id) is None

    assert why_unclaimed(hand, run_id) is None


def test_a_worker_without_the_agent_leaves_the_step_queued(hand: Hand) -> None:
    run_id = hand.start()

    assert claim(hand, run_id, agent="cook") is None

    assert why_unclaimed(hand, run_id) == Unclaimed(
        is_queued_here=True, needs_isolation=False, agent=AGENT
    )


def test_what_newer_code_has_left_is_not_gone_on_from(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # features: 000-40 (a newer row)
    run_id = hand.start()
    ours = claims.CHECKPOINT_SCHEMA_VERSION
    monkeypatch.setattr(steps, "CHECKPOINT_SCHEMA_VERSION", ours + 1)
    hand.ask_for_calls(run_id)
    before = hand.row(run_id)

    assert claim(hand, run_id, 1) is None

    assert hand.row(run_id) == before
    assert why_unclaimed(hand, run_id, 1) == Unclaimed(
        is_queued_here=True, needs_isolation=False, agent=AGENT, newer_schema=ours + 1
    )
    monkeypatch.setattr(claims, "CHECKPOINT_SCHEMA_VERSION", ours + 1)
    assert claim(hand, run_id, 1) is not None, "newer code goes on from it"


def test_each_claim_has_a_token_and_an_epoch_of_its_own(hand: Hand) -> None:
    run_id = hand.start()
    held = []
    for _ in range(3):
        held.append(hand.claim(run_id))
        assert release(hand, held[-1])

    assert [one.epoch for one in held] == [1, 2, 3]
    assert len({one.token for one in held}) == 3


def test_the_claim_alone_may_be_forgotten_by_a_crash_of_the_server(
    hand: Hand, database_url: str
) -> None:
    """`synchronous_commit` is off for its transaction, and on again for the session's next one."""
    run_id = hand.start()
    setting = "SELECT current_setting('synchronous_commit')"
    one_session = Database(database_url, connections=1)
    with one_session.begin() as connection:
        held = claims.claim(
            connection,
            run_id,
            0,
            worker_id=hand.worker_id,
            deadlines={AGENT: 90},
            is_alone=False,
        )
        in_the_claim = connection.exec_driver_sql(setting).scalar_one()
    with one_session.connect() as connection:
        afterwards = connection.exec_driver_sql(setting).scalar_one()
    one_session.close()

    assert held is not None
    assert (in_the_claim, afterwards) == ("off", "on")


# Giving it back -----------------------------------------------------------------------------------


def test_a_released_step_is_anybodys_again_at_once(hand: Hand) -> None:
    # features: 003-12
    run_id = hand.start()
    held = hand.claim(run_id)

    assert release(hand, held)

    row = hand.row(run_id)
    assert (row.status, row.claim_token, row.step_deadline) == ("queued", None, None)
    assert (row.strikes, row.deaths, row.step) == (0, 0, 0)
    assert row.published_at is not None, "whoever released it publishes it"
    assert claim(hand, run_id) is not None


def test_what_is_released_twice_or_taken_by_another_stays_with_the_other(hand: Hand) -> None:
    run_id = hand.start()
    first = hand.claim(run_id)
    release(hand, first)
    second = hand.claim(run_id)

    assert not release(hand, first)
    assert not stumble(hand, first)

    assert hand.row(run_id).claim_token.hex == second.token
    assert hand.events(run_id) == ["run.created"]


def test_a_released_claim_commits_nothing(hand: Hand) -> None:
    run_id = hand.start()
    held = hand.claim(run_id)
    release(hand, held)

    with pytest.raises(Fenced, match="the run is queued at step 0"):
        hand.finish(held, Next.queued(Phase.WAITING_MODEL))


# Strikes ------------------------------------------------------------------------------------------


def test_a_step_that_stumbled_twice_is_claimed_only_by_a_worker_alone(hand: Hand) -> None:
    run_id = hand.start()
    for _ in range(STRIKES_BEFORE_ISOLATION):
        held = claim(hand, run_id)
        assert held is not None
        assert stumble(hand, held)

    assert claim(hand, run_id, is_alone=False) is None
    obstacle = why_unclaimed(hand, run_id)

    assert obstacle == Unclaimed(is_queued_here=True, needs_isolation=True, agent=AGENT)
    assert claim(hand, run_id, is_alone=True) is not None


def test_the_third_stumble_puts_the_run_before_a_person_with_the_evidence(hand: Hand) -> None:
    run_id = hand.start()
    outcomes = [stumble(hand, hand.claim(run_id)) for _ in range(STRIKES_BEFORE_ATTENTION)]

    assert outcomes == [True, True, False], "the last one is not queued again"
    row = hand.row(run_id)
    assert (row.status, row.phase, row.strikes, row.deaths) == (
        "needs_attention",
        "waiting_model",
        3,
        0,
    )
    assert row.error == BUG
    assert row.claim_token is None
    assert hand.events(run_id) == [
        "run.created",
        "run.stumbled",
        "run.stumbled",
        "run.needs_attention",
    ]
    assert hand.event_data(run_id, "run.needs_attention") == {"step": 0, "epoch": 3, "error": BUG}


def test_strikes_are_forgiven_by_a_commit(hand: Hand) -> None:
    run_id = hand.start()
    for _ in range(STRIKES_BEFORE_ISOLATION):
        stumble(hand, hand.claim(run_id))
    hand.finish(hand.claim(run_id), Next.queued(Phase.WAITING_MODEL))

    assert claim(hand, run_id, 1, is_alone=False) is not None


def test_an_attempt_that_did_not_advance_forgives_no_strikes(hand: Hand) -> None:
    """Else a step that kills its worker after each failed model call would go on for ever."""
    run_id = hand.start()
    stumble(hand, hand.claim(run_id))

    later = Next(
        RunStatus.PAUSED,
        Phase.WAITING_TIMER,
        resume_phase=Phase.WAITING_MODEL,
        wake_after_seconds=1,
    )
    hand.commit(
        hand.claim(run_id), StepRecord(later, StepKind.THINK, "model_failed", advances=False)
    )

    assert hand.row(run_id).strikes == 1


def test_a_wait_before_the_first_claim_is_no_part_of_the_runs_time(hand: Hand) -> None:
    # It counts from the first claim, so nothing before that may be taken off.
    thread_id = ThreadId("t1")
    first, second = hand.start(thread_id=thread_id), hand.start(thread_id=thread_id)
    hand.complete(first)

    claimed = hand.claim(second)

    assert hand.row(second).waited == timedelta()
    assert claimed.working_since == hand.row(second).started_at
