-- Who is signed in to the console (docs/console.md): whoever shows this cookie, or shows this one-time
-- token first.

CREATE TABLE celeriac.console_sessions (
    session_id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    user_id text NOT NULL CHECK (user_id <> ''),
    roles text[] NOT NULL,
    token_id text,  -- the token that opened it, and whose end is its end; NULL: another issuer's, or
                    -- a one-time token
    code_hash bytea UNIQUE CHECK (octet_length(code_hash) = 32),  -- sha256 of the one-time token
    code_expires_at timestamptz,
    hash bytea UNIQUE CHECK (octet_length(hash) = 32),  -- sha256 of the cookie; NULL: not opened yet
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_at timestamptz,
    expires_at timestamptz,
    ended_at timestamptz,
    CHECK ((code_hash IS NULL) = (code_expires_at IS NULL)),
    CHECK ((hash IS NULL) = (opened_at IS NULL) AND (hash IS NULL) = (expires_at IS NULL)),
    CHECK (hash IS NOT NULL OR code_hash IS NOT NULL)
);

CREATE FUNCTION celeriac.guard_console_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(OLD.session_id, OLD.tenant_id, OLD.user_id, OLD.roles, OLD.token_id, OLD.code_hash,
            OLD.code_expires_at, OLD.created_at)
        IS DISTINCT FROM ROW(NEW.session_id, NEW.tenant_id, NEW.user_id, NEW.roles, NEW.token_id,
            NEW.code_hash, NEW.code_expires_at, NEW.created_at)
        OR OLD.hash IS NOT NULL AND ROW(OLD.hash, OLD.opened_at, OLD.expires_at)
            IS DISTINCT FROM ROW(NEW.hash, NEW.opened_at, NEW.expires_at)
        OR OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at
    THEN
        RAISE EXCEPTION 'session %: whose it is, and that it was opened or has ended, never change',
            OLD.session_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_console_session BEFORE UPDATE ON celeriac.console_sessions FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_console_session();

-- By the cookie's hash alone, before it is known whose rows may be seen, as `find_token`.
CREATE FUNCTION celeriac.find_console_session(of_hash bytea) RETURNS TABLE (session_id text,
        tenant_id text, user_id text, roles text[], token_id text, expires_at timestamptz)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT session.session_id, session.tenant_id, session.user_id, session.roles,
        session.token_id, session.expires_at
    FROM celeriac.console_sessions AS session
    WHERE session.hash = of_hash AND session.ended_at IS NULL
        AND session.expires_at > clock_timestamp()
        AND (session.token_id IS NULL OR EXISTS (
            SELECT FROM celeriac.tokens AS token
            WHERE token.token_id = session.token_id AND token.revoked_at IS NULL
                AND (token.expires_at > clock_timestamp()) IS NOT FALSE
        ))
$$;

-- Of two that show the same one-time token, the row's lock lets one open the session.
CREATE FUNCTION celeriac.open_console_session(of_code_hash bytea, with_hash bytea, for_seconds float)
    RETURNS boolean
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH opened AS (
        UPDATE celeriac.console_sessions AS session SET hash = with_hash,
            opened_at = clock_timestamp(),
            expires_at = clock_timestamp() + make_interval(secs => for_seconds)
        WHERE session.code_hash = of_code_hash AND session.hash IS NULL
            AND session.code_expires_at > clock_timestamp() AND session.ended_at IS NULL
        RETURNING session.session_id, session.tenant_id, session.user_id
    ), noted AS (
        INSERT INTO celeriac.audit (tenant_id, actor, action, object, outcome, detail)
        SELECT tenant_id, user_id, 'console.sign_in', session_id, 'allowed', '{"one_time": true}'
        FROM opened
    )
    SELECT EXISTS (SELECT FROM opened)
$$;

REVOKE EXECUTE ON FUNCTION celeriac.find_console_session, celeriac.open_console_session FROM PUBLIC;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    ALTER TABLE celeriac.console_sessions ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.console_sessions USING (true);
    CREATE POLICY own_tenant ON celeriac.console_sessions AS RESTRICTIVE TO celeriac_api
        USING (tenant_id = ANY ((SELECT celeriac.current_tenants())::text[]));
    -- The hashes are nobody's to read, and a cookie is no more its owner's to change.
    GRANT SELECT (session_id, tenant_id, user_id, roles, token_id, created_at, opened_at,
        expires_at, ended_at) ON celeriac.console_sessions TO celeriac_api;
    GRANT INSERT ON celeriac.console_sessions TO celeriac_api;
    GRANT UPDATE (ended_at) ON celeriac.console_sessions TO celeriac_api;
    GRANT EXECUTE ON FUNCTION celeriac.find_console_session, celeriac.open_console_session
        TO celeriac_api;
END $$;

-- The calls that somebody has to look at, among all that were ever made.
CREATE INDEX effects_unsettled ON celeriac.effects (run_id) WHERE state IN ('unknown', 'known_bad');
