-- Runs that go on from where another one stood (docs/replay.md).

-- A fork reads the messages of its origin where they are, so many of them as `history_until` says.
ALTER TABLE celeriac.runs ADD CONSTRAINT runs_fork CHECK (
    (forked_from IS NULL) = (forked_step IS NULL)
    AND (forked_from IS NULL OR history_until IS NOT NULL AND parent_run_id IS NULL)
);

-- Whether nothing more is to happen with the run: it has ended; no call of it waits for a word about
-- what came of it; no run goes on that has it in view, in its thread or in one that a fork has begun
-- from that, as its child, or undoing it.
CREATE OR REPLACE FUNCTION celeriac.is_at_rest(of_run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM celeriac.runs AS run
        WHERE run_id = of_run AND status IN ('completed', 'failed', 'cancelled')
            AND NOT EXISTS (
                SELECT FROM celeriac.effects
                WHERE effects.run_id = run.run_id AND state IN ('in_flight', 'unknown', 'known_bad')
            )
            AND NOT EXISTS (
                WITH RECURSIVE thread AS (
                    SELECT run.tenant_id, run.thread_id
                    UNION
                    SELECT fork.tenant_id, fork.thread_id
                    FROM thread
                    JOIN celeriac.runs AS origin USING (tenant_id, thread_id)
                    JOIN celeriac.runs AS fork ON fork.forked_from = origin.run_id
                )
                SELECT FROM thread JOIN celeriac.runs AS beside USING (tenant_id, thread_id)
                WHERE beside.status NOT IN ('completed', 'failed', 'cancelled')
            )
            AND NOT EXISTS (
                SELECT FROM celeriac.runs AS child
                WHERE child.parent_run_id = run.run_id
                    AND child.status NOT IN ('completed', 'failed', 'cancelled')
            )
    )
$$;

-- Pruning is to keep a run that a fork was made from. It compared a fork's origin with the fork's own
-- id, for that was the nearest column of the name, and so kept none.
DO $$
DECLARE
    written CONSTANT text := pg_get_functiondef('celeriac.prune_runs(text[])'::regprocedure);
    mended CONSTANT text :=
        replace(written, 'fork.forked_from = run_id', 'fork.forked_from = run_id.run_id');
BEGIN
    IF mended = written THEN
        RAISE EXCEPTION 'celeriac.prune_runs does not say any more which forks keep a run';
    END IF;
    EXECUTE mended;
END $$;
