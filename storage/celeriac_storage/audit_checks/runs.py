"""What must hold of runs: their claims, endings, owners, use and place in the queue."""

from celeriac_storage.audit_checks.check import Check
from celeriac_storage.workers import CAN_TAKE_RUN

CLAIMS = Check(
    1,
    "a claim token stands on running runs only",
    """
    SELECT run_id, format('%%s, %%s a token', status,
        CASE WHEN claim_token IS NULL THEN 'without' ELSE 'with' END) AS detail
    FROM celeriac.runs WHERE (claim_token IS NOT NULL) <> (status = 'running')
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
        UNION ALL SELECT run_id, 'recalls' FROM celeriac.recalls
        UNION ALL SELECT run_id, 'selections' FROM celeriac.selections
        UNION ALL SELECT run_id, 'activities' FROM celeriac.activities
        UNION ALL SELECT run_id, 'mailbox' FROM celeriac.mailbox
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
    WHERE pruned_at IS NULL AND (tool_calls_used, input_tokens_used, output_tokens_used)
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
            ('wall_seconds', extract(epoch FROM last_started_at - run.started_at - waited), 0,
                0.000001, %(default_wall_seconds)s)
    ) AS used (limited, used, by_the_last, at_least, otherwise) CROSS JOIN LATERAL (
        SELECT coalesce((limits ->> limited)::numeric, otherwise) AS allowed
    ) AS limited_to
    WHERE pruned_at IS NULL AND used - coalesce(by_the_last, 0) + at_least > allowed
    """,
)
