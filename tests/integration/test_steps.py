"""The commit of a step: all of it in one transaction, or nothing at all."""

# features: 002-11, 003-04
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from celeriac.codec import JsonValue
from celeriac.errors import Fenced
from celeriac.ids import CallId, RunId, call_id, new_claim_token, new_run_id
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac_storage import artifacts, claims, effects, requests, steps, verdicts
from celeriac_storage.claims import Claim, RequestsChanged
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.effects import Effect
from celeriac_storage.history import load_messages
from celeriac_storage.step_record import (
    Committed,
    Event,
    Message,
    ModelCall,
    Next,
    PlannedEffect,
    SettledEffect,
    StepRecord,
)
from tests.steps_by_hand import ALICE, Hand

WRITTEN_BY_STEPS = (
    "runs",
    "checkpoints",
    "messages",
    "events",
    "effects",
    "effect_attempts",
    "model_calls",
)


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def written(database: Database) -> dict[str, list[str]]:
    """All rows that a step may write, each with the transaction that wrote it."""
    with database.connect() as connection:
        return {
            table: sorted(
                connection.exec_driver_sql(
                    f"SELECT one.xmin::text || one::text FROM celeriac.{table} AS one"
                ).scalars()
            )
            for table in WRITTEN_BY_STEPS
        }


def transactions(database: Database, step: int) -> set[tuple[str, str]]:
    """Which transaction wrote what step `step` left in each table."""
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            """
            SELECT 'run', xmin::text FROM celeriac.runs
            UNION SELECT 'checkpoint', xmin::text FROM celeriac.checkpoints WHERE step = %(step)s
            UNION SELECT 'message', xmin::text FROM celeriac.messages
                WHERE position = (SELECT max(position) FROM celeriac.messages)
            UNION SELECT 'event', xmin::text FROM celeriac.events
                WHERE seq = (SELECT max(seq) FROM celeriac.events)
            UNION SELECT 'effect', xmin::text FROM celeriac.effects
            UNION SELECT 'model call', xmin::text FROM celeriac.model_calls WHERE step = %(step)s
            UNION SELECT 'attempt', xmin::text FROM celeriac.effect_attempts WHERE entry > 0
            """,
            {"step": step},
        )
        return {(row[0], row[1]) for row in rows}


def asked_for(kind: EffectKind = EffectKind.NONE, count: int = 1) -> StepRecord:
    """The record of a think step whose answer makes `count` calls."""
    calls = [call_id(0, index) for index in range(count)]
    pending: list[JsonValue] = list(calls)
    return StepRecord(
        Next.queued(Phase.WAITING_TOOL),
        StepKind.THINK,
        "before_tools",
        state={"phase": Phase.WAITING_TOOL, "pending": pending},
        messages=[Message("assistant", {"kind": "response", "parts": [{"text": "let me see"}]})],
        events=[Event("model.answered", {"step": 0, "epoch": 1})],
        planned=[
            PlannedEffect(call, index, f"p{index}", "look", "1", kind, {"order": index})
            for index, call in enumerate(calls)
        ],
        model_call=ModelCall(1, "scripted", 1, "answered", datetime.now(UTC), 11, 7),
        tool_calls=count,
        input_tokens=11,
        output_tokens=7,
        agent_hash="a1",
        tools_hash="t1",
        prompt_hash="p1",
    )


def told(
    result: JsonValue = None,
    *,
    was: EffectState = EffectState.PLANNED,
    is_attempt: bool = False,
    artifact: bytes | None = None,
) -> StepRecord:
    """The record of an act step in which call 0.0 returned `result`."""
    settled = SettledEffect(
        call_id(0, 0), was, EffectState.COMMITTED, result, artifact, is_attempt=is_attempt
    )
    return StepRecord(
        Next.queued(Phase.WAITING_MODEL),
        StepKind.ACT,
        "after_tools",
        state={"phase": Phase.WAITING_MODEL},
        messages=[Message("results", {"calls": [call_id(0, 0)]})],
        events=[Event("effect.committed", {"call_id": call_id(0, 0), "tool": "look"})],
        settled=[settled],
    )


def loaded(hand: Hand, run_id: RunId, call: CallId) -> Effect:
    with hand.database.connect() as connection:
        (effect,) = effects.load(connection, run_id, [call])
        return effect


# What a step leaves -------------------------------------------------------------------------------


def test_a_think_step_leaves_its_answer_calls_and_next_phase_in_one_transaction(
    hand: Hand,
) -> None:
    # features: 002-07, 003-10, 004-19
    run_id = hand.start()
    claim = hand.claim(run_id)

    committed = hand.commit(claim, asked_for(count=2))

    row = hand.row(run_id)
    assert (row.status, row.phase, row.step) == ("queued", "waiting_tool", 1)
    assert (row.claim_token, row.step_deadline, row.strikes) == (None, None, 0)
    assert (row.tool_calls_used, row.input_tokens_used, row.output_tokens_used) == (2, 11, 7)
    assert (row.agent_hash, row.tools_hash, row.prompt_hash) == ("a1", "t1", "p1")
    assert (row.published_at is not None, row.publish_count) == (True, 1)
    assert hand.events(run_id) == ["run.created", "model.answered"]
    planned = [hand.effect(run_id, call_id(0, index)) for index in range(2)]
    assert [(one.state, one.attempt, one.settled_at) for one in planned] == [
        ("planned", 0, None)
    ] * 2
    assert committed == Committed(1, RunStatus.QUEUED, committed.committed_at, 2)
    wrote = transactions(hand.database, 0)
    assert {what for what, _ in wrote} == {
        "run", "checkpoint", "message", "event", "effect", "model call"
    }  # fmt: skip
    assert len({transaction for _, transaction in wrote}) == 1


def test_a_checkpoint_holds_what_the_next_process_needs(hand: Hand) -> None:
    # features: 000-02, 002-10, 004-09
    run_id = hand.start()
    first = hand.claim(run_id)

    hand.commit(first, asked_for())

    with hand.database.connect() as connection:
        row = connection.exec_driver_sql(
            "SELECT *, hash = sha256(convert_to(state::text, 'UTF8')) AS is_true"
            " FROM celeriac.checkpoints"
        ).one()
    assert (row.step, row.kind, row.reason, row.message_count) == (0, "think", "before_tools", 2)
    assert (row.worker_id, row.epoch, row.started_at) == (
        hand.worker_id,
        1,
        first.step_started_at,
    )
    assert row.is_true
    assert row.schema_version == claims.CHECKPOINT_SCHEMA_VERSION
    second = hand.claim(run_id)
    assert second.state == {"phase": "waiting_tool", "pending": ["0.0"]}
    assert (second.message_count, second.phase) == (2, Phase.WAITING_TOOL)


def test_an_act_step_settles_its_calls_with_the_checkpoint_that_includes_them(hand: Hand) -> None:
    # features: 002-11
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for(EffectKind.EXTERNAL))
    claim = hand.begin_call(run_id, call_id(0, 0))

    hand.commit(claim, told({"sent": True}, was=EffectState.IN_FLIGHT, is_attempt=True))

    effect = hand.effect(run_id, call_id(0, 0))
    assert (effect.state, effect.attempt, effect.result) == ("committed", 1, {"sent": True})
    assert effect.token.hex == claim.token
    assert [row[:3] for row in hand.attempts(run_id, call_id(0, 0))] == [
        (1, 0, "started"),
        (1, 1, "committed"),
    ]
    wrote = transactions(hand.database, 1)
    assert {what for what, _ in wrote} == {
        "run", "checkpoint", "message", "event", "effect", "attempt"
    }  # fmt: skip
    assert len({transaction for _, transaction in wrote}) == 1


def test_a_completed_run_has_its_result_last_event_and_time(hand: Hand) -> None:
    # features: 003-14, 003-19
    run_id = hand.start()

    hand.complete(run_id, {"refund": "R-1"})

    row = hand.row(run_id)
    assert (row.status, row.phase, row.outcome) == ("completed", None, "completed")
    assert (row.result, row.error, row.claim_token) == ({"refund": "R-1"}, None, None)
    assert row.created_at <= row.started_at <= row.finished_at
    assert hand.events(run_id)[-1] == "run.completed"
    wrote = transactions(hand.database, 0)
    assert {what for what, _ in wrote} == {"run", "checkpoint", "message", "event"}
    assert len({transaction for _, transaction in wrote}) == 1


def test_a_failed_run_has_its_error_and_no_result(hand: Hand) -> None:
    run_id = hand.start()
    error: dict[str, JsonValue] = {"kind": "limit_exceeded", "message": "20 steps are the limit"}

    hand.finish(hand.claim(run_id), Next.failed("limit_exceeded", error))

    row = hand.row(run_id)
    assert (row.status, row.outcome, row.error, row.result) == (
        "failed",
        "limit_exceeded",
        error,
        None,
    )
    assert hand.event_data(run_id, "run.failed") == {"outcome": "limit_exceeded", "error": error}


def test_a_finished_run_never_changes_again(hand: Hand) -> None:
    # features: 003-17
    run_id = hand.start()
    claim = hand.claim(run_id)
    hand.finish(claim, Next(RunStatus.COMPLETED, outcome="completed", result="done"))
    before = written(hand.database)

    with pytest.raises(Fenced, match="the run is completed at step 1"):
        hand.finish(claim, Next.cancelled())

    assert written(hand.database) == before


def test_an_attempt_that_does_not_advance_leaves_no_checkpoint(hand: Hand) -> None:
    # features: 004-05
    run_id = hand.start()
    claim = hand.claim(run_id)
    failed = ModelCall(1, "scripted", 1, "rate_limited", datetime.now(UTC), error={"kind": "429"})
    record = StepRecord(
        Next(
            RunStatus.PAUSED,
            Phase.WAITING_TIMER,
            resume_phase=Phase.WAITING_MODEL,
            wake_after_seconds=60,
        ),
        StepKind.THINK,
        "model_failed",
        advances=False,
        events=[
            Event("model.failed", {"step": 0, "epoch": 1, "attempt": 1, "kind": "rate_limited"})
        ],
        model_call=failed,
        failed_thinks=1,
    )

    hand.commit(claim, record)

    row = hand.row(run_id)
    assert (row.status, row.phase, row.resume_phase, row.step) == (
        "paused",
        "waiting_timer",
        "waiting_model",
        0,
    )
    assert row.failed_thinks == 1
    assert 55 < (row.wake_at - claim.step_started_at).total_seconds() < 65
    assert hand.events(run_id) == ["run.created", "model.failed", "run.paused"]
    assert written(hand.database)["checkpoints"] == []
    assert len(written(hand.database)["model_calls"]) == 1


def test_a_pause_holds_no_worker_and_is_not_published(hand: Hand) -> None:
    # features: 000-22, 004-26
    run_id = hand.start()

    hand.finish(
        hand.claim(run_id),
        Next(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=Phase.WAITING_MODEL),
    )

    row = hand.row(run_id)
    assert (row.status, row.claim_token, row.step_deadline) == ("paused", None, None)
    assert (row.published_at, row.publish_count) == (None, 0)


def test_a_claim_that_is_kept_goes_on_to_the_next_step(hand: Hand) -> None:
    run_id = hand.start()
    claim = hand.claim(run_id)

    with hand.database.connect() as connection:
        committed = steps.commit(connection, claim, asked_for(), keep_claim_seconds=90)

    row = hand.row(run_id)
    assert committed.status is RunStatus.RUNNING
    assert (row.status, row.step, row.claim_token.hex) == ("running", 1, claim.token)
    assert 85 < (row.step_deadline - committed.committed_at).total_seconds() < 95
    assert row.step_started_at > claim.step_started_at
    assert row.published_at is None
    following = replace(claim, step=1)
    hand.commit(following, told({"found": 1}))
    assert (hand.row(run_id).status, hand.row(run_id).step) == ("queued", 2)


def test_a_kept_claim_is_given_up_where_the_run_pauses(hand: Hand) -> None:
    run_id = hand.start()
    pause = Next(RunStatus.PAUSED, Phase.WAITING_TIMER, resume_phase=Phase.WAITING_MODEL)

    with hand.database.connect() as connection:
        steps.commit(
            connection,
            hand.claim(run_id),
            StepRecord(pause, StepKind.THINK, "question"),
            keep_claim_seconds=90,
        )

    assert (hand.row(run_id).status, hand.row(run_id).claim_token) == ("paused", None)


def test_versions_are_pinned_by_the_first_step(hand: Hand) -> None:
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for())

    hand.commit(hand.claim(run_id), replace(told(1), agent_hash="a2", prompt_hash="p2"))

    row = hand.row(run_id)
    assert (row.agent_hash, row.tools_hash, row.prompt_hash) == ("a1", "t1", "p1")


# Values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        None,
        False,
        0,
        "",
        [],
        {},
        "naïve 🦀 \u2028",
        "a\x00b",  # PostgreSQL has no NUL in text
        "\ud800",  # half of a surrogate pair
        {"key\x00": ["\x00", {"deep": "\udfff\x00"}]},
        1e308,
        9007199254740993,
        "%s %(run_id)s {0}",
    ],
    ids=ascii,
)
def test_a_result_comes_back_as_the_tool_returned_it(hand: Hand, result: JsonValue) -> None:
    # features: 003-15
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for())

    hand.commit(hand.claim(run_id), told(result))

    effect = loaded(hand, run_id, call_id(0, 0))
    assert (effect.state, effect.result) == (EffectState.COMMITTED, result)
    assert type(effect.result) is type(result)
    with hand.database.connect() as connection:
        message = load_messages(connection, run_id)[-1]
        is_true = connection.exec_driver_sql(
            "SELECT result_hash = sha256(convert_to(result::text, 'UTF8')) FROM celeriac.effects"
        ).scalar_one()
    assert [one.result for one in message.results] == [result]
    assert is_true


def test_a_run_may_complete_with_null(hand: Hand) -> None:
    run_id = hand.start()

    hand.complete(run_id, None)

    with hand.database.connect() as connection:
        stored = connection.exec_driver_sql("SELECT result::text FROM celeriac.runs").scalar_one()
    assert stored == "null", "JSON's null, which is a result, and not the lack of one"


def test_a_large_result_is_stored_once_beside_its_row(hand: Hand) -> None:
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for())
    large: JsonValue = {"text": "x" * 100_000}
    with hand.database.connect() as connection:
        digest = artifacts.store(connection, f'{{"text":"{"x" * 100_000}"}}')

    hand.commit(hand.claim(run_id), told(large, artifact=digest))

    row = hand.effect(run_id, call_id(0, 0))
    assert (row.result, row.result_hash, row.result_artifact) == (None, None, digest)
    assert loaded(hand, run_id, call_id(0, 0)).result == large
    with hand.database.connect() as connection:
        (results,) = load_messages(connection, run_id)[-1].results
    assert results.result == large


def test_a_fingerprint_tells_tool_version_and_arguments_apart(hand: Hand) -> None:
    # features: 004-22
    run_id = hand.start()
    record = asked_for(count=2)
    alike, other = record.planned
    twins = [alike, replace(other, arguments=alike.arguments)]
    later = [
        replace(one, call_id=call_id(0, 2 + n), call_index=2 + n) for n, one in enumerate(twins)
    ]
    different = [replace(later[0], tool_version="2"), replace(later[1], arguments={"order": 9})]

    hand.commit(hand.claim(run_id), replace(record, planned=[*twins, *different]))

    prints = [hand.effect(run_id, call_id(0, index)).fingerprint for index in range(4)]
    assert prints[0] == prints[1], "two intended identical calls are two effects of one print"
    assert len(set(prints)) == 3


# Whoever may not ----------------------------------------------------------------------------------


def lose_to_a_verdict(hand: Hand, claim: Claim) -> None:
    with hand.database.begin() as connection:
        assert verdicts.declare_dead(connection, claim.worker_id, "lease")
        assert verdicts.recover(connection)


def lose_to_a_release(hand: Hand, claim: Claim) -> None:
    with hand.database.connect() as connection:
        assert claims.release(connection, claim)


def lose_to_another_claim(hand: Hand, claim: Claim) -> None:
    lose_to_a_release(hand, claim)
    hand.claim(claim.run_id)


def lose_to_a_successor_that_is_further(hand: Hand, claim: Claim) -> None:
    lose_to_a_release(hand, claim)
    hand.finish(hand.claim(claim.run_id), Next.queued(Phase.WAITING_MODEL))


@pytest.mark.parametrize(
    "lose",
    [
        lose_to_a_verdict,
        lose_to_a_release,
        lose_to_another_claim,
        lose_to_a_successor_that_is_further,
    ],
)
def test_a_lost_claim_writes_nothing_anywhere(
    hand: Hand, lose: Callable[[Hand, Claim], None]
) -> None:
    # features: 003-17, 003-23
    run_id = hand.start()
    claim = hand.claim(run_id)
    lose(hand, claim)
    before = written(hand.database)

    with pytest.raises(Fenced, match=f"claim of step 0 \\(epoch {claim.epoch}\\) is over"):
        hand.commit(claim, asked_for(EffectKind.EXTERNAL))

    assert written(hand.database) == before


def test_a_guessed_token_is_no_claim(hand: Hand) -> None:
    run_id = hand.start()
    claim = hand.claim(run_id)
    before = written(hand.database)

    with pytest.raises(Fenced):
        hand.commit(replace(claim, token=new_claim_token()), asked_for())

    assert written(hand.database) == before


def test_a_run_that_is_not_there_takes_no_step(hand: Hand) -> None:
    # features: 003-17
    claim = hand.claim(hand.start())
    before = written(hand.database)

    with pytest.raises(Fenced, match="there is no run"):
        hand.commit(replace(claim, run_id=new_run_id()), asked_for())

    assert written(hand.database) == before


def test_a_commit_that_happened_is_not_made_again(hand: Hand) -> None:
    # features: 002-12
    run_id = hand.start()
    claim = hand.claim(run_id)
    hand.commit(claim, asked_for())
    before = written(hand.database)

    with pytest.raises(Fenced, match="the run is queued at step 1"):
        hand.commit(claim, asked_for())

    assert written(hand.database) == before


def test_a_step_that_does_not_know_of_a_cancel_learns_of_it_and_writes_nothing(
    hand: Hand,
) -> None:
    # features: 003-08
    run_id = hand.start()
    claim = hand.claim(run_id)
    with hand.database.begin() as connection:
        requests.request_cancel(connection, run_id, ALICE)
    before = written(hand.database)

    with pytest.raises(RequestsChanged) as changed:
        hand.commit(claim, asked_for())

    assert written(hand.database) == before
    informed = changed.value.claim
    assert informed == replace(
        claim, request_version=claim.request_version + 1, is_cancel_requested=True
    )
    hand.commit(informed, replace(asked_for(), next=Next.cancelled()))
    assert hand.row(run_id).status == "cancelled"
    assert hand.effect(run_id, call_id(0, 0)).state == "planned", "what was done is recorded"


# What does not fit --------------------------------------------------------------------------------


def test_an_effect_that_is_not_as_the_step_found_it_stops_everything(hand: Hand) -> None:
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for())
    claim = hand.claim(run_id)
    before = written(hand.database)

    with pytest.raises(psycopg.DatabaseError) as refused:
        hand.commit(claim, told("done", was=EffectState.IN_FLIGHT))

    assert sqlstate(refused.value) == "CE005"
    assert written(hand.database) == before


def test_an_illegal_transition_of_an_effect_stops_everything(hand: Hand) -> None:
    # features: 002-06
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for())
    hand.commit(hand.claim(run_id), told("first"))
    claim = hand.claim(run_id)
    before = written(hand.database)

    with pytest.raises(psycopg.DatabaseError) as refused:
        hand.commit(claim, told("second", was=EffectState.COMMITTED))

    assert sqlstate(refused.value) == "CE002"
    assert written(hand.database) == before
    assert loaded(hand, run_id, call_id(0, 0)).result == "first"


@pytest.mark.parametrize(
    "broken",
    [
        replace(asked_for(), messages=[Message("narrator", {})]),
        replace(asked_for(), planned=[*asked_for().planned, *asked_for().planned]),
        replace(asked_for(), next=Next(RunStatus.QUEUED, Phase.WAITING_USER)),
        replace(asked_for(), next=Next(RunStatus.FAILED, outcome="failed")),
    ],
    ids=["unknown role", "call id twice", "phase of another status", "failed without an error"],
)
def test_a_record_that_breaks_a_constraint_leaves_nothing(hand: Hand, broken: StepRecord) -> None:
    run_id = hand.start()
    claim = hand.claim(run_id)
    before = written(hand.database)

    with pytest.raises(psycopg.DatabaseError):
        hand.commit(claim, broken)

    assert written(hand.database) == before


# Attempts at external effects ---------------------------------------------------------------------


@pytest.fixture
def act(hand: Hand) -> Claim:
    """A claimed act step, about to make one external call."""
    run_id = hand.start()
    hand.commit(hand.claim(run_id), asked_for(EffectKind.EXTERNAL))
    return hand.claim(run_id)


def test_an_attempt_is_on_record_before_the_call_and_does_not_advance_the_step(
    hand: Hand, act: Claim
) -> None:
    # features: 004-20
    with hand.database.connect() as connection:
        attempt = effects.begin_attempt(connection, act, call_id(0, 0), timeout_seconds=30)

    assert attempt.attempt == 1
    row, effect = hand.row(act.run_id), hand.effect(act.run_id, call_id(0, 0))
    assert (row.status, row.step) == ("running", 1)
    assert (effect.state, effect.attempt, effect.token.hex) == ("in_flight", 1, act.token)
    assert hand.attempts(act.run_id, call_id(0, 0)) == [(1, 0, "started", None)]
    assert hand.event_data(act.run_id, "effect.in_flight") == {
        "call_id": "0.0",
        "tool": "look",
        "attempt": 1,
    }
    assert attempt.deadline_at is not None
    assert 25 < (attempt.deadline_at - act.step_started_at).total_seconds() < 40


def test_an_attempt_is_refused_to_whom_the_claim_is_lost(hand: Hand, act: Claim) -> None:
    lose_to_a_release(hand, act)
    before = written(hand.database)

    with pytest.raises(Fenced), hand.database.connect() as connection:
        effects.begin_attempt(connection, act, call_id(0, 0), timeout_seconds=30)

    assert written(hand.database) == before


def test_a_cancelled_call_is_not_begun(hand: Hand, act: Claim) -> None:
    # features: 003-08
    with hand.database.begin() as connection:
        requests.request_cancel(connection, act.run_id, ALICE)
    before = written(hand.database)

    with pytest.raises(RequestsChanged), hand.database.connect() as connection:
        effects.begin_attempt(connection, act, call_id(0, 0), timeout_seconds=30)

    assert written(hand.database) == before


def test_a_call_in_flight_is_never_begun_again(hand: Hand, act: Claim) -> None:
    # features: 004-20
    with hand.database.connect() as connection:
        effects.begin_attempt(connection, act, call_id(0, 0), timeout_seconds=30)
    lose_to_a_release(hand, act)
    successor = hand.claim(act.run_id)
    before = written(hand.database)

    with pytest.raises(psycopg.DatabaseError) as refused, hand.database.connect() as connection:
        effects.begin_attempt(connection, successor, call_id(0, 0), timeout_seconds=30)

    assert sqlstate(refused.value) == "CE005"
    assert written(hand.database) == before
