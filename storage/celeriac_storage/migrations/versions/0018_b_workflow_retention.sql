-- The log and the mailbox of a workflow are erased and pruned with its run.

CREATE OR REPLACE FUNCTION celeriac.take_payload(of_runs text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_erased CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE celeriac.runs SET input = NULL, generation_input = NULL, result = NULL,
        error = celeriac.kind_of_error(error),
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.messages SET body = NULL, erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.inbox SET hash = sha256(convert_to(body::text, 'UTF8')), body = NULL,
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    -- A reason is free text where a person gave it, and a code where the scheduler did.
    UPDATE celeriac.events SET data = celeriac.without_text(data, CASE type
        WHEN 'run.recovered' THEN '{}'
        WHEN 'run.needs_attention' THEN '{error}'
        ELSE '{text,why,message,error,reason}'
    END::text[])
    WHERE run_id = ANY (of_runs) AND data ?| '{text,why,message,error,reason}';
    UPDATE celeriac.artifacts SET unused_since = now_erased
    FROM celeriac.effects
    WHERE run_id = ANY (of_runs) AND result_artifact = artifacts.hash AND unused_since IS NULL;
    UPDATE celeriac.effects SET arguments = NULL, result = NULL,
        result_hash = coalesce(result_hash, result_artifact), result_artifact = NULL,
        error = celeriac.kind_of_error(error),
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.artifacts SET unused_since = now_erased
    FROM celeriac.activities
    WHERE run_id = ANY (of_runs) AND result_artifact = artifacts.hash AND unused_since IS NULL;
    UPDATE celeriac.activities SET arguments = NULL, result = NULL,
        result_hash = coalesce(result_hash, result_artifact), result_artifact = NULL,
        error = celeriac.kind_of_error(error), erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.mailbox SET body = NULL, erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    -- What the checks of an attempt read in it, and no words.
    UPDATE celeriac.effect_attempts SET evidence = (
        SELECT jsonb_object_agg(key, value) FROM jsonb_each(evidence)
        WHERE key IN ('by', 'is_over', 'verified', 'is_retried')
    )
    WHERE run_id = ANY (of_runs) AND evidence IS NOT NULL;
    UPDATE celeriac.model_calls SET selection = NULL,
        error = celeriac.kind_of_error(error)
    WHERE run_id = ANY (of_runs) AND (selection IS NOT NULL OR error IS NOT NULL);
    DELETE FROM celeriac.recalls WHERE run_id = ANY (of_runs);  -- by the memories' keys
    UPDATE celeriac.approval_decisions SET edited_arguments = NULL, answers = '{}',
        reason = CASE reason WHEN '' THEN '' ELSE '(erased)' END, erased_at = now_erased
    WHERE erased_at IS NULL
        AND approval_id IN (SELECT approval_id FROM celeriac.approvals WHERE run_id = ANY (of_runs));
    UPDATE celeriac.approvals SET arguments = NULL, intent = '(erased)', blast_radius = '(erased)',
        data_lineage = '["(erased)"]', permissions_touched = '["(erased)"]', erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.audit
    SET detail = celeriac.without_text(detail - 'answers', '{reason,message,why}')
    WHERE (run_id = ANY (of_runs) OR object = ANY (of_runs)
            OR object IN (SELECT approval_id FROM celeriac.approvals WHERE run_id = ANY (of_runs)))
        AND detail ?| '{reason,message,why,answers}';
END $$;

CREATE OR REPLACE FUNCTION celeriac.sweep_artifacts(at_most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found integer;
BEGIN
    WITH unused AS (
        SELECT hash FROM celeriac.artifacts
        WHERE unused_since IS NOT NULL AND stored_at < clock_timestamp() - interval '1 hour'
            AND NOT EXISTS (SELECT FROM celeriac.effects WHERE result_artifact = hash)
            AND NOT EXISTS (SELECT FROM celeriac.activities WHERE result_artifact = hash)
        ORDER BY unused_since LIMIT at_most FOR UPDATE SKIP LOCKED
    )
    DELETE FROM celeriac.artifacts USING unused WHERE artifacts.hash = unused.hash;
    GET DIAGNOSTICS found = ROW_COUNT;
    -- Somebody else's call refers to the rest: they are as used as any.
    UPDATE celeriac.artifacts SET unused_since = NULL
    WHERE unused_since IS NOT NULL
        AND (EXISTS (SELECT FROM celeriac.effects WHERE result_artifact = hash)
            OR EXISTS (SELECT FROM celeriac.activities WHERE result_artifact = hash));
    RETURN found;
END $$;

CREATE OR REPLACE FUNCTION celeriac.prune_runs(of_runs text[]) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pruned text[];
BEGIN
    -- The thread first: a run that is started in it meanwhile waits, and sees it pruned. Then the run:
    -- whoever resolves, reports or undoes has locked that.
    WITH free AS (
        SELECT tenant_id, thread_id FROM celeriac.threads
        WHERE (tenant_id, thread_id) IN (
            SELECT tenant_id, thread_id FROM celeriac.runs WHERE run_id = ANY (of_runs))
        FOR NO KEY UPDATE SKIP LOCKED
    ), held AS (
        SELECT run_id FROM celeriac.runs JOIN free USING (tenant_id, thread_id)
        WHERE run_id = ANY (of_runs) AND pruned_at IS NULL
        FOR UPDATE OF runs SKIP LOCKED
    )
    SELECT array_agg(run_id) INTO pruned FROM held;
    -- A statement of its own, which sees what was committed before the locks.
    SELECT coalesce(array_agg(run_id), '{}') INTO pruned FROM unnest(pruned) AS run_id
    WHERE celeriac.is_at_rest(run_id) AND NOT EXISTS (
        SELECT FROM celeriac.runs AS fork
        WHERE fork.forked_from = run_id AND fork.pruned_at IS NULL);
    PERFORM set_config('celeriac.retention', 'on', true);
    DELETE FROM celeriac.checkpoints WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.messages WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.inbox WHERE run_id = ANY (pruned) AND key IS NULL;
    DELETE FROM celeriac.events USING celeriac.runs AS run
    WHERE run.run_id = ANY (pruned) AND events.run_id = run.run_id AND seq < last_event_seq;
    DELETE FROM celeriac.model_calls WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.mailbox WHERE run_id = ANY (pruned) AND key IS NULL;
    DELETE FROM celeriac.selections WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.effect_attempts WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.effects AS effect
    WHERE run_id = ANY (pruned) AND kind = 'none' AND rolls_back IS NULL
        AND NOT coalesce(flags ? 'child', false) AND NOT EXISTS (
        SELECT FROM celeriac.approvals
        WHERE (approvals.run_id, approvals.call_id) = (effect.run_id, effect.call_id));
    PERFORM celeriac.take_payload(pruned);
    DELETE FROM celeriac.activities WHERE run_id = ANY (pruned);  -- its large values are unused now
    UPDATE celeriac.runs SET pruned_at = clock_timestamp(), pruned_to_seq = last_event_seq - 1,
        words_waiting = (
            SELECT count(*) FROM celeriac.inbox
            WHERE inbox.run_id = runs.run_id AND drained_step IS NULL)
    WHERE run_id = ANY (pruned);
    PERFORM set_config('celeriac.retention', 'off', true);
    RETURN pruned;
END $$;
