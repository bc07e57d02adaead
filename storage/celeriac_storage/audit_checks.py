"""The queries of the audit. Each selects `run_id` and `detail` of the rows that break its rule.

Their order is the invariants' (`docs/invariants.md`). The database refuses much of this by itself;
here it is checked all the same, because a restored dump, a disabled trigger or a mistaken repair
asks nobody.
"""

from dataclasses import dataclass

from celeriac_storage.workers import CAN_TAKE_RUN


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its invariant's number, what it says, and a query for the rows that break it."""

    invariant: int
    name: str
    sql: str


_TERMINAL = "('completed', 'failed', 'cancelled')"

CLAIMS = Check(
    1,
    "a claim token stands on running runs only",
    """
    SELECT run_id, format('%%s, %%s a token', status,
        CASE WHEN claim_token IS NULL THEN 'without' ELSE 'with' END) AS detail
    FROM celeriac.runs WHERE (claim_token IS NOT NULL) <> (status = 'running')
    """,
)

IN_FLIGHT = Check(
    1,
    "no call is in flight on a terminal run",  # what a lost worker leaves is `unknown` by then
    f"""
    SELECT run_id, format('call %%s, run %%s', call_id, status) AS detail
    FROM celeriac.effects JOIN celeriac.runs USING (run_id)
    WHERE state = 'in_flight' AND status IN {_TERMINAL}
    """,
)

EVENT_NUMBERS = Check(
    2,
    "events are numbered without a gap",
    """
    SELECT run_id, format('%%s rows, from %%s to %%s, expected %%s to %%s', found, first, last,
        pruned_to_seq + 1, last_event_seq) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT count(*) AS found, min(seq) AS first, max(seq) AS last
        FROM celeriac.events WHERE events.run_id = runs.run_id AND seq > pruned_to_seq
    ) AS event
    WHERE found <> last_event_seq - pruned_to_seq
        OR found > 0 AND (first, last) <> (pruned_to_seq + 1, last_event_seq)
    """,
)

TERMINAL_EVENT = Check(
    2,
    "a run has a terminal event exactly if it is terminal, and it is its last",
    f"""
    SELECT run_id, format('%%s, terminal events: %%s', status, coalesce(terminal, 'none')) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT string_agg(format('%%s at %%s of %%s', type, seq, last_event_seq), ', ' ORDER BY seq)
            AS terminal, count(*) AS found,
            bool_and(seq = last_event_seq AND type = 'run.' || status) AS is_right
        FROM celeriac.events WHERE events.run_id = runs.run_id
            AND type IN ('run.completed', 'run.failed', 'run.cancelled')
    ) AS event
    WHERE found <> (status IN {_TERMINAL})::int OR NOT is_right
    """,
)

ONE_EFFECT = Check(
    3,
    "a call of a response is one effect",
    """
    SELECT run_id, format('call %%s stands at place %%s of step %%s', call_id, call_index, step)
        AS detail
    FROM celeriac.effects WHERE call_id <> step || '.' || call_index AND rolls_back IS NULL
    """,
)

EFFECT_OUTCOME = Check(
    3,
    "an effect has a result or an error, never both, and a result if it is committed",
    """
    SELECT run_id, format('call %%s is %%s with %%s', call_id, state,
        CASE WHEN has_result AND error IS NOT NULL THEN 'both' ELSE 'no result' END) AS detail
    FROM celeriac.effects, LATERAL (
        SELECT result IS NOT NULL OR result_artifact IS NOT NULL AS has_result
    ) AS outcome
    WHERE has_result AND error IS NOT NULL
        OR state = 'committed' AND NOT has_result AND erased_at IS NULL
    """,
)

ATTEMPTS = Check(
    3,
    "the attempts of an external call explain its state",
    # By attempt, the outcome that became known last. All but the latest are certainly not done,
    # or there would be no later one. A worker that was thought to be dead may say so too: `failed`.
    """
    SELECT run_id, format('call %%s is %%s at attempt %%s, its attempts: %%s', call_id, state,
        effect.attempt, coalesce(attempts.outcomes::text, 'none')) AS detail
    FROM celeriac.effects AS effect, LATERAL (
        SELECT array_agg(outcome ORDER BY number) AS outcomes, bool_and(is_complete) AS is_complete,
            coalesce(bool_and(outcome IN ('not_done', 'failed'))
                FILTER (WHERE number < effect.attempt), true) AS may_follow,
            array_agg(number ORDER BY number) AS numbers
        FROM (
            SELECT attempt AS number, (array_agg(outcome ORDER BY entry DESC))[1] AS outcome,
                min(entry) = 0 AND max(entry) = count(*) - 1 AS is_complete
            FROM celeriac.effect_attempts AS entry
            WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
            GROUP BY attempt
        ) AS attempt
    ) AS attempts
    WHERE kind = 'external' AND NOT CASE
        WHEN state IN ('planned', 'proposed', 'approved', 'rejected', 'expired', 'invalid',
            'precondition_failed') THEN effect.attempt = 0 AND outcomes IS NULL
        ELSE outcomes IS NOT NULL AND is_complete AND may_follow
            AND numbers = ARRAY(SELECT generate_series(1, effect.attempt)::smallint)
            AND CASE state
                -- A worker that was thought to be dead may have told what came of its own attempt.
                WHEN 'in_flight' THEN outcomes[effect.attempt] IN ('started', 'committed', 'failed')
                WHEN 'unknown' THEN outcomes[effect.attempt] IN ('unknown', 'committed', 'failed')
                WHEN 'rolled_back' THEN outcomes[effect.attempt] = 'known_bad'
                ELSE outcomes[effect.attempt] = state
            END
    END
    """,
)

LOCAL_CALLS = Check(
    3,
    "a call that is no external one is planned or settled, without attempts of its own",
    """
    SELECT run_id, format('%%s call %%s is %%s at attempt %%s, with %%s attempt rows', kind,
        call_id, state, effect.attempt, found) AS detail
    FROM celeriac.effects AS effect, LATERAL (
        SELECT count(*) AS found FROM celeriac.effect_attempts AS entry
        WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
    ) AS attempts
    WHERE kind <> 'external' AND (
        found > 0 OR state IN ('in_flight', 'unknown', 'not_done')
        OR state IN ('committed', 'failed') AND effect.attempt = 0
        OR state NOT IN ('planned', 'committed', 'failed', 'rejected') AND effect.attempt > 0
    )
    """,
)

RUN_OUTCOME = Check(
    4,
    "a completed run has a result, a failed one an error, and no run the other's",
    """
    SELECT run_id, format('%%s with %%s', status, concat_ws(' and ',
        CASE WHEN result IS NULL THEN 'no result' ELSE 'a result' END,
        CASE WHEN error IS NULL THEN 'no error' ELSE 'an error' END)) AS detail
    FROM celeriac.runs
    WHERE erased_at IS NULL AND (
        (result IS NOT NULL) <> (status = 'completed')
        OR status = 'completed' AND error IS NOT NULL
        OR status IN ('failed', 'needs_attention') AND error IS NULL
    )
    """,
)

DECISIONS = Check(
    5,
    "a call that needed a decision is approved and executed only on one that held",
    """
    SELECT run_id, format('call %%s is %%s: %%s', call_id, state, wrong) AS detail
    FROM celeriac.effects AS effect
    LEFT JOIN celeriac.approvals AS approval USING (run_id, call_id, version)
    CROSS JOIN LATERAL (
        SELECT count(*) AS found, count(*) FILTER (
            WHERE decision.arguments_hash IS DISTINCT FROM approval.arguments_hash
        ) AS about_others, count(*) FILTER (
            WHERE reviewer = approval.requested_by
                AND approval.requirement -> 'allow_self' <> 'true'
        ) AS by_owner, count(*) FILTER (
            WHERE jsonb_array_length(approval.requirement -> 'roles') > 0
                AND NOT approval.requirement -> 'roles' ?| roles
        ) AS without_role
        FROM celeriac.approval_decisions AS decision
        WHERE decision.approval_id = approval.approval_id AND decision = 'approve'
    ) AS decided CROSS JOIN LATERAL (
        SELECT CASE
            WHEN effect.requirement IS NULL THEN 'it was proposed, and says that it needs nobody'
            WHEN approval.approval_id IS NULL THEN 'no proposal of this version'
            WHEN approval.status <> 'approved' THEN 'its proposal is ' || approval.status
            WHEN state <> 'approved' AND consumed_at IS NULL THEN 'its approval was not used'
            WHEN consumed_at > expires_at THEN 'its approval had run out'
            WHEN approval.arguments_hash <> fingerprint THEN 'other arguments were approved'
            WHEN found < quorum THEN format('%%s of %%s approvals', found, quorum)
            WHEN about_others > 0 THEN 'a decision is about other arguments'
            WHEN by_owner > 0 THEN 'approved by the owner of the run'
            WHEN without_role > 0 THEN 'approved without the role'
            WHEN kind = 'external' AND state <> 'approved' AND NOT EXISTS (
                SELECT FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                    AND entry.approval_id = approval.approval_id
                    AND entry.attempt = consumed_by_attempt
            ) THEN 'no attempt was made on its approval'
        END AS wrong
    ) AS judged
    WHERE (effect.requirement IS NOT NULL OR EXISTS (
            SELECT FROM celeriac.approvals AS any_version
            WHERE (any_version.run_id, any_version.call_id) = (effect.run_id, effect.call_id)
        ))
        AND (state IN ('approved', 'in_flight', 'unknown', 'not_done', 'committed', 'known_bad',
                'rolled_back')
            OR state = 'failed' AND kind = 'external')
        AND wrong IS NOT NULL
    """,
)

PROPOSALS = Check(
    5,
    "a call that waits for a decision has one proposal that stands, and a pending proposal such a"
    " call",
    f"""
    SELECT run_id, format('call %%s is %%s, run %%s, proposal %%s', call_id,
        coalesce(state, 'missing'), run.status, coalesce(standing.status, 'missing')) AS detail
    FROM (
        SELECT * FROM celeriac.effects WHERE requirement IS NOT NULL
    ) AS effect FULL JOIN (
        SELECT * FROM celeriac.approvals WHERE status IN ('pending', 'approved')
    ) AS standing USING (run_id, call_id)
    JOIN celeriac.runs AS run USING (run_id)
    WHERE standing.approval_id IS NOT NULL AND (
            (standing.version, standing.arguments_hash, standing.arguments, standing.requirement)
            IS DISTINCT FROM (effect.version, fingerprint, effect.arguments, effect.requirement)
            OR standing.tenant_id <> run.tenant_id)
        OR (standing.status IS NOT DISTINCT FROM 'pending')
            <> (state IS NOT DISTINCT FROM 'proposed' AND run.status NOT IN {_TERMINAL})
        OR state = 'approved' AND standing.status IS DISTINCT FROM 'approved'
    """,
)

APPROVAL_HASHES = Check(
    7,
    "a proposal's hash is that of its tool, version and arguments",
    """
    SELECT run_id, format('proposal %%s of call %%s', approval_id, call_id) AS detail
    FROM celeriac.approvals
    WHERE erased_at IS NULL AND arguments_hash <> sha256(convert_to(
        concat_ws(E'\\n', tool, tool_version, arguments::text), 'UTF8'))
    """,
)

CHECKPOINTS = Check(
    7,
    "each step of a run has its checkpoint",
    """
    SELECT run_id, format('at step %%s with %%s checkpoints, from %%s to %%s', step, found, first,
        last) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT count(*) AS found, min(step) AS first, max(step) AS last
        FROM celeriac.checkpoints WHERE checkpoints.run_id = runs.run_id
    ) AS checkpoint
    WHERE found <> step OR found > 0 AND (first, last) <> (0, step - 1)
    """,
)

MESSAGE_POSITIONS = Check(
    7,
    "messages are numbered without a gap, as many as run and checkpoint say",
    """
    SELECT run.run_id, format('%%s rows, up to position %%s; the run says %%s, its checkpoint %%s',
        found, last, run.message_count, coalesce(latest.message_count::text, 'nothing')) AS detail
    FROM celeriac.runs AS run CROSS JOIN LATERAL (
        SELECT count(*) AS found, min(position) AS first, max(position) AS last
        FROM celeriac.messages WHERE messages.run_id = run.run_id
    ) AS message
    LEFT JOIN celeriac.checkpoints AS latest
        ON latest.run_id = run.run_id AND latest.step = run.step - 1
    WHERE found <> run.message_count OR latest.message_count <> run.message_count
        OR found > 0 AND (first, last) <> (0, run.message_count - 1)
    """,
)

TOLD_RESULTS = Check(
    7,
    "a message tells only of calls that exist and are settled",
    """
    SELECT message.run_id, format('message %%s tells of call %%s, which %%s', position,
        told.call_id, coalesce('is ' || state, 'does not exist')) AS detail
    FROM celeriac.messages AS message
    CROSS JOIN jsonb_array_elements_text(body -> 'calls') AS told (call_id)
    LEFT JOIN celeriac.effects AS effect
        ON effect.run_id = message.run_id AND effect.call_id = told.call_id
    WHERE role = 'results' AND (state IS NULL OR state NOT IN ('committed', 'failed', 'invalid',
        'precondition_failed', 'rejected', 'expired', 'known_bad', 'rolled_back'))
    """,
)

CHECKPOINT_HASHES = Check(
    7,
    "a checkpoint's hash is that of its state",
    """
    SELECT run_id, format('checkpoint %%s', step) AS detail
    FROM celeriac.checkpoints WHERE hash <> sha256(convert_to(state::text, 'UTF8'))
    """,
)

MESSAGE_HASHES = Check(
    7,
    "a message's hash is that of its body",
    """
    SELECT run_id, format('message %%s', position) AS detail
    FROM celeriac.messages
    WHERE erased_at IS NULL
        AND hash IS DISTINCT FROM sha256(convert_to(body::text, 'UTF8'))
    """,
)

RESULT_HASHES = Check(
    7,
    "an effect's result hash is that of its result",
    """
    SELECT run_id, format('call %%s', call_id) AS detail
    FROM celeriac.effects
    WHERE erased_at IS NULL
        AND result_hash IS DISTINCT FROM sha256(convert_to(result::text, 'UTF8'))
    """,
)

FINGERPRINTS = Check(
    7,
    "an effect's fingerprint is that of its tool, version and arguments",
    """
    SELECT run_id, format('call %%s', call_id) AS detail
    FROM celeriac.effects
    WHERE erased_at IS NULL AND fingerprint <> sha256(convert_to(
        concat_ws(E'\\n', tool, tool_version, arguments::text), 'UTF8'))
    """,
)

ARTIFACTS = Check(
    7,
    "an artifact's hash is that of its content",
    """
    SELECT NULL::text AS run_id, format('artifact %%s', encode(hash, 'hex')) AS detail
    FROM celeriac.artifacts WHERE hash <> sha256(content)
    """,
)

EFFECT_ARTIFACTS = Check(
    7,
    "the artifact of an effect exists and is what was stored",
    """
    SELECT run_id, format('call %%s, artifact %%s', call_id, encode(result_artifact, 'hex'))
        AS detail
    FROM celeriac.effects LEFT JOIN celeriac.artifacts ON hash = result_artifact
    WHERE result_artifact IS NOT NULL AND erased_at IS NULL
        AND sha256(content) IS DISTINCT FROM result_artifact
    """,
)

OWNERS = Check(
    8,
    "a run's thread, and the runs it comes from, are of its own user and tenant",
    """
    SELECT run_id, format('%%s %%s', what, coalesce(other, 'none')) AS detail
    FROM celeriac.runs AS run, LATERAL (
        SELECT 'thread' AS what, thread_id AS other WHERE NOT EXISTS (
            SELECT FROM celeriac.threads
            JOIN celeriac.users USING (tenant_id, user_id)
            JOIN celeriac.tenants USING (tenant_id)
            WHERE (tenant_id, user_id, thread_id) = (run.tenant_id, run.user_id, run.thread_id)
        )
        UNION ALL
        SELECT what, other
        FROM (VALUES ('root', root_run_id), ('parent', parent_run_id), ('origin', forked_from))
            AS origin (what, other)
        WHERE other IS NOT NULL AND NOT EXISTS (
            SELECT FROM celeriac.runs AS theirs
            WHERE (theirs.run_id, theirs.tenant_id, theirs.user_id)
                = (origin.other, run.tenant_id, run.user_id)
        )
    ) AS stranger
    """,
)

ORPHANS = Check(
    8,
    "every row belongs to a run",
    """
    SELECT run_id, format('%%s rows in %%s', count(*), source) AS detail
    FROM (
        SELECT run_id, 'checkpoints' AS source FROM celeriac.checkpoints
        UNION ALL SELECT run_id, 'messages' FROM celeriac.messages
        UNION ALL SELECT run_id, 'inbox' FROM celeriac.inbox
        UNION ALL SELECT run_id, 'events' FROM celeriac.events
        UNION ALL SELECT run_id, 'effects' FROM celeriac.effects
        UNION ALL SELECT run_id, 'effect_attempts' FROM celeriac.effect_attempts
        UNION ALL SELECT run_id, 'model_calls' FROM celeriac.model_calls
        UNION ALL SELECT run_id, 'approvals' FROM celeriac.approvals
    ) AS row_of
    WHERE NOT EXISTS (SELECT FROM celeriac.runs WHERE runs.run_id = row_of.run_id)
    GROUP BY run_id, source
    """,
)

FORGOTTEN = Check(
    9,
    "while a worker lives that could take it, a due step is published in time",
    # A published step may wait for its turn in a long queue. It has been overtaken if what was
    # claimed lately had been published later.
    f"""
    SELECT run_id, format('step %%s, queue %%s, %%s', step, queue,
        coalesce('published at ' || published_at, 'not published since ' || due_since)) AS detail
    FROM celeriac.runs AS run, LATERAL (
        SELECT coalesce(published_at, greatest(created_at, (
            SELECT at FROM celeriac.events
            WHERE events.run_id = run.run_id AND seq = last_event_seq), (
            SELECT committed_at FROM celeriac.checkpoints
            WHERE checkpoints.run_id = run.run_id AND checkpoints.step = run.step - 1)
        )) AS due_since, now() - make_interval(secs => %(overdue_seconds)s) AS overdue_before
    ) AS waiting
    WHERE status = 'queued' AND due_since < overdue_before
        AND EXISTS (
            SELECT FROM celeriac.workers
            WHERE {CAN_TAKE_RUN} AND workers.started_at < overdue_before
        )
        AND NOT EXISTS (
            SELECT FROM celeriac.runs AS ahead
            WHERE ahead.queue = run.queue AND ahead.step_started_at >= overdue_before
                AND ahead.published_at <= run.published_at
        )
    """,
)

USE_COUNTED = Check(
    10,
    "a run's use is that of its calls",
    """
    SELECT run_id, format('the run says %%s tool calls, %%s and %%s tokens; its rows %%s, %%s, %%s',
        tool_calls_used, input_tokens_used, output_tokens_used, calls, tokens_in, tokens_out)
        AS detail
    FROM celeriac.runs, LATERAL (
        SELECT coalesce(sum(input_tokens), 0) AS tokens_in,
            coalesce(sum(output_tokens), 0) AS tokens_out
        FROM celeriac.model_calls WHERE model_calls.run_id = runs.run_id
    ) AS tokens, LATERAL (
        SELECT count(*) AS calls FROM celeriac.effects
        WHERE effects.run_id = runs.run_id AND rolls_back IS NULL
    ) AS effect
    WHERE (tool_calls_used, input_tokens_used, output_tokens_used)
        <> (calls, tokens_in, tokens_out)
    """,
)

LIMITS = Check(
    10,
    "no step began with a limit used up",
    # A limit can be passed only by the last response: by its tokens, or by the calls it asks for.
    """
    SELECT run_id, format('%%s: used %%s of %%s', limited, used, allowed) AS detail
    FROM celeriac.runs AS run CROSS JOIN LATERAL (
        SELECT max(started_at) AS last_started_at FROM celeriac.checkpoints
        WHERE checkpoints.run_id = run.run_id
    ) AS latest CROSS JOIN LATERAL (
        VALUES
            ('steps', run.step::numeric, 0::numeric, 0::numeric, %(default_steps)s::numeric),
            ('tool_calls', tool_calls_used, (
                SELECT count(*) FROM celeriac.effects AS asked
                WHERE asked.run_id = run.run_id AND asked.step = (
                    SELECT max(step) FROM celeriac.effects WHERE effects.run_id = run.run_id)
            ), 0, %(default_tool_calls)s),
            ('tokens', input_tokens_used + output_tokens_used, (
                SELECT input_tokens + output_tokens FROM celeriac.model_calls AS answer
                WHERE answer.run_id = run.run_id ORDER BY step DESC, attempt DESC LIMIT 1
            ), 1, %(default_tokens)s),
            ('wall_seconds', extract(epoch FROM last_started_at - run.started_at), 0, 0.000001,
                %(default_wall_seconds)s)
    ) AS used (limited, used, by_the_last, at_least, otherwise) CROSS JOIN LATERAL (
        SELECT coalesce((limits ->> limited)::numeric, otherwise) AS allowed
    ) AS limited_to
    WHERE used - coalesce(by_the_last, 0) + at_least > allowed
    """,
)

CHECKS: tuple[Check, ...] = (
    CLAIMS,
    IN_FLIGHT,
    EVENT_NUMBERS,
    TERMINAL_EVENT,
    ONE_EFFECT,
    EFFECT_OUTCOME,
    ATTEMPTS,
    LOCAL_CALLS,
    RUN_OUTCOME,
    DECISIONS,
    PROPOSALS,
    CHECKPOINTS,
    MESSAGE_POSITIONS,
    TOLD_RESULTS,
    CHECKPOINT_HASHES,
    MESSAGE_HASHES,
    RESULT_HASHES,
    FINGERPRINTS,
    APPROVAL_HASHES,
    ARTIFACTS,
    EFFECT_ARTIFACTS,
    OWNERS,
    ORPHANS,
    FORGOTTEN,
    USE_COUNTED,
    LIMITS,
)
