-- Proposals and decisions (docs/approvals.md).
--
-- A row of approvals is one version of one call, for good: tool, arguments and what a reviewer is
-- shown never change in it. So its id names exactly what is decided; an edit makes another row.
-- What may be written here is checked here, because a worker's login must not be able to approve.

CREATE TABLE celeriac.principals (
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    user_id text NOT NULL CHECK (user_id <> ''),
    roles text[] NOT NULL DEFAULT '{}',
    permissions jsonb NOT NULL DEFAULT '{"*": []}',  -- tool → conditions on its arguments
    version integer NOT NULL DEFAULT 1,  -- counts changes, by trigger
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, user_id),
    CHECK (jsonb_typeof(permissions) = 'object')
);

CREATE TABLE celeriac.approvals (
    approval_id text PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    run_id text NOT NULL,
    call_id text NOT NULL,
    version smallint NOT NULL,  -- of the effect; each edit and each new proposal counts it up
    agent_hash text NOT NULL,  -- the code that proposed it: an edit is judged by its tools' schemas
    tool text NOT NULL,
    tool_version text NOT NULL,
    arguments jsonb,
    arguments_hash bytea NOT NULL,  -- the effect's fingerprint: of tool, version and arguments

    -- What a reviewer is shown. None of it may be missing.
    intent text NOT NULL CHECK (intent <> ''),
    reason text NOT NULL CHECK (reason <> ''),  -- why a person is asked
    data_lineage jsonb NOT NULL CHECK (jsonb_array_length(data_lineage) > 0),
    permissions_touched jsonb NOT NULL CHECK (jsonb_array_length(permissions_touched) > 0),
    blast_radius text NOT NULL CHECK (blast_radius <> ''),
    rollback_plan jsonb NOT NULL CHECK (
        (rollback_plan ->> 'kind' IN ('in_band', 'compensate', 'out_of_band', 'none')) IS TRUE),
    idempotency_key text NOT NULL CHECK (idempotency_key <> ''),
    allowed_decisions text[] NOT NULL DEFAULT '{approve,edit,reject}',

    requirement jsonb NOT NULL,  -- the review that these arguments need
    quorum smallint NOT NULL CHECK (quorum >= 1),
    policy_version text NOT NULL,  -- sha256 of the whole policy, of which the requirement is a part
    requested_by text NOT NULL,  -- the user who owns the run
    edited_from text REFERENCES celeriac.approvals,

    status text NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    surfaced_at timestamptz,  -- first shown to a person
    expires_at timestamptz,
    decided_at timestamptz,
    decided_by text,
    revoked_because text,
    consumed_at timestamptz,
    consumed_by_attempt smallint,
    erased_at timestamptz,
    key_id text,

    FOREIGN KEY (run_id, call_id) REFERENCES celeriac.effects,
    CONSTRAINT approvals_version UNIQUE (run_id, call_id, version),
    CONSTRAINT approvals_status CHECK (status IN ('pending', 'approved', 'rejected', 'expired',
        'cancelled', 'superseded', 'revoked')),
    CONSTRAINT approvals_arguments CHECK ((arguments IS NULL) = (erased_at IS NOT NULL)),
    CONSTRAINT approvals_irreversible CHECK (
        rollback_plan ->> 'kind' <> 'none' OR quorum >= 2
        OR jsonb_array_length(requirement -> 'checklist') > 0
    ),
    CONSTRAINT approvals_surfaced CHECK (
        surfaced_at IS NOT NULL OR status NOT IN ('approved', 'rejected', 'superseded')),
    CONSTRAINT approvals_decided CHECK (
        (status IN ('approved', 'rejected', 'superseded', 'revoked'))
        = (decided_at IS NOT NULL AND decided_by IS NOT NULL)
    ),
    CONSTRAINT approvals_revoked CHECK ((status = 'revoked') = (revoked_because IS NOT NULL)),
    CONSTRAINT approvals_consumed CHECK (
        (consumed_at IS NULL) = (consumed_by_attempt IS NULL)
        AND (consumed_at IS NULL OR status IN ('approved', 'revoked'))
    )
);
-- A call has one proposal that stands.
CREATE UNIQUE INDEX approvals_standing ON celeriac.approvals (run_id, call_id)
    WHERE status IN ('pending', 'approved');
CREATE INDEX approvals_pending ON celeriac.approvals (tenant_id, created_at)
    WHERE status = 'pending';
CREATE INDEX approvals_expiry ON celeriac.approvals (expires_at) WHERE status = 'pending';

CREATE TABLE celeriac.approval_decisions (
    approval_id text NOT NULL REFERENCES celeriac.approvals,
    reviewer text NOT NULL,
    decision text NOT NULL CHECK (decision IN ('approve', 'edit', 'reject')),
    arguments_hash bytea NOT NULL,  -- of what the reviewer was shown
    rendering_hash bytea NOT NULL,  -- of all that the reviewer was shown
    roles text[] NOT NULL,  -- the reviewer's, at that moment
    principal_version integer NOT NULL,  -- 0: never registered
    policy_version text NOT NULL,
    reason text NOT NULL,  -- may be empty, except where one rejects
    answers jsonb NOT NULL,  -- question → answer
    edited_arguments jsonb,
    shown_at timestamptz NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seconds_to_decision double precision NOT NULL,
    erased_at timestamptz,
    key_id text,
    PRIMARY KEY (approval_id, reviewer),  -- one person decides once
    CHECK (decision <> 'reject' OR reason <> ''),
    CHECK ((decision = 'edit') = (edited_arguments IS NOT NULL) OR erased_at IS NOT NULL)
);

CREATE TABLE celeriac.audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,  -- such as approval.shown, approval.approve, principal.set
    object text NOT NULL,  -- an approval's or a principal's id
    run_id text,
    outcome text NOT NULL CHECK (outcome IN ('allowed', 'denied')),
    detail jsonb NOT NULL
);
CREATE INDEX audit_object ON celeriac.audit (object, action);
CREATE INDEX audit_run ON celeriac.audit (run_id) WHERE run_id IS NOT NULL;

-- Append-only -------------------------------------------------------------------------------------

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.approval_decisions
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.audit
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.approvals
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.principals
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.count_principal_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    NEW.changed_at := clock_timestamp();
    RETURN NEW;
END $$;
CREATE TRIGGER counted BEFORE UPDATE ON celeriac.principals FOR EACH ROW
    EXECUTE FUNCTION celeriac.count_principal_change();

-- Transitions -------------------------------------------------------------------------------------

CREATE FUNCTION celeriac.approval_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT was = now_is OR CASE was
        WHEN 'pending' THEN now_is IN ('approved', 'rejected', 'expired', 'cancelled', 'superseded')
        WHEN 'approved' THEN now_is = 'revoked'
        ELSE false
    END
$$;

CREATE FUNCTION celeriac.guard_approval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT celeriac.approval_may_become(OLD.status, NEW.status) THEN
        RAISE EXCEPTION 'approval % is %: it cannot become %',
            OLD.approval_id, OLD.status, NEW.status USING ERRCODE = 'CE002';
    END IF;
    IF ROW(OLD.approval_id, OLD.tenant_id, OLD.run_id, OLD.call_id, OLD.version, OLD.agent_hash,
            OLD.tool, OLD.tool_version, OLD.arguments_hash, OLD.reason, OLD.rollback_plan,
            OLD.idempotency_key, OLD.requirement, OLD.quorum, OLD.policy_version, OLD.requested_by,
            OLD.edited_from, OLD.created_at, OLD.expires_at)
        IS DISTINCT FROM
        ROW(NEW.approval_id, NEW.tenant_id, NEW.run_id, NEW.call_id, NEW.version, NEW.agent_hash,
            NEW.tool, NEW.tool_version, NEW.arguments_hash, NEW.reason, NEW.rollback_plan,
            NEW.idempotency_key, NEW.requirement, NEW.quorum, NEW.policy_version, NEW.requested_by,
            NEW.edited_from, NEW.created_at, NEW.expires_at)
        OR NEW.erased_at IS NULL AND ROW(OLD.arguments, OLD.intent, OLD.data_lineage,
            OLD.permissions_touched, OLD.blast_radius)
        IS DISTINCT FROM ROW(NEW.arguments, NEW.intent, NEW.data_lineage,
            NEW.permissions_touched, NEW.blast_radius)
        OR OLD.surfaced_at IS NOT NULL AND NEW.surfaced_at IS DISTINCT FROM OLD.surfaced_at
        OR OLD.consumed_at IS NOT NULL AND NEW.consumed_at IS DISTINCT FROM OLD.consumed_at
    THEN
        RAISE EXCEPTION 'approval %: what is proposed, shown or consumed never changes',
            OLD.approval_id USING ERRCODE = 'CE003';
    END IF;
    IF OLD.status = NEW.status THEN
        RETURN NEW;
    END IF;
    -- Each ending has its evidence in rows that a worker may not write, or in the clock.
    IF NOT (CASE NEW.status
        -- By the decision's own moment, which cannot be in the past: a look at the clock from here
        -- would refuse what was decided in the last instant.
        WHEN 'approved' THEN NEW.decided_at >= statement_timestamp()
            AND (NEW.expires_at > NEW.decided_at) IS NOT FALSE AND (
            SELECT count(*) FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'approve'
                AND arguments_hash = NEW.arguments_hash) >= NEW.quorum
        WHEN 'rejected' THEN EXISTS (SELECT FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'reject')
        WHEN 'superseded' THEN EXISTS (SELECT FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'edit')
        WHEN 'expired' THEN (NEW.expires_at <= clock_timestamp()) IS TRUE
        ELSE true
    END) THEN
        RAISE EXCEPTION 'approval %: nothing says that it is %', OLD.approval_id, NEW.status
            USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_approval BEFORE UPDATE ON celeriac.approvals FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_approval();

-- A call that needs a decision is executed only after one. Without a WHEN clause, as `guard_run`.
CREATE FUNCTION celeriac.guard_approved_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.requirement IS NULL AND OLD.requirement IS NULL THEN
        RETURN NEW;
    END IF;
    IF OLD.requirement IS DISTINCT FROM NEW.requirement
        AND OLD.state NOT IN ('planned', 'proposed') THEN
        RAISE EXCEPTION 'effect % of run % is %: what review it needs is frozen',
            OLD.call_id, OLD.run_id, OLD.state USING ERRCODE = 'CE003';
    END IF;
    IF OLD.state = 'planned' AND NEW.state IN ('in_flight', 'committed', 'failed')
        OR NEW.requirement IS NULL
    THEN
        RAISE EXCEPTION 'effect % of run % needs a decision: it cannot become %',
            OLD.call_id, OLD.run_id, NEW.state USING ERRCODE = 'CE006';
    END IF;
    IF OLD.state = 'proposed' AND NEW.state = 'approved' AND NOT EXISTS (
        SELECT FROM celeriac.approvals
        WHERE run_id = NEW.run_id AND call_id = NEW.call_id AND version = NEW.version
            AND status = 'approved' AND arguments_hash = NEW.fingerprint
    ) THEN
        RAISE EXCEPTION 'effect % of run % has no approval of its version % and these arguments',
            OLD.call_id, OLD.run_id, NEW.version USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER needs_decision BEFORE UPDATE ON celeriac.effects FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_approved_effect();

-- Rights ------------------------------------------------------------------------------------------

-- Reads principals and keeps them as they are until the transaction ends. A row lock takes the right
-- to update, which a worker must not have; so it is this function's owner who takes it.
CREATE FUNCTION celeriac.lock_principals(of_tenant text, of_users text[])
    RETURNS TABLE (user_id text, roles text[], permissions jsonb, version integer,
        disabled_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT user_id, roles, permissions, version, disabled_at FROM celeriac.principals
    WHERE tenant_id = of_tenant AND user_id = ANY (of_users)
    ORDER BY user_id FOR SHARE
$$;

-- A worker proposes and consumes. It may not decide: neither decisions nor principals can it write.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT ON celeriac.approval_decisions, celeriac.principals TO celeriac_worker;
        GRANT SELECT, INSERT ON celeriac.approvals, celeriac.audit TO celeriac_worker;
        GRANT UPDATE (status, revoked_because, consumed_at, consumed_by_attempt)
            ON celeriac.approvals TO celeriac_worker;
    END IF;
END $$;
