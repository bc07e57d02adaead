-- The HTTP API: who may come in, what was asked before, and whose rows a request sees (docs/api.md).

CREATE TABLE celeriac.tokens (
    token_id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    user_id text NOT NULL CHECK (user_id <> ''),
    name text NOT NULL CHECK (name <> ''),
    prefix text NOT NULL,  -- of the token, for people to tell it by; the rest is known to its owner
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),  -- sha256 of the whole token
    roles text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    last_used_at timestamptz,  -- to the minute: not a write for each request
    last_refused_at timestamptz,  -- likewise, after it was revoked or had expired
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE INDEX tokens_listed ON celeriac.tokens (tenant_id, created_at);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.tokens
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_token() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(OLD.token_id, OLD.tenant_id, OLD.user_id, OLD.name, OLD.hash, OLD.roles, OLD.created_at,
            OLD.created_by, OLD.expires_at)
        IS DISTINCT FROM ROW(NEW.token_id, NEW.tenant_id, NEW.user_id, NEW.name, NEW.hash,
            NEW.roles, NEW.created_at, NEW.created_by, NEW.expires_at)
        OR OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at
    THEN
        RAISE EXCEPTION 'token %: whose it is, what it may and that it is revoked never change',
            OLD.token_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_token BEFORE UPDATE ON celeriac.tokens FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_token();

-- One request and its answer, written in the transaction of what it did. An answer that was pruned
-- leaves its row: a repeat that comes later still does nothing again.
CREATE TABLE celeriac.idempotency_keys (
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    principal text NOT NULL,
    operation text NOT NULL,
    key text NOT NULL CHECK (key ~ '^[!-~]{1,255}$'),
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    status smallint,
    headers jsonb,
    body text,  -- as it was sent
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    pruned_at timestamptz,
    PRIMARY KEY (tenant_id, principal, operation, key),
    CHECK ((status IS NULL) = (body IS NULL) AND (status IS NULL) = (headers IS NULL)),
    CHECK (pruned_at IS NULL OR body IS NULL)
);
CREATE INDEX idempotency_keys_kept ON celeriac.idempotency_keys (created_at)
    WHERE pruned_at IS NULL;

-- A claim without an answer exists only inside its own transaction.
CREATE FUNCTION celeriac.guard_idempotency_answer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM celeriac.idempotency_keys
        WHERE (tenant_id, principal, operation, key)
            = (NEW.tenant_id, NEW.principal, NEW.operation, NEW.key)
            AND status IS NULL AND pruned_at IS NULL
    ) THEN
        RAISE EXCEPTION 'idempotency key % of % was claimed and not answered', NEW.key,
            NEW.principal USING ERRCODE = 'CE005';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER is_answered AFTER INSERT ON celeriac.idempotency_keys
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_idempotency_answer();

-- The pages of lists ---------------------------------------------------------------------------------

DROP INDEX celeriac.runs_listed;
CREATE INDEX runs_listed ON celeriac.runs (created_at, run_id);
CREATE INDEX runs_of_user ON celeriac.runs (tenant_id, user_id, created_at, run_id);

-- Tenants --------------------------------------------------------------------------------------------

-- The tenants whose rows this transaction may see, by `SET LOCAL celeriac.tenant`: one, or several
-- separated by commas. NULL, and so none, where nothing was set.
CREATE FUNCTION celeriac.current_tenants() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT string_to_array(nullif(current_setting('celeriac.tenant', true), ''), ',')
$$;

-- Whether the run is one of them. Volatile, unlike a subquery in its place: it sees a run that the
-- same statement has just inserted, as `start` does together with the run's first message.
CREATE FUNCTION celeriac.sees_run(of_run text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM celeriac.runs WHERE run_id = of_run);
END $$;

-- Row-level security hides nothing from the tables' owner, who migrates, and nothing from workers,
-- who serve every tenant: the first policy lets everybody see all rows whom grants let see the table.
-- The second one takes from that, for the role of the API alone, what is another tenant's.
DO $$
DECLARE
    of_tenant text;
    of_run text;
    is_ours CONSTANT text := 'tenant_id = ANY ((SELECT celeriac.current_tenants())::text[])';
    run_is_ours CONSTANT text :=
        'EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = %I.run_id)';
BEGIN
    BEGIN
        CREATE ROLE celeriac_api NOLOGIN;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;
        WHEN insufficient_privilege THEN
            RAISE NOTICE 'role celeriac_api was not created: this login may not create roles';
    END;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    FOREACH of_tenant IN ARRAY '{tenants,users,threads,runs,approvals,principals,audit,tokens,
        idempotency_keys}'::text[]
    LOOP
        EXECUTE format('ALTER TABLE celeriac.%I ENABLE ROW LEVEL SECURITY', of_tenant);
        EXECUTE format('CREATE POLICY everybody ON celeriac.%I USING (true)', of_tenant);
        EXECUTE format('CREATE POLICY own_tenant ON celeriac.%I AS RESTRICTIVE TO celeriac_api'
            ' USING (%s)', of_tenant, is_ours);
    END LOOP;
    FOREACH of_run IN ARRAY '{checkpoints,messages,inbox,events,effects,effect_attempts,
        model_calls}'::text[]
    LOOP
        EXECUTE format('ALTER TABLE celeriac.%I ENABLE ROW LEVEL SECURITY', of_run);
        EXECUTE format('CREATE POLICY everybody ON celeriac.%I USING (true)', of_run);
        EXECUTE format('CREATE POLICY own_tenant ON celeriac.%I AS RESTRICTIVE TO celeriac_api'
            ' USING (%s) WITH CHECK (celeriac.sees_run(run_id))',
            of_run, format(run_is_ours, of_run));
    END LOOP;
    ALTER TABLE celeriac.approval_decisions ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.approval_decisions USING (true);
    CREATE POLICY own_tenant ON celeriac.approval_decisions AS RESTRICTIVE TO celeriac_api
        USING (EXISTS (SELECT FROM celeriac.approvals AS mine
            WHERE mine.approval_id = approval_decisions.approval_id));
    -- Content belongs to whoever's call it is the result of; who knows it may add it.
    ALTER TABLE celeriac.artifacts ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.artifacts USING (true);
    CREATE POLICY own_tenant ON celeriac.artifacts AS RESTRICTIVE FOR SELECT TO celeriac_api
        USING (EXISTS (SELECT FROM celeriac.effects AS mine
            WHERE mine.result_artifact = artifacts.hash));

    GRANT USAGE ON SCHEMA celeriac TO celeriac_api;
    GRANT SELECT ON ALL TABLES IN SCHEMA celeriac TO celeriac_api;
    REVOKE SELECT ON celeriac.tokens FROM celeriac_api;
    GRANT SELECT (token_id, tenant_id, user_id, name, prefix, roles, created_at, created_by,
        expires_at, revoked_at, revoked_by, last_used_at) ON celeriac.tokens TO celeriac_api;
    GRANT INSERT ON celeriac.tenants, celeriac.users, celeriac.threads, celeriac.runs,
        celeriac.messages, celeriac.inbox, celeriac.events, celeriac.artifacts,
        celeriac.effect_attempts, celeriac.approvals, celeriac.approval_decisions, celeriac.audit,
        celeriac.idempotency_keys TO celeriac_api;
    GRANT UPDATE ON celeriac.threads, celeriac.runs, celeriac.effects TO celeriac_api;
    GRANT UPDATE (status, surfaced_at, decided_at, decided_by, revoked_because)
        ON celeriac.approvals TO celeriac_api;
    GRANT UPDATE (status, headers, body) ON celeriac.idempotency_keys TO celeriac_api;
    GRANT SELECT ON celeriac_schema_version TO celeriac_api;

    -- Whoever migrates also serves, on one machine. A superuser may take any role as it is.
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        BEGIN
            EXECUTE format('GRANT celeriac_api TO %I', current_user);
        EXCEPTION
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'celeriac_api was not granted to this login, which may not do so';
            WHEN internal_error THEN NULL;  -- another database's migration does the same just now
        END;
    END IF;
END $$;
CREATE INDEX effects_artifact ON celeriac.effects (result_artifact)
    WHERE result_artifact IS NOT NULL;

-- Whose token it is, before it is known which tenant's rows may be seen. By its hash alone, so that
-- the API's role can neither list the tokens of others nor read a hash.
CREATE FUNCTION celeriac.find_token(of_hash bytea) RETURNS TABLE (token_id text, tenant_id text,
        user_id text, roles text[], refused_because text, is_first_refusal boolean)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH found AS (
        SELECT token.*, CASE
                WHEN token.revoked_at IS NOT NULL THEN 'revoked'
                WHEN token.expires_at <= clock_timestamp() THEN 'expired'
            END AS why
        FROM celeriac.tokens AS token WHERE hash = of_hash
    ), used AS (
        UPDATE celeriac.tokens AS token SET last_used_at = clock_timestamp() FROM found
        WHERE token.token_id = found.token_id AND found.why IS NULL
            AND (found.last_used_at > clock_timestamp() - interval '1 min') IS NOT TRUE
    ), refused AS (
        UPDATE celeriac.tokens AS token SET last_refused_at = clock_timestamp() FROM found
        WHERE token.token_id = found.token_id AND found.why IS NOT NULL
            AND (found.last_refused_at > clock_timestamp() - interval '1 min') IS NOT TRUE
        RETURNING token.token_id
    )
    SELECT found.token_id, found.tenant_id, found.user_id, found.roles, found.why,
        EXISTS (SELECT FROM refused)
    FROM found
$$;

REVOKE EXECUTE ON FUNCTION celeriac.find_token FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        GRANT EXECUTE ON FUNCTION celeriac.find_token TO celeriac_api;
    END IF;
END $$;
