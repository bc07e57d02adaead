-- What operators look at: what waits and for how long, and who knocks without a token
-- (docs/operations.md).

-- Statuses that few runs have: to count them must not read those that have ended.
CREATE INDEX runs_attention ON celeriac.runs (created_at) WHERE status = 'needs_attention';
CREATE INDEX workers_dead ON celeriac.workers (dead_at) WHERE dead_at IS NOT NULL;

-- The caller's trace, as W3C Trace Context writes it; all steps of the run belong to it.
ALTER TABLE celeriac.runs ADD COLUMN traceparent text
    CHECK (traceparent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$');

-- Of all tenants together, so the API's role may not compute it itself; and in bounded time, however
-- much there is: what is counted stops at 100,000, and ages are those of the 1,000 oldest.
CREATE FUNCTION celeriac.read_gauges() RETURNS TABLE (name text, labels text[], value float8)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH queued AS (
        SELECT queue, coalesce((SELECT at FROM celeriac.events
                WHERE events.run_id = oldest.run_id AND seq = last_event_seq), created_at) AS since
        FROM (
            (SELECT run_id, queue, last_event_seq, created_at FROM celeriac.runs
                WHERE status = 'queued' ORDER BY published_at LIMIT 1000)
            UNION  -- nulls are the last of that order
            (SELECT run_id, queue, last_event_seq, created_at FROM celeriac.runs
                WHERE status = 'queued' AND published_at IS NULL LIMIT 1000)
        ) AS oldest
    ), running AS (
        SELECT step_started_at FROM celeriac.runs WHERE status = 'running' LIMIT 100000
    ), attention AS (
        SELECT run_id, paused_at FROM celeriac.runs
        WHERE status = 'needs_attention' ORDER BY created_at LIMIT 100000
    ), pending AS (
        SELECT created_at FROM celeriac.approvals WHERE status = 'pending' LIMIT 100000
    ), living AS (
        SELECT renewed_at, lease_until FROM celeriac.workers
        WHERE dead_at IS NULL AND stopped_at IS NULL
    ), verdicts AS (
        SELECT verdict FROM celeriac.workers
        WHERE dead_at > clock_timestamp() - interval '1 hour' LIMIT 100000
    )
    SELECT 'runs', ARRAY['queued', ''], count(*)::float8
    FROM (SELECT FROM celeriac.runs WHERE status = 'queued' LIMIT 100000) AS counted
    UNION ALL SELECT 'runs', ARRAY['running', ''], count(*) FROM running
    UNION ALL SELECT 'runs', ARRAY['needs_attention', ''], count(*) FROM attention
    UNION ALL SELECT 'runs', ARRAY['paused', phase], count(*)
    FROM (SELECT phase FROM celeriac.runs WHERE status = 'paused' LIMIT 100000) AS counted
    GROUP BY phase
    UNION ALL SELECT 'unpublished_steps', '{}', count(*)
    FROM (SELECT FROM celeriac.runs WHERE status = 'queued' AND published_at IS NULL
        LIMIT 100000) AS counted
    UNION ALL (SELECT 'queue_age_seconds', ARRAY[queue],
        max(extract(epoch FROM clock_timestamp() - since)) FROM queued
        GROUP BY queue ORDER BY 3 DESC LIMIT 50)
    UNION ALL SELECT 'step_age_seconds', '{}',
        coalesce(max(extract(epoch FROM clock_timestamp() - step_started_at)), 0) FROM running
    UNION ALL SELECT 'attention_age_seconds', '{}',
        coalesce(max(extract(epoch FROM clock_timestamp() - paused_at)), 0) FROM attention
    UNION ALL SELECT 'effects_unsettled', ARRAY[state], count(*)
    FROM (SELECT run_id FROM attention LIMIT 1000) AS stopped
        JOIN celeriac.effects USING (run_id)
    WHERE state IN ('unknown', 'known_bad') GROUP BY state
    UNION ALL SELECT 'approvals_pending', '{}', count(*) FROM pending
    UNION ALL SELECT 'approval_age_seconds', '{}',
        coalesce(max(extract(epoch FROM clock_timestamp() - created_at)), 0) FROM pending
    UNION ALL SELECT 'workers', ARRAY['alive'], count(*) FROM living
    WHERE lease_until > clock_timestamp()
    UNION ALL SELECT 'workers', ARRAY['silent'], count(*) FROM living
    WHERE lease_until <= clock_timestamp()
    UNION ALL SELECT 'lease_age_seconds', '{}',
        coalesce(max(extract(epoch FROM clock_timestamp() - renewed_at)), 0) FROM living
    UNION ALL SELECT 'worker_deaths_last_hour', ARRAY[verdict], count(*) FROM verdicts
    GROUP BY verdict
    UNION ALL SELECT 'scheduler_leads', '{}', count(*) FROM celeriac.leaders
    WHERE role = 'scheduler' AND held_until > clock_timestamp()
$$;
REVOKE EXECUTE ON FUNCTION celeriac.read_gauges FROM PUBLIC;

-- Addresses that asked with a token which opens nothing. They have no tenant in whose audit trail
-- they could stand, and anybody can be many of them: so each is one row, and beyond 1,000 all are one.
CREATE TABLE celeriac.strangers (
    address text PRIMARY KEY CHECK (length(address) <= 64),
    attempts bigint NOT NULL CHECK (attempts > 0),
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX strangers_last ON celeriac.strangers (last_at);

CREATE FUNCTION celeriac.note_strangers(addresses text[], counts bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    room integer;
    of_address text;
    more bigint;
BEGIN
    LOCK TABLE celeriac.strangers IN SHARE ROW EXCLUSIVE MODE;  -- or two would count the room at once
    room := 1000 - (SELECT count(*) FROM celeriac.strangers);
    FOR of_address, more IN SELECT * FROM unnest(addresses, counts) LOOP
        IF room <= 0 AND NOT EXISTS (SELECT FROM celeriac.strangers WHERE address = of_address) THEN
            of_address := 'others';
        END IF;
        INSERT INTO celeriac.strangers AS known (address, attempts) VALUES (of_address, more)
        ON CONFLICT (address) DO UPDATE
        SET attempts = known.attempts + excluded.attempts, last_at = clock_timestamp();
        room := 1000 - (SELECT count(*) FROM celeriac.strangers);
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION celeriac.note_strangers FROM PUBLIC;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        GRANT EXECUTE ON FUNCTION celeriac.read_gauges, celeriac.note_strangers TO celeriac_api;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT EXECUTE ON FUNCTION celeriac.read_gauges TO celeriac_worker;
        -- A scheduler forgets what is old.
        GRANT SELECT, DELETE ON celeriac.strangers TO celeriac_worker;
        GRANT SELECT, UPDATE (status, headers, body, pruned_at) ON celeriac.idempotency_keys
            TO celeriac_worker;
    END IF;
END $$;
