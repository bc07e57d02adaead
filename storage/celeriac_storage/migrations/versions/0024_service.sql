-- How full budgets are, for a login that sees no tenant's rows by itself (docs/operations.md): of all
-- tenants together, and nothing that would tell whose a budget is.
CREATE FUNCTION celeriac.read_budget_gauges()
    RETURNS TABLE (name text, labels text[], value float8)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH budget AS (
        SELECT scope, measure, gone / nullif(hard_limit, 0) AS ratio,
            CASE WHEN gone >= hard_limit THEN 'used_up' WHEN gone >= soft_limit THEN 'warned'
                ELSE 'open' END AS state
        FROM (
            SELECT scope, measure, soft_limit, hard_limit, used + reserved AS gone
            FROM celeriac.budgets LIMIT 100000
        ) AS counted
    )
    SELECT 'budgets', ARRAY[scope, measure, state], count(*)::float8
    FROM budget GROUP BY scope, measure, state
    UNION ALL SELECT 'budget_use_ratio', ARRAY[scope, measure], max(ratio)
    FROM budget WHERE ratio IS NOT NULL GROUP BY scope, measure
$$;
REVOKE EXECUTE ON FUNCTION celeriac.read_budget_gauges FROM PUBLIC;

-- Vectors of an embedder that no agent has any more are pruned with old runs (docs/memory.md).
CREATE INDEX memory_vectors_made ON celeriac.memory_vectors (embedder, made_at);

-- The API searches memories by meaning, and makes the vectors that the owner's lack as a worker does:
-- by its row-level security those of the request's owner alone (docs/memory.md).

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        GRANT EXECUTE ON FUNCTION celeriac.read_budget_gauges TO celeriac_api;
        GRANT INSERT, UPDATE (version, embedding, made_at) ON celeriac.memory_vectors
            TO celeriac_api;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT EXECUTE ON FUNCTION celeriac.read_budget_gauges TO celeriac_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_retention') THEN
        GRANT DELETE ON celeriac.memory_vectors TO celeriac_retention;
    END IF;
END $$;
