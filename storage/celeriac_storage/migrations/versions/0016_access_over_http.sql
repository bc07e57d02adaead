-- The HTTP API makes and revokes tokens, and says who may decide what, for administrators of a tenant
-- (docs/api.md). Row-level security lets its role do so for the tenant of the request alone.

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        -- Whose a token is and what it may, never changes (guard_token).
        GRANT INSERT ON celeriac.tokens TO celeriac_api;
        GRANT UPDATE (revoked_at, revoked_by) ON celeriac.tokens TO celeriac_api;
        GRANT INSERT, UPDATE (roles, permissions, disabled_at) ON celeriac.principals
            TO celeriac_api;
        -- An answer that holds a secret is kept by nobody.
        GRANT UPDATE (pruned_at) ON celeriac.idempotency_keys TO celeriac_api;
    END IF;
END $$;
