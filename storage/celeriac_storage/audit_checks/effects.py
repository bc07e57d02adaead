"""What must hold of tool calls and the attempts at them."""

from celeriac_storage.audit_checks.check import TERMINAL, Check, is_whole

IN_FLIGHT = Check(
    1,
    "no call is in flight on a terminal run",  # what a lost worker leaves is `unknown` by then
    f"""
    SELECT run_id, format('call %%s, run %%s', call_id, status) AS detail
    FROM celeriac.effects JOIN celeriac.runs USING (run_id)
    WHERE state = 'in_flight' AND status IN {TERMINAL}
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
    # By attempt, the outcome that became known last; of all but the latest, before the next began.
    # Those are certainly not done, or unknown and followed by one that was begun knowing that (of
    # which an erased run says no more). A worker that was
    # thought to be dead may say so too: `failed`; or, at any time after that, `committed`. What
    # follows an unknown one does not fail: that would say that the call changed nothing.
    f"""
    SELECT run_id, format('call %%s is %%s at attempt %%s, its attempts: %%s', call_id, state,
        effect.attempt, coalesce(attempts.outcomes::text, 'none')) AS detail
    FROM celeriac.effects AS effect, LATERAL (
        SELECT array_agg(outcome ORDER BY number) AS outcomes, bool_and(is_complete) AS is_complete,
            coalesce(bool_and(outcome IN ('not_done', 'failed')
                    OR outcome = 'unknown' AND is_doubt_known)
                FILTER (WHERE number < effect.attempt), true) AS may_follow,
            array_agg(number ORDER BY number) AS numbers,
            -- What was decided of the latest attempt, whatever its own worker has told after that.
            bool_or(has_failed) FILTER (WHERE number = effect.attempt) AS has_failed,
            bool_or(is_not_done) FILTER (WHERE number = effect.attempt) AS is_not_done,
            bool_or(follows_doubt) FILTER (WHERE number = effect.attempt) AS follows_doubt
        FROM (
            SELECT entry.attempt AS number,
                (array_agg(entry.outcome ORDER BY entry.entry DESC)
                    FILTER (WHERE following.at IS NULL OR entry.at < following.at))[1] AS outcome,
                bool_or(entry.outcome = 'failed') AS has_failed,
                bool_or(entry.outcome = 'not_done') AS is_not_done,
                coalesce(bool_or(entry.evidence ? 'follows_doubt'), false) AS follows_doubt,
                coalesce(bool_or(following.evidence ? 'follows_doubt'), false) OR EXISTS (
                    SELECT FROM celeriac.runs AS erased
                    WHERE erased.run_id = effect.run_id AND erased.erased_at IS NOT NULL
                ) AS is_doubt_known,
                min(entry.entry) = 0 AND max(entry.entry) = count(*) - 1 AS is_complete
            FROM celeriac.effect_attempts AS entry
            LEFT JOIN celeriac.effect_attempts AS following
                ON (following.run_id, following.call_id, following.attempt, following.entry)
                    = (entry.run_id, entry.call_id, entry.attempt + 1, 0)
            WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
            GROUP BY entry.attempt
        ) AS attempt
    ) AS attempts
    WHERE kind = 'external' AND {is_whole("effect")} AND NOT CASE
        WHEN state IN ('planned', 'proposed', 'approved', 'rejected', 'expired', 'invalid')
            OR state = 'precondition_failed' AND effect.attempt = 0
            -- An undo that a person has made by hand before anybody tried.
            OR state = 'committed' AND rolls_back IS NOT NULL AND effect.attempt = 0 THEN
            effect.attempt = 0 AND outcomes IS NULL
        ELSE outcomes IS NOT NULL AND is_complete AND may_follow
            AND numbers = ARRAY(SELECT generate_series(1, effect.attempt)::smallint)
            AND CASE state
                -- A worker that was thought to be dead may have told what came of its own attempt.
                WHEN 'in_flight' THEN outcomes[effect.attempt] IN ('started', 'committed', 'failed')
                WHEN 'unknown' THEN outcomes[effect.attempt] IN ('unknown', 'committed', 'failed')
                WHEN 'not_done' THEN outcomes[effect.attempt] IN ('not_done', 'committed', 'failed')
                WHEN 'precondition_failed' THEN is_not_done
                    AND outcomes[effect.attempt] IN ('not_done', 'failed', 'committed')
                WHEN 'failed' THEN has_failed AND (NOT follows_doubt
                        OR error ->> 'kind' = 'not_done' OR rolls_back IS NOT NULL)
                    AND outcomes[effect.attempt] IN ('failed', 'committed')
                WHEN 'rolled_back' THEN outcomes[effect.attempt]
                    IN ('committed', 'known_bad')
                ELSE outcomes[effect.attempt] = state
            END
    END
    """,
)

RECEIPTS = Check(
    3,
    "a change of files elsewhere is settled by a receipt of that call and that request",
    # Or by a person, once somebody else's change was found.
    """
    SELECT run_id, format('call %%s is %%s at attempt %%s, %%s', call_id, state, effect.attempt,
        CASE WHEN receipt IS NULL THEN 'without a receipt' ELSE 'with a receipt of call '
            || (receipt ->> 'tool_call_id') || ' for another request' END) AS detail
    FROM celeriac.effects AS effect LEFT JOIN LATERAL (
        SELECT later.evidence -> 'receipt' AS receipt, first.evidence ->> 'nonce' AS nonce
        FROM celeriac.effect_attempts AS first LEFT JOIN celeriac.effect_attempts AS later
            ON (later.run_id, later.call_id, later.attempt)
                = (first.run_id, first.call_id, first.attempt) AND later.evidence ? 'receipt'
        WHERE (first.run_id, first.call_id, first.attempt, first.entry)
            = (effect.run_id, effect.call_id, effect.attempt, 0)
    ) AS given ON true
    WHERE flags ? 'elsewhere' AND flags ? 'mutates_workspace' AND state IN ('committed', 'failed')
        AND ((receipt ->> 'tool_call_id', receipt #>> '{workspace,nonce}')
            IS DISTINCT FROM (call_id, nonce))
        -- What was not known when its run was cancelled, a person may settle later.
        AND NOT EXISTS (
            SELECT FROM celeriac.effect_attempts AS unanswered
            WHERE (unanswered.run_id, unanswered.call_id, unanswered.attempt, outcome)
                = (effect.run_id, effect.call_id, effect.attempt, 'unknown')
                AND NOT unanswered.evidence ? 'receipt'
        )
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
            AND NOT (state = 'committed' AND rolls_back IS NOT NULL)
    )
    """,
)
