"""The audit sees each kind of damage, says exactly that, and sees none where there is none."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac.budget import Allowance, Measure, Use
from celeriac.codec import dumps
from celeriac.ids import DEFAULT_TENANT, CallId, RunId, ThreadId
from celeriac.states import EffectKind, EffectState, Phase
from celeriac_storage import (
    artifacts,
    audit_checks,
    budget_limits,
    budgets,
    requests,
    resolving,
)
from celeriac_storage.audit import Violation, audit
from celeriac_storage.audit_checks import CHECKS
from celeriac_storage.audit_checks.check import Check
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.resolving import NotDone
from celeriac_storage.step_record import Next, SettledEffect
from tests.records import act, committed, planned, think
from tests.servers import DatabaseServer
from tests.steps_by_hand import ALICE, Hand


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def all_kinds_of_calls(hand: Hand, run_id: RunId) -> None:
    """Take the run through a response with a call of each kind, and to its end."""
    claim = hand.claim(run_id)
    kinds = [EffectKind.NONE, EffectKind.TRANSACTIONAL, EffectKind.EXTERNAL]
    hand.commit(claim, think(claim, calls=planned(claim.step, kinds)))
    reads, transacts, calls_out = (CallId(f"{claim.step}.{index}") for index in range(3))

    hand.commit(hand.claim(run_id), act([committed(reads, None)]))
    claim = hand.claim(run_id)
    large = dumps("x" * artifacts.LARGEST_ROW_VALUE_BYTES)
    with hand.database.begin() as connection:
        digest = artifacts.store(connection, large)
    stored = SettledEffect(
        transacts, EffectState.PLANNED, EffectState.COMMITTED, result_artifact=digest
    )
    hand.commit(claim, act([stored]))
    claim = hand.begin_call(run_id, calls_out)
    hand.commit(claim, act([committed(calls_out, {"id": 1}, EffectState.IN_FLIGHT)]))
    claim = hand.claim(run_id)
    hand.commit(claim, think(claim))


def not_done_then_tried_again(hand: Hand, run_id: RunId) -> None:
    (call,) = hand.ask_for_calls(run_id)
    hand.lose_outcome(hand.begin_call(run_id, call), call)
    with hand.database.begin() as connection:
        resolving.resolve(connection, run_id, call, NotDone(), ALICE)
    hand.begin_call(run_id, call)


def cancelled_with_unknown_call(hand: Hand, run_id: RunId) -> None:
    (call,) = hand.ask_for_calls(run_id)
    hand.lose_outcome(hand.begin_call(run_id, call), call)
    with hand.database.begin() as connection:
        requests.request_cancel(connection, run_id, ALICE)


def spend(hand: Hand, run_id: RunId) -> None:
    """Two steps of a run with a budget: one that used more than was reserved, and one whose use
    nobody knows."""
    hand.start(run_id=run_id, thread_id=ThreadId("t-budgeted"))
    with hand.database.begin() as connection:
        allowance = Allowance(Decimal(100), Decimal(90), "fail")
        budget_limits.set_budget(
            connection, DEFAULT_TENANT, "run", run_id, Measure.TOKENS, allowance, ALICE
        )
        budget_limits.top_up(
            connection, DEFAULT_TENANT, "run", run_id, Measure.TOKENS, Decimal(20), ALICE
        )
    for reserved, used in ((80, Decimal(95)), (20, None)):
        claim = hand.claim(run_id)
        with hand.database.connect() as connection:
            budgets.reserve(connection, claim, {Measure.TOKENS: Decimal(reserved)})
        tokens = 0 if used is None else int(used)
        record = think(
            claim, Next.queued(Phase.WAITING_MODEL), input_tokens=tokens, output_tokens=0
        )
        hand.commit(claim, replace(record, budget_use=Use({Measure.TOKENS: used})))


@pytest.fixture(scope="module")
def lively_url(database_server: DatabaseServer) -> Iterator[str]:
    """A database with runs in every state, named by them; nothing is wrong in it."""
    with database_server.database(migrated=True) as url:
        database = Database(url)
        _live(Hand(database))
        database.close()
        yield url


@pytest.fixture
def lively(database_server: DatabaseServer, lively_url: str) -> Iterator[Hand]:
    """A copy of it, for the test to damage."""
    with database_server.copy(lively_url) as url:
        database = Database(url)
        with database.begin() as connection:  # it is as old as the tests before have taken
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET published_at = now(), step_started_at = CASE"
                " WHEN step_started_at IS NOT NULL THEN now() END"
                " WHERE status IN ('queued', 'running')"
            )
        yield Hand(database)
        database.close()


def _live(hand: Hand) -> None:
    for name in ("completed", "flying", "cancelled", "failed", "poisoned", "queued", "running"):
        hand.start(run_id=RunId(name), thread_id=ThreadId(f"t-{name}"))
    hand.start(run_id=RunId("waiting"), thread_id=ThreadId("t-queued"))
    all_kinds_of_calls(hand, RunId("completed"))
    not_done_then_tried_again(hand, RunId("flying"))
    cancelled_with_unknown_call(hand, RunId("cancelled"))
    spend(hand, RunId("budgeted"))
    claim = hand.claim(RunId("failed"))
    hand.commit(claim, think(claim, Next.failed("model_failed", {"kind": "x", "message": "y"})))
    hand.poisoned(RunId("poisoned"))
    hand.claim(RunId("running"))


def damage(database: Database, sql: str) -> None:
    """Change rows past every trigger and foreign key."""
    with database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(sql.replace("%", "%%"))


def test_a_database_where_nothing_is_wrong_has_no_violations(lively: Hand) -> None:
    assert audit(lively.database) == []


@dataclass(frozen=True)
class Damage:
    """What is done to the rows, and what the audit must say of it."""

    check: Check
    sql: str
    detail: str
    run_id: str | None = "completed"


DAMAGES = [
    Damage(
        audit_checks.runs.CLAIMS,
        """
        ALTER TABLE celeriac.runs DROP CONSTRAINT runs_claim;
        UPDATE celeriac.runs SET claim_token = gen_random_uuid() WHERE run_id = 'queued';
        """,
        "queued, with a token",
        "queued",
    ),
    Damage(
        audit_checks.history.FORKS,
        """
        UPDATE celeriac.runs SET forked_from = 'completed', forked_step = 1, history_until = 9
        WHERE run_id = 'queued'
        """,
        "at step 1 of run completed it has 9 messages in view, not 2",
        "queued",
    ),
    Damage(
        audit_checks.effects.IN_FLIGHT,
        """
        UPDATE celeriac.runs SET status = 'cancelled', phase = NULL, claim_token = NULL,
            finished_at = now(), last_event_seq = last_event_seq + 1
        WHERE run_id = 'flying';
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq, 'run.cancelled', '{}' FROM celeriac.runs
        WHERE run_id = 'flying';
        """,
        "call 0.0, run cancelled",
        "flying",
    ),
    Damage(
        audit_checks.history.EVENT_NUMBERS,
        "DELETE FROM celeriac.events WHERE run_id = 'completed' AND seq = 2",
        "7 rows, from 1 to 8, expected 1 to 8",
    ),
    Damage(
        audit_checks.history.EVENT_NUMBERS,
        "UPDATE celeriac.events SET seq = 99 WHERE run_id = 'queued' AND seq = 1",
        "1 rows, from 99 to 99, expected 1 to 1",
        "queued",
    ),
    Damage(
        audit_checks.history.EVENT_NUMBERS,
        "DELETE FROM celeriac.events WHERE run_id = 'queued'",
        "0 rows, from  to , expected 1 to 1",
        "queued",
    ),
    Damage(
        audit_checks.history.TERMINAL_EVENT,
        "UPDATE celeriac.events SET type = 'tool.progress' WHERE type = 'run.completed'",
        "completed, terminal events: none",
    ),
    Damage(
        audit_checks.history.TERMINAL_EVENT,
        "UPDATE celeriac.events SET type = 'run.failed' WHERE type = 'run.completed'",
        "completed, terminal events: run.failed at 8 of 8",
    ),
    Damage(
        audit_checks.history.TERMINAL_EVENT,
        "UPDATE celeriac.events SET type = 'run.failed' WHERE run_id = 'queued' AND seq = 1",
        "queued, terminal events: run.failed at 1 of 1",
        "queued",
    ),
    Damage(
        audit_checks.history.TERMINAL_EVENT,
        """
        UPDATE celeriac.events SET type = CASE seq WHEN 2 THEN 'run.completed' ELSE 'x' END
        WHERE run_id = 'completed' AND seq IN (2, 8)
        """,
        "completed, terminal events: run.completed at 2 of 8",
    ),
    Damage(
        audit_checks.effects.ONE_EFFECT,
        "UPDATE celeriac.effects SET call_index = 7 WHERE run_id = 'completed' AND call_id = '0.1'",
        "call 0.1 stands at place 7 of step 0",
    ),
    Damage(
        audit_checks.effects.EFFECT_OUTCOME,
        """
        ALTER TABLE celeriac.effects DROP CONSTRAINT effects_outcome;
        UPDATE celeriac.effects SET error = '{}' WHERE run_id = 'completed' AND call_id = '0.1';
        """,
        "call 0.1 is committed with both",
    ),
    Damage(
        audit_checks.effects.EFFECT_OUTCOME,
        """
        ALTER TABLE celeriac.effects DROP CONSTRAINT effects_committed;
        UPDATE celeriac.effects SET result = NULL, result_hash = NULL
        WHERE run_id = 'completed' AND call_id = '0.0';
        """,
        "call 0.0 is committed with no result",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "DELETE FROM celeriac.effect_attempts WHERE run_id = 'completed' AND entry = 1",
        "call 0.2 is committed at attempt 1, its attempts: {started}",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "DELETE FROM celeriac.effect_attempts WHERE run_id = 'completed' AND entry = 0",
        "call 0.2 is committed at attempt 1, its attempts: {committed}",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "DELETE FROM celeriac.effect_attempts WHERE run_id = 'completed'",
        "call 0.2 is committed at attempt 1, its attempts: none",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "DELETE FROM celeriac.effect_attempts WHERE run_id = 'flying' AND outcome = 'not_done'",
        "call 0.0 is in_flight at attempt 2, its attempts: {unknown,started}",
        "flying",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        """
        INSERT INTO celeriac.effect_attempts (run_id, call_id, attempt, entry, outcome, at)
        SELECT run_id, call_id, 1, 3, 'committed', at - interval '1 microsecond'
        FROM celeriac.effect_attempts WHERE run_id = 'flying' AND (attempt, entry) = (2, 0)
        """,
        "call 0.0 is in_flight at attempt 2, its attempts: {committed,started}",
        "flying",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "UPDATE celeriac.effects SET attempt = 3 WHERE run_id = 'flying'",
        "call 0.0 is in_flight at attempt 3, its attempts: {not_done,started}",
        "flying",
    ),
    Damage(
        audit_checks.effects.ATTEMPTS,
        "UPDATE celeriac.effects SET state = 'planned' WHERE run_id = 'flying'",
        "call 0.0 is planned at attempt 2, its attempts: {not_done,started}",
        "flying",
    ),
    Damage(
        audit_checks.effects.LOCAL_CALLS,
        """
        INSERT INTO celeriac.effect_attempts (run_id, call_id, attempt, entry, outcome)
        VALUES ('completed', '0.0', 1, 0, 'started')
        """,
        "none call 0.0 is committed at attempt 1, with 1 attempt rows",
    ),
    Damage(
        audit_checks.effects.LOCAL_CALLS,
        "UPDATE celeriac.effects SET attempt = 0 WHERE run_id = 'completed' AND call_id = '0.1'",
        "transactional call 0.1 is committed at attempt 0, with 0 attempt rows",
    ),
    Damage(
        audit_checks.runs.RUN_OUTCOME,
        """
        ALTER TABLE celeriac.runs DROP CONSTRAINT runs_result;
        UPDATE celeriac.runs SET result = NULL WHERE run_id = 'completed';
        """,
        "completed with no result and no error",
    ),
    Damage(
        audit_checks.runs.RUN_OUTCOME,
        """
        ALTER TABLE celeriac.runs DROP CONSTRAINT runs_error;
        UPDATE celeriac.runs SET error = '{}' WHERE run_id = 'completed';
        """,
        "completed with a result and an error",
    ),
    Damage(
        audit_checks.runs.RUN_OUTCOME,
        """
        ALTER TABLE celeriac.runs DROP CONSTRAINT runs_error;
        UPDATE celeriac.runs SET error = NULL WHERE run_id = 'failed';
        """,
        "failed with no result and no error",
        "failed",
    ),
    Damage(
        audit_checks.history.CHECKPOINTS,
        "DELETE FROM celeriac.checkpoints WHERE run_id = 'completed' AND step = 0",
        "at step 5 with 4 checkpoints, from 1 to 4",
    ),
    Damage(
        audit_checks.history.CHECKPOINTS,
        "UPDATE celeriac.checkpoints SET step = 9 WHERE run_id = 'completed' AND step = 1",
        "at step 5 with 5 checkpoints, from 0 to 9",
    ),
    Damage(
        audit_checks.history.MESSAGE_POSITIONS,
        "DELETE FROM celeriac.messages WHERE run_id = 'completed' AND position = 1",
        "5 rows, up to position 5; the run says 6, its checkpoint 6",
    ),
    Damage(
        audit_checks.history.MESSAGE_POSITIONS,
        "UPDATE celeriac.messages SET position = 9 WHERE run_id = 'completed' AND position = 5",
        "6 rows, up to position 9; the run says 6, its checkpoint 6",
    ),
    Damage(
        audit_checks.history.MESSAGE_POSITIONS,
        """
        UPDATE celeriac.checkpoints SET message_count = 4
        WHERE run_id = 'completed' AND step = 4
        """,
        "6 rows, up to position 5; the run says 6, its checkpoint 4",
    ),
    Damage(
        audit_checks.hashes.ERASED,
        """
        SELECT celeriac.erase_runs(ARRAY['completed']);
        UPDATE celeriac.effects SET arguments = '{}' WHERE run_id = 'completed' AND call_id = '0.1';
        """,
        "1 rows in effects",
    ),
    Damage(
        audit_checks.hashes.ERASED,
        """
        SELECT celeriac.prune_runs(ARRAY['completed']);
        INSERT INTO celeriac.messages (run_id, position, role, erased_at, hash)
        VALUES ('completed', 0, 'user', now(), '');
        """,
        "1 rows in messages",
    ),
    Damage(
        audit_checks.history.WORDS_WAITING,
        "UPDATE celeriac.runs SET words_waiting = 1 WHERE run_id = 'queued'",
        "the run says 1, the inbox holds 0",
        "queued",
    ),
    Damage(
        audit_checks.history.WORDS_WAITING,
        "INSERT INTO celeriac.inbox (run_id, author, body) VALUES ('queued', 'alice', '{}')",
        "the run says 0, the inbox holds 1",
        "queued",
    ),
    Damage(
        audit_checks.history.TOLD_RESULTS,
        """
        UPDATE celeriac.messages SET body = '{"calls": ["9.9"]}',
            hash = sha256('{"calls": ["9.9"]}')
        WHERE run_id = 'completed' AND position = 2
        """,
        "message 2 tells of call 9.9, which does not exist",
    ),
    Damage(
        audit_checks.history.TOLD_RESULTS,
        """
        DELETE FROM celeriac.effect_attempts WHERE run_id = 'completed';
        UPDATE celeriac.effects SET state = 'planned', attempt = 0
        WHERE run_id = 'completed' AND call_id = '0.2';
        """,
        "message 4 tells of call 0.2, which is planned",
    ),
    Damage(
        audit_checks.hashes.CHECKPOINT_HASHES,
        """
        UPDATE celeriac.checkpoints SET state = state || '{"corrections": 1}'
        WHERE run_id = 'completed' AND step = 2
        """,
        "checkpoint 2",
    ),
    Damage(
        audit_checks.hashes.MESSAGE_HASHES,
        """
        UPDATE celeriac.messages SET body = body || '{"more": 1}'
        WHERE run_id = 'completed' AND position = 1
        """,
        "message 1",
    ),
    Damage(
        audit_checks.hashes.RESULT_HASHES,
        """
        UPDATE celeriac.effects SET result = '{"id": 2}'
        WHERE run_id = 'completed' AND call_id = '0.2'
        """,
        "call 0.2",
    ),
    Damage(
        audit_checks.hashes.RESULT_HASHES,
        """
        UPDATE celeriac.effects SET result_hash = NULL
        WHERE run_id = 'completed' AND call_id = '0.0'
        """,
        "call 0.0",
    ),
    Damage(
        audit_checks.hashes.FINGERPRINTS,
        """
        UPDATE celeriac.effects SET arguments = '{"n": 3}'
        WHERE run_id = 'completed' AND call_id = '0.2'
        """,
        "call 0.2",
    ),
    Damage(
        audit_checks.hashes.ARTIFACTS,
        """
        INSERT INTO celeriac.artifacts (hash, media_type, content)
        VALUES ('\\xab', 'text/plain', 'abc')
        """,
        "artifact ab",
        None,
    ),
    Damage(
        audit_checks.hashes.EFFECT_ARTIFACTS,
        "DELETE FROM celeriac.artifacts",
        "call 0.1, artifact ",
    ),
    Damage(
        audit_checks.runs.OWNERS,
        "UPDATE celeriac.runs SET user_id = 'mallory' WHERE run_id = 'completed'",
        "thread t-completed",
    ),
    Damage(
        audit_checks.runs.OWNERS,
        "UPDATE celeriac.runs SET parent_run_id = 'nobody' WHERE run_id = 'completed'",
        "parent nobody",
    ),
    Damage(
        audit_checks.runs.ORPHANS,
        """
        INSERT INTO celeriac.events (run_id, seq, type, data)
        VALUES ('gone', 1, 'run.created', '{}')
        """,
        "1 rows in events",
        "gone",
    ),
    Damage(
        audit_checks.runs.FORGOTTEN,
        """
        UPDATE celeriac.workers SET started_at = now() - interval '1 h';
        UPDATE celeriac.runs SET published_at = now() - interval '10 min' WHERE run_id = 'queued';
        """,
        "step 0, queue celeriac, published at ",
        "queued",
    ),
    Damage(
        audit_checks.runs.FORGOTTEN,
        """
        UPDATE celeriac.workers SET started_at = now() - interval '1 h';
        UPDATE celeriac.runs SET published_at = NULL, created_at = now() - interval '10 min'
        WHERE run_id = 'queued';
        UPDATE celeriac.events SET at = now() - interval '10 min' WHERE run_id = 'queued';
        """,
        "step 0, queue celeriac, not published since ",
        "queued",
    ),
    Damage(
        audit_checks.runs.USE_COUNTED,
        "UPDATE celeriac.runs SET output_tokens_used = 0 WHERE run_id = 'completed'",
        "the run says 3 tool calls, 20 and 0 tokens; its rows 3, 20, 10",
    ),
    Damage(
        audit_checks.runs.LIMITS,
        """UPDATE celeriac.runs SET limits = '{"steps": 4}' WHERE run_id = 'completed'""",
        "steps: used 5 of 4",
    ),
    Damage(
        audit_checks.runs.LIMITS,
        """UPDATE celeriac.runs SET limits = '{"tokens": 15}' WHERE run_id = 'completed'""",
        "tokens: used 30 of 15",
    ),
    Damage(
        audit_checks.runs.LIMITS,
        # The three calls of the last response may pass the limit; two that were used before, not.
        """
        UPDATE celeriac.runs SET limits = '{"tool_calls": 1}', tool_calls_used = 5
        WHERE run_id = 'completed';
        INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
            tool_version, kind, fingerprint, state)
        SELECT 'completed', '0.' || n, 0, n, '', 't', '1', 'none', sha256(E't\\n1'), 'planned'
        FROM generate_series(3, 4) AS n;
        UPDATE celeriac.effects SET step = 3, call_id = '3.' || call_index WHERE call_index < 3
            AND run_id = 'completed';
        UPDATE celeriac.effect_attempts SET call_id = '3.2' WHERE run_id = 'completed';
        UPDATE celeriac.messages SET body = format('{"calls": ["3.%s"]}', position - 2)::jsonb,
            hash = sha256(format('{"calls": ["3.%s"]}', position - 2)::bytea)
        WHERE role = 'results' AND run_id = 'completed';
        """,
        "tool_calls: used 5 of 1",
    ),
    Damage(
        audit_checks.runs.LIMITS,
        """
        UPDATE celeriac.runs SET limits = '{"wall_seconds": 60}',
            started_at = started_at - interval '60 s'
        WHERE run_id = 'completed'
        """,
        "wall_seconds: used 60.",
    ),
    Damage(
        audit_checks.budgets.BUDGET_SUMS,
        "UPDATE celeriac.budgets SET reserved = 19",
        "tokens of run budgeted: used 95, reserved 19; its entries 95, 20",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_SUMS,
        """
        UPDATE celeriac.budget_entries SET used = 90 WHERE step = 0;
        UPDATE celeriac.budget_entries SET reserved = 15 WHERE step = 1;
        """,
        "tokens of run budgeted: used 95, reserved 20; its entries 90, 15",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_LIMITS,
        "UPDATE celeriac.budgets SET hard_limit = 1000",
        "tokens of run budgeted: the hard limit is 1000, the last change says 120",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_LIMITS,
        "DELETE FROM celeriac.budget_changes",
        "tokens of run budgeted: the hard limit is 120, the last change says none",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_LIMITS,
        "UPDATE celeriac.budget_changes SET amount = 21 WHERE amount = 20",
        "tokens of run budgeted: 100 was topped up by 21 and became 120",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_CHARGES,
        """
        UPDATE celeriac.model_calls SET input_tokens = 94 WHERE run_id = 'budgeted' AND step = 0;
        UPDATE celeriac.runs SET input_tokens_used = 94 WHERE run_id = 'budgeted';
        """,
        "step 0 is charged 95 tokens, its model calls took 94",
        "budgeted",
    ),
    Damage(
        audit_checks.budgets.BUDGET_EXCEEDED,
        """
        UPDATE celeriac.budgets SET hard_limit = 110;
        UPDATE celeriac.budget_changes SET hard_limit = 90 WHERE amount IS NULL;
        UPDATE celeriac.budget_changes SET hard_limit = 110 WHERE amount = 20;
        UPDATE celeriac.budget_entries SET hard_limit = 110;
        """,
        "tokens of run budgeted: with step 1 of run budgeted, 115 of 110",
        None,
    ),
    Damage(
        audit_checks.budgets.BUDGET_RELEASED,
        """
        UPDATE celeriac.budgets SET measure = 'steps';
        UPDATE celeriac.budget_entries SET run_id = 'completed' WHERE used IS NULL;
        UPDATE celeriac.runs SET finished_at = now() - interval '1 h' WHERE run_id = 'completed';
        INSERT INTO celeriac.leaders VALUES ('scheduler', 'x', now() + interval '1 h');
        """,
        "steps of run budgeted: 20 reserved for step 1",
    ),
    Damage(
        audit_checks.history.SELECTIONS,
        """
        INSERT INTO celeriac.selections (run_id, step, selection)
        VALUES ('completed', 0, '{"room": 1}')
        """,
        "step 0, messages: its call says otherwise",
    ),
    Damage(
        audit_checks.history.SELECTIONS,
        """
        UPDATE celeriac.runs SET input_tokens_used = 0, output_tokens_used = 0
        WHERE run_id = 'completed';
        DELETE FROM celeriac.model_calls WHERE run_id = 'completed';
        INSERT INTO celeriac.recalls (run_id, step, selection) VALUES ('completed', 0, '{}');
        """,
        "step 0, memories: no model call",
    ),
    Damage(
        audit_checks.waits.TIMERS,
        """
        INSERT INTO celeriac.timers (run_id, timer_id, due_at)
        VALUES ('flying', 'nap', now() - interval '1 h')
        """,
        "timer nap was due at",
        "flying",
    ),
    Damage(
        audit_checks.waits.TIMERS,
        """
        UPDATE celeriac.runs SET status = 'paused', phase = 'waiting_timer',
            resume_phase = 'waiting_model', published_at = NULL
        WHERE run_id = 'queued'
        """,
        "it waits for a timer that nobody has set",
        "queued",
    ),
    Damage(
        audit_checks.waits.FIRES,
        """
        INSERT INTO celeriac.schedules (tenant_id, schedule_id, user_id, agent, input, cron,
            time_zone, overlap, catch_up, catch_up_limit, jitter_seconds, created_by)
        SELECT tenant_id, 'nightly', user_id, agent, '1', '0 2 * * *', 'UTC', 'skip', 'last', 1, 0,
            user_id FROM celeriac.runs WHERE run_id = 'completed';
        INSERT INTO celeriac.schedule_fires (tenant_id, schedule_id, scheduled_at, outcome, run_id)
        SELECT tenant_id, 'nightly', '2026-01-01 02:00Z', 'started', run_id
        FROM celeriac.runs WHERE run_id = 'completed';
        """,
        "schedule nightly at 2026-01-01",
    ),
]


@pytest.mark.parametrize(
    "damage_done", DAMAGES, ids=[f"{d.check.invariant}-{d.detail[:40]}" for d in DAMAGES]
)
def test_each_kind_of_damage_is_seen_as_exactly_that(lively: Hand, damage_done: Damage) -> None:
    damage(lively.database, damage_done.sql)

    (violation,) = audit(lively.database)

    assert (violation.invariant, violation.run_id) == (
        damage_done.check.invariant,
        damage_done.run_id,
    )
    assert violation.detail.startswith(f"{damage_done.check.name}: {damage_done.detail}")


def test_no_check_is_without_a_damage_that_it_sees() -> None:
    elsewhere = {
        audit_checks.effects.RECEIPTS,  # test_receipts
        audit_checks.memories.ALLOWED,  # tests/memory/test_guards
        audit_checks.memories.GOVERNED,
        audit_checks.memories.HASHES,
        audit_checks.memories.OWNED,
        audit_checks.workflows.ENTRY_NUMBERS,  # test_workflows
        audit_checks.hashes.ENTRY_HASHES,
        audit_checks.workflows.MADE_BY,
        audit_checks.workflows.ENTRY_ENDS,
        audit_checks.workflows.TAKEN_MAIL,
        audit_checks.workflows.WAITING_WORKFLOWS,
        audit_checks.workflows.ENTRY_TIMERS,
        audit_checks.memories.VECTORS,
        audit_checks.plans.KEPT,  # test_plans
        audit_checks.plans.HASHES,
        audit_checks.waits.CHILDREN,  # test_children
        audit_checks.waits.CHILD_USE,
        audit_checks.waits.WAITING_PARENTS,
        # test_approvals_audit, test_rollback
        audit_checks.decisions.DECISIONS,
        audit_checks.decisions.PROPOSALS,
        audit_checks.hashes.APPROVAL_HASHES,
        audit_checks.rollbacks.UNDONE_ONCE,
        audit_checks.rollbacks.UNDOS,
        audit_checks.rollbacks.ONE_ROLLBACK,
    }

    assert {done.check for done in DAMAGES} == set(CHECKS) - elsewhere


def test_the_audit_of_one_run_tells_of_that_run_alone(lively: Hand) -> None:
    damage(lively.database, "DELETE FROM celeriac.checkpoints WHERE step = 0")

    assert {found.run_id for found in audit(lively.database)} >= {"completed", "flying"}
    assert audit(lively.database, RunId("flying")) == [
        Violation(
            7, "flying", "each step of a run has its checkpoint: at step 1 with 0 checkpoints, "
            "from  to "
        )
    ]  # fmt: skip
    assert audit(lively.database, RunId("queued")) == []


def test_an_unknown_call_of_a_cancelled_run_is_no_violation(lively: Hand) -> None:
    # Its settling is pending: a person may still say what came of it.
    assert lively.effect(RunId("cancelled"), CallId("0.0")).state == EffectState.UNKNOWN
    assert audit(lively.database, RunId("cancelled")) == []


def test_an_erased_payload_needs_no_hash(lively: Hand) -> None:
    with lively.database.connect() as connection:
        connection.exec_driver_sql("SELECT celeriac.erase_runs(ARRAY['completed'])")

    assert audit(lively.database) == []


def test_pruned_events_are_no_gap(lively: Hand) -> None:
    damage(
        lively.database,
        """
        DELETE FROM celeriac.events WHERE run_id = 'completed' AND seq <= 3;
        UPDATE celeriac.runs SET pruned_to_seq = 3 WHERE run_id = 'completed';
        """,
    )

    assert audit(lively.database) == []


OLD = """
UPDATE celeriac.workers SET started_at = now() - interval '1 h';
UPDATE celeriac.runs SET published_at = now() - interval '10 min' WHERE run_id = 'queued';
"""


@pytest.mark.parametrize(
    "excuse",
    [
        pytest.param("UPDATE celeriac.workers SET stopped_at = now()", id="stopped"),
        pytest.param("UPDATE celeriac.workers SET lease_until = now()", id="lease over"),
        pytest.param("UPDATE celeriac.workers SET agents = '{other}'", id="other agent"),
        pytest.param("UPDATE celeriac.workers SET queues = '{other}'", id="other queue"),
        pytest.param("UPDATE celeriac.workers SET started_at = now()", id="started just now"),
        pytest.param(
            """
            UPDATE celeriac.runs SET published_at = now() - interval '11 min'
            WHERE run_id = 'running'
            """,
            id="a long queue that moves",
        ),
    ],
)
def test_a_step_nobody_could_take_yet_is_not_forgotten(lively: Hand, excuse: str) -> None:
    damage(lively.database, OLD + ";" + excuse)

    assert audit(lively.database) == []


def test_a_step_that_later_ones_overtook_is_forgotten(lively: Hand) -> None:
    damage(
        lively.database,
        OLD
        + "UPDATE celeriac.runs SET published_at = now() - interval '9 min'"
        + " WHERE run_id = 'running'",
    )

    assert [found.run_id for found in audit(lively.database)] == ["queued"]


def test_the_audit_of_a_busy_database_sees_whole_steps(hand: Hand) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            all_kinds_of_calls(hand, hand.start())

    working = threading.Thread(target=work)
    working.start()
    try:
        found = [violation for _ in range(10) for violation in audit(hand.database)]
    finally:
        stop.set()
        working.join()

    assert found == []


def test_the_audit_cannot_write(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Check(1, "writes", "SELECT NULL AS run_id, nextval('s') AS detail")
    damage(hand.database, "CREATE SEQUENCE s")
    monkeypatch.setattr("celeriac_storage.audit.CHECKS", (writes,))

    with pytest.raises(DBAPIError) as refused:
        audit(hand.database)

    assert sqlstate(refused.value) == "25006"  # read_only_sql_transaction


def test_the_time_that_a_run_waited_for_people_is_not_held_against_it(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    hand.lose_outcome(hand.begin_call(run_id, call), call)
    damage(  # it began, and waits, since eight days
        hand.database,
        "UPDATE celeriac.runs SET created_at = created_at - interval '8 days',"
        " started_at = started_at - interval '8 days', paused_at = paused_at - interval '8 days'",
    )
    with hand.database.begin() as connection:
        resolving.resolve(connection, run_id, call, NotDone(), ALICE)
    claim = hand.begin_call(run_id, call)
    hand.commit(claim, act([committed(call, {"id": 1}, EffectState.IN_FLIGHT)]))

    assert audit(hand.database) == []
