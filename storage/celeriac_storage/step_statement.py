"""The text of a step's commit: one statement of the parts that this kind of step writes.

It begins with an update of the run's row, which takes the row's lock; everything else is inserted
from what that update returns.
"""

from functools import cache

from celeriac_storage import approvals
from celeriac_storage.budget_limits import HAS_BUDGETS
from celeriac_storage.budgets import SETTLE
from celeriac_storage.settling import NEXT_ENTRY

_RUN = """
WITH run AS (
    UPDATE celeriac.runs SET
        step = step + %(advance)s,
        status = %(status)s, phase = %(phase)s, resume_phase = %(resume_phase)s,
        outcome = %(outcome)s, result = %(result)s::jsonb, error = %(error)s::jsonb,
        claim_token = CASE WHEN %(keeps)s THEN claim_token END,
        step_started_at = CASE WHEN %(keeps)s THEN clock_timestamp() END,
        step_deadline = CASE WHEN %(keeps)s
            THEN clock_timestamp() + make_interval(secs => %(deadline)s) END,
        wake_at = clock_timestamp() + make_interval(secs => %(wake_after)s),
        published_at = CASE WHEN %(status)s = 'queued' THEN clock_timestamp() END,
        publish_count = CASE WHEN %(status)s = 'queued' THEN 1 ELSE 0 END,
        strikes = CASE WHEN %(advance)s = 1 THEN 0 ELSE strikes END,
        failed_thinks = %(failed_thinks)s,
        agent_hash = coalesce(agent_hash, %(agent_hash)s),
        tools_hash = coalesce(tools_hash, %(tools_hash)s),
        prompt_hash = coalesce(prompt_hash, %(prompt_hash)s),
        message_count = message_count + %(messages_added)s,{more}
        last_event_seq = last_event_seq + %(events_added)s,
        tool_calls_used = tool_calls_used + %(tool_calls)s,
        input_tokens_used = input_tokens_used + %(input_tokens)s,
        output_tokens_used = output_tokens_used + %(output_tokens)s,
        finished_at = CASE WHEN %(is_terminal)s THEN clock_timestamp() END
    WHERE run_id = %(run_id)s AND step = %(step)s AND status = 'running' AND {fence}
        AND request_version = %(request_version)s
    RETURNING run_id, {owners}step, status, message_count, last_event_seq, worker_id, epoch,
        clock_timestamp() AS committed_at
)"""

_CHECKPOINT = """, checkpoint AS (
    INSERT INTO celeriac.checkpoints (run_id, step, kind, reason, state, hash, message_count,
        schema_version, worker_id, epoch, started_at, committed_at)
    SELECT run_id, %(step)s, %(kind)s, %(reason)s, %(state)s::jsonb,
        sha256(convert_to(%(state)s::jsonb::text, 'UTF8')), message_count,
        %(schema_version)s, worker_id, epoch, %(started_at)s, committed_at
    FROM run
)"""

_MESSAGES = """, message AS (
    INSERT INTO celeriac.messages (run_id, position, role, body, hash)
    SELECT run_id, message_count - %(messages_added)s + entry.number - 1, entry.value ->> 'role',
        entry.value -> 'body', sha256(convert_to((entry.value -> 'body')::text, 'UTF8'))
    FROM run, jsonb_array_elements(%(messages)s::jsonb) WITH ORDINALITY AS entry (value, number)
)"""

# The inbox holds as many words as the claim knows of, or the run's row would have moved on.
_HEARD = """, heard AS (
    UPDATE celeriac.inbox SET drained_step = %(step)s
    FROM run WHERE inbox.run_id = run.run_id AND drained_step IS NULL
    RETURNING inbox_id, body
), word AS (
    INSERT INTO celeriac.messages (run_id, position, role, body, hash)
    SELECT run_id, message_count - %(words)s + row_number() OVER (ORDER BY inbox_id) - 1, 'user',
        body, sha256(convert_to(body::text, 'UTF8'))
    FROM run, heard
)"""

_EVENTS = """, event AS (
    INSERT INTO celeriac.events (run_id, seq, type, data)
    SELECT run_id, last_event_seq - %(events_added)s + entry.number,
        entry.value ->> 'type', entry.value -> 'data'
    FROM run, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS entry (value, number)
)"""

_PLANNED = """, planned AS (
    INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
        tool_version, kind, flags, arguments, fingerprint, state, error, requirement, settled_at)
    SELECT run_id, entry.call_id, %(step)s, entry.call_index, entry.provider_call_id, entry.tool,
        entry.tool_version, entry.kind, entry.flags, entry.arguments,
        sha256(convert_to(
            concat_ws(E'\\n', entry.tool, entry.tool_version, entry.arguments::text), 'UTF8')),
        entry.state, entry.error, entry.requirement,
        CASE WHEN entry.state = 'invalid' THEN committed_at END
    FROM run, jsonb_to_recordset(%(planned)s::jsonb) AS entry (call_id text, call_index smallint,
        provider_call_id text, tool text, tool_version text, kind text, flags jsonb,
        arguments jsonb, state text, error jsonb, requirement jsonb)
    RETURNING run_id, call_id, version, tool, tool_version, arguments, fingerprint
)"""

# What takes a call back has its arguments, and, unless people do it, its kind.
_UNDOS = """, undo AS (
    INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
        tool_version, kind, arguments, fingerprint, state, error, settled_at, rolls_back_run,
        rolls_back, rolls_back_kind)
    SELECT run.run_id, entry.call_id, %(step)s, entry.call_index, original.provider_call_id,
        entry.tool, original.tool_version,
        CASE entry.rollback WHEN 'out_of_band' THEN 'external' ELSE original.kind END,
        original.arguments, sha256(convert_to(concat_ws(E'\\n', entry.tool,
            original.tool_version, original.arguments::text), 'UTF8')),
        entry.state, entry.error, CASE WHEN entry.state = 'invalid' THEN committed_at END,
        original.run_id, original.call_id, entry.rollback
    FROM run, jsonb_to_recordset(%(undos)s::jsonb) AS entry (call_id text, call_index smallint,
        tool text, rollback text, of_run text, of_call text, state text, error jsonb)
    JOIN celeriac.effects AS original
        ON (original.run_id, original.call_id) = (entry.of_run, entry.of_call)
    RETURNING call_id
)"""

# A call whose decision was revoked is proposed again, as the next version of itself.
_PLANNED_BEFORE = """, planned AS (
    UPDATE celeriac.effects AS effect SET state = 'proposed', version = version + 1,
        requirement = entry.requirement
    FROM run, jsonb_to_recordset(%(proposed)s::jsonb) AS entry (call_id text, requirement jsonb)
    WHERE effect.run_id = run.run_id AND effect.call_id = entry.call_id
        AND effect.state = 'planned'
    RETURNING effect.run_id, effect.call_id, version, tool, tool_version, arguments, fingerprint
)"""

_PROPOSED = ", proposal AS (" + approvals.INSERT.format(effects="planned") + " RETURNING 1)"

# The run ends, and with it what waits for people; nobody has decided about it.
_CANCELLED = """, cancelled AS (
    UPDATE celeriac.approvals SET status = 'cancelled'
    FROM run WHERE approvals.run_id = run.run_id AND approvals.status = 'pending'
)"""

# Calls that nobody makes any more: the user has interrupted the run, or what must hold before the
# call does not. What people were asked about them is over; a decision that was used stays.
_WITHDRAWN = """, withdrawn AS (
    UPDATE celeriac.approvals AS approval SET
        status = CASE approval.status WHEN 'pending' THEN 'cancelled' ELSE 'revoked' END,
        revoked_because = CASE WHEN approval.status = 'pending' THEN NULL
            WHEN entry.state = 'rejected' THEN 'the run was interrupted'
            ELSE entry.error ->> 'message' END
    FROM run, jsonb_to_recordset(%(settled)s::jsonb) AS entry (call_id text, state text,
        error jsonb)
    WHERE approval.run_id = run.run_id AND approval.call_id = entry.call_id
        AND (entry.state = 'rejected' AND approval.status IN ('pending', 'approved')
            OR entry.state = 'precondition_failed' AND approval.status = 'approved'
                AND consumed_at IS NULL)
)"""

# The result is taken from `value` itself: as a column of the record, a JSON null would become an
# SQL NULL, and a committed effect has a result.
_SETTLED = """, settled AS (
    UPDATE celeriac.effects AS effect SET
        state = entry.state, result = value -> 'result',
        result_hash = sha256(convert_to((value -> 'result')::text, 'UTF8')),
        result_artifact = decode(entry.result_artifact, 'hex'), error = entry.error,
        attempt = attempt + tries, checks = effect.checks + entry.checks,
        token = %(token)s,
        settled_at = CASE WHEN entry.state NOT IN ('planned', 'approved', 'not_done', 'unknown')
            THEN committed_at END
    FROM run, jsonb_array_elements(%(settled)s::jsonb) AS value,
        jsonb_to_record(value) AS entry (call_id text, was text, state text, result_artifact text,
            error jsonb, tries int, checks int)
    WHERE effect.run_id = run.run_id AND effect.call_id = entry.call_id
        AND effect.state = entry.was
    RETURNING effect.call_id
)"""

_ATTEMPTS = f""", attempt AS (
    INSERT INTO celeriac.effect_attempts (run_id, call_id, attempt, entry, token, worker_id,
        outcome, evidence)
    SELECT run.run_id, effect.call_id, effect.attempt, {NEXT_ENTRY}, %(token)s, run.worker_id,
        entry.state, entry.evidence
    FROM run, jsonb_to_recordset(%(settled)s::jsonb)
        AS entry (call_id text, state text, is_attempt boolean, evidence jsonb)
    JOIN celeriac.effects AS effect USING (call_id)
    WHERE effect.run_id = run.run_id AND entry.is_attempt
)"""

_MODEL_CALL = """, model_call AS (
    INSERT INTO celeriac.model_calls (run_id, step, attempt, model, message_count, outcome, error,
        input_tokens, output_tokens, usage, prompt_hash, tools_hash, started_at, cost, selection)
    SELECT run_id, %(step)s, %(model_attempt)s, %(model)s, %(model_messages)s, %(model_outcome)s,
        %(model_error)s::jsonb, %(input_tokens)s, %(output_tokens)s, %(usage)s::jsonb,
        %(call_prompt_hash)s, %(call_tools_hash)s, %(model_started_at)s, %(cost)s,
        %(selection)s::jsonb
    FROM run
)"""

_AWAITED = " awaited_budget_id = %(awaited_budget_id)s, awaited_amount = %(awaited_amount)s,"

# For a claim that is kept, which is not asked for again: a budget may be new.
_OWNERS = "tenant_id, user_id, thread_id, "

_END = """
SELECT step, status, committed_at, last_event_seq, {is_budgeted}{checks} FROM run
"""

# Under our claim nobody else moves an effect; if one is not in the state we saw, stop everything.
_SETTLED_CHECK = """,
    celeriac.demand((SELECT count(*) FROM settled) = %(settled_count)s,
        'an effect of this step has moved')"""

_HEARD_CHECK = """,
    celeriac.demand((SELECT count(*) FROM heard) = %(words)s,
        'the inbox does not hold what the run says')"""

_UNDO_CHECK = """,
    celeriac.demand((SELECT count(*) FROM undo) = %(undo_count)s,
        'a call that this step is to have undone does not exist')"""

_PROPOSED_CHECK = """,
    celeriac.demand((SELECT count(*) FROM proposal) = %(proposed_count)s,
        'a call that this step proposes is not in the state the step found it in')"""


@cache
def statement(
    fence: str,
    checkpoint: bool,
    messages: bool,
    heard: bool,
    interrupted: bool,
    events: bool,
    planned: bool,
    undos: bool,
    proposed: bool,
    cancelled: bool,
    withdrawn: bool,
    settled: bool,
    attempts: bool,
    model_call: bool,
    keeps_claim: bool,
    budgeted: bool,
    awaits_budget: bool,
) -> str:
    """Only the parts that this kind of step writes: each table opened costs a few microseconds.

    Packed: psycopg keeps what it parsed only of statements up to 4,096 characters, and parsing
    costs a quarter of a millisecond.
    """
    statement = (
        _RUN.format(
            fence=fence,
            owners=_OWNERS * keeps_claim,
            more=" words_waiting = 0," * heard
            + " interrupt_requested_at = NULL," * interrupted
            + _AWAITED * awaits_budget,
        )
        + _CHECKPOINT * checkpoint
        + _MESSAGES * messages
        + _HEARD * heard
        + _EVENTS * events
        + _PLANNED * planned
        + _UNDOS * undos
        + _PLANNED_BEFORE * (proposed and not planned)
        + _PROPOSED * proposed
        + _CANCELLED * cancelled
        + _WITHDRAWN * withdrawn
        + _SETTLED * settled
        + _ATTEMPTS * attempts
        + _MODEL_CALL * model_call
        + _END.format(
            checks=_SETTLED_CHECK * settled
            + _PROPOSED_CHECK * proposed
            + _UNDO_CHECK * undos
            + _HEARD_CHECK * heard
            + SETTLE * budgeted,
            is_budgeted=HAS_BUDGETS if keeps_claim else "false",
        )
    )
    return _packed(statement)


def _packed(statement: str) -> str:
    """The statement without white space that nothing needs; its texts hold none of these marks."""
    packed = " ".join(statement.split())
    for mark in (", ", "( ", " )", " = ", " + "):
        packed = packed.replace(mark, mark.strip())
    return packed
