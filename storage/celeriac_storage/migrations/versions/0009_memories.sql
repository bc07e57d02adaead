-- Long-term memory (docs/memory.md): what is kept of a user, the decision that each row rests on, and
-- what a model call was shown of it.
--
-- A row of memories is the latest version of one key. It names its decision by a foreign key that
-- takes in owner, key, kind and the hash of the content, so there is no row that nobody allowed.

-- One row for each candidate, kept or not. It holds no content: of what was refused there is nothing
-- but a hash, and that of what is left once sensitive parts are withheld.
CREATE TABLE celeriac.memory_decisions (
    decision_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL,
    user_id text NOT NULL,  -- the owner: the run's user, or whom the request was authenticated for
    verdict text NOT NULL CHECK (verdict IN ('allow', 'refuse')),
    reason text NOT NULL CHECK (reason <> ''),
    namespace text,  -- NULL, as the key and the kind, if it could be none
    memory_key text,
    kind text CHECK (kind IN ('semantic', 'episodic', 'procedural')),
    content_hash bytea NOT NULL CHECK (octet_length(content_hash) = 32),
    origin text NOT NULL CHECK (origin IN ('user', 'tool', 'model', 'person')),
    -- Where it comes from, by value: the run may be pruned, and the memory stays.
    run_id text,
    call_id text,
    message_position integer,
    source_call_id text,
    approval_id text,
    proposed_by text NOT NULL CHECK (proposed_by <> ''),  -- an agent, or a person
    policy_version text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    erased_at timestamptz,
    key_id text,
    FOREIGN KEY (tenant_id, user_id) REFERENCES celeriac.users,
    CHECK ((run_id IS NULL) = (call_id IS NULL)),
    CHECK (verdict = 'refuse' OR kind IS NOT NULL AND namespace IS NOT NULL
        AND memory_key IS NOT NULL OR erased_at IS NOT NULL),
    CHECK (verdict = 'refuse' OR kind <> 'procedural' OR approval_id IS NOT NULL),
    -- The target of the memories' foreign key.
    CONSTRAINT memory_decisions_allow UNIQUE
        (decision_id, tenant_id, user_id, namespace, memory_key, kind, content_hash, verdict)
);
CREATE UNIQUE INDEX memory_decisions_call ON celeriac.memory_decisions (run_id, call_id)
    WHERE run_id IS NOT NULL;
CREATE INDEX memory_decisions_owner ON celeriac.memory_decisions (tenant_id, user_id, decision_id);

CREATE TABLE celeriac.memories (
    tenant_id text NOT NULL,
    user_id text NOT NULL,
    namespace text NOT NULL CHECK (namespace ~ '^[^/\\[:cntrl:]]{1,128}$'),
    memory_key text NOT NULL CHECK (memory_key ~ '^[^/\\[:cntrl:]]{1,128}$'),
    kind text NOT NULL CHECK (kind IN ('semantic', 'episodic', 'procedural')),
    version integer NOT NULL CHECK (version >= 1),  -- counts every change, deletions too
    content jsonb,
    content_hash bytea NOT NULL,  -- by trigger, of content::text
    search tsvector,
    decision_id bigint NOT NULL,
    verdict text NOT NULL DEFAULT 'allow' CHECK (verdict = 'allow'),
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,
    deleted_by text,
    erased_at timestamptz,
    key_id text,
    PRIMARY KEY (tenant_id, user_id, namespace, memory_key),
    FOREIGN KEY (tenant_id, user_id) REFERENCES celeriac.users,
    CONSTRAINT memories_decided FOREIGN KEY
        (decision_id, tenant_id, user_id, namespace, memory_key, kind, content_hash, verdict)
        REFERENCES celeriac.memory_decisions
        (decision_id, tenant_id, user_id, namespace, memory_key, kind, content_hash, verdict),
    CONSTRAINT memories_deleted CHECK (
        (content IS NULL) = (deleted_at IS NOT NULL)
        AND (content IS NULL) = (search IS NULL)
        AND (deleted_at IS NULL) = (deleted_by IS NULL)
    )
) WITH (fillfactor = 90);
CREATE INDEX memories_expiry ON celeriac.memories (expires_at)
    WHERE expires_at IS NOT NULL AND deleted_at IS NULL;

-- Chosen once for a step, before its model is asked: whoever makes the step again asks the same.
CREATE TABLE celeriac.recalls (
    run_id text NOT NULL REFERENCES celeriac.runs,
    step integer NOT NULL,
    selection jsonb NOT NULL,  -- keys and versions, what was dropped and why; no content
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step) WITH (fillfactor = 100)
);

-- Append-only ------------------------------------------------------------------------------------

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.memory_decisions
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.recalls
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.memories
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

-- What must be so ----------------------------------------------------------------------------------

-- A decision about a call is about the run of its owner. What changes how agents work rests on an
-- approval of exactly this content, by somebody else: a worker's login can write no such approval.
CREATE FUNCTION celeriac.guard_memory_decision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.run_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM celeriac.runs
        WHERE run_id = NEW.run_id AND tenant_id = NEW.tenant_id AND user_id = NEW.user_id
    ) THEN
        RAISE EXCEPTION 'run % is not one of the owner %', NEW.run_id, NEW.user_id
            USING ERRCODE = 'CE006';
    END IF;
    IF NEW.verdict = 'allow' AND NEW.kind = 'procedural' AND NOT EXISTS (
        SELECT FROM celeriac.approvals AS approval
        WHERE approval_id = NEW.approval_id AND tenant_id = NEW.tenant_id
            AND run_id = NEW.run_id AND call_id = NEW.call_id AND status = 'approved'
            AND consumed_at IS NOT NULL AND arguments ->> 'key' = NEW.memory_key
            AND arguments ->> 'namespace' = NEW.namespace
            AND sha256(convert_to((arguments -> 'value')::text, 'UTF8')) = NEW.content_hash
            AND EXISTS (
                SELECT FROM celeriac.approval_decisions AS decided
                WHERE decided.approval_id = approval.approval_id AND decision = 'approve'
                    AND reviewer <> NEW.user_id)
    ) THEN
        RAISE EXCEPTION 'nobody with permission has approved the procedural memory %',
            NEW.memory_key USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_memory_decision BEFORE INSERT ON celeriac.memory_decisions FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_memory_decision();

CREATE FUNCTION celeriac.guard_memory() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.content IS NOT NULL THEN
        NEW.content_hash := sha256(convert_to(NEW.content::text, 'UTF8'));
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.content IS NULL OR NEW.version <> 1 THEN
            RAISE EXCEPTION 'memory % begins at version 1, with a content', NEW.memory_key
                USING ERRCODE = 'CE003';
        END IF;
        RETURN NEW;
    END IF;
    IF ROW(OLD.tenant_id, OLD.user_id, OLD.namespace, OLD.memory_key, OLD.created_at)
        IS DISTINCT FROM
        ROW(NEW.tenant_id, NEW.user_id, NEW.namespace, NEW.memory_key, NEW.created_at)
        OR NEW.version <> OLD.version + 1
        OR NEW.decision_id < OLD.decision_id
    THEN
        RAISE EXCEPTION 'memory %: its owner and key never change, and each change is one version',
            OLD.memory_key USING ERRCODE = 'CE003';
    END IF;
    -- A content needs a decision of its own, also the one that was there before: so that nothing
    -- brings back what was deleted, and nothing prolongs what was to expire.
    IF NEW.content IS NOT NULL AND NEW.decision_id = OLD.decision_id THEN
        RAISE EXCEPTION 'memory %: nobody has decided about this version', OLD.memory_key
            USING ERRCODE = 'CE006';
    END IF;
    IF NEW.content IS NULL AND ROW(NEW.decision_id, NEW.content_hash, NEW.kind)
        IS DISTINCT FROM ROW(OLD.decision_id, OLD.content_hash, OLD.kind)
    THEN
        RAISE EXCEPTION 'memory %: what is forgotten keeps the decision that it had',
            OLD.memory_key USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_memory BEFORE INSERT OR UPDATE ON celeriac.memories FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_memory();

-- Rights -------------------------------------------------------------------------------------------

-- Whose memories this transaction may see, by `SET LOCAL celeriac.owner`: a user, or several
-- separated by commas, or `*` for all of the tenant. NULL, and so none, where nothing was set.
CREATE FUNCTION celeriac.current_owners() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT string_to_array(nullif(current_setting('celeriac.owner', true), ''), ',')
$$;

DO $$
DECLARE
    of_owner text;
    is_ours CONSTANT text := 'tenant_id = ANY ((SELECT celeriac.current_tenants())::text[])'
        ' AND (user_id = ANY ((SELECT celeriac.current_owners())::text[])'
        ' OR ''*'' = ANY ((SELECT celeriac.current_owners())::text[]))';
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT, INSERT ON celeriac.memory_decisions, celeriac.memories, celeriac.recalls
            TO celeriac_worker;
        GRANT UPDATE (kind, version, content, content_hash, search, decision_id, expires_at,
            changed_at, deleted_at, deleted_by) ON celeriac.memories TO celeriac_worker;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    FOREACH of_owner IN ARRAY '{memory_decisions,memories}'::text[]
    LOOP
        EXECUTE format('ALTER TABLE celeriac.%I ENABLE ROW LEVEL SECURITY', of_owner);
        EXECUTE format('CREATE POLICY everybody ON celeriac.%I USING (true)', of_owner);
        EXECUTE format('CREATE POLICY own_tenant ON celeriac.%I AS RESTRICTIVE TO celeriac_api'
            ' USING (%s)', of_owner, is_ours);
    END LOOP;
    ALTER TABLE celeriac.recalls ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.recalls USING (true);
    CREATE POLICY own_tenant ON celeriac.recalls AS RESTRICTIVE TO celeriac_api
        USING (EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = recalls.run_id));

    GRANT SELECT ON celeriac.memory_decisions, celeriac.memories, celeriac.recalls TO celeriac_api;
    GRANT INSERT ON celeriac.memory_decisions, celeriac.memories TO celeriac_api;
    GRANT UPDATE (kind, version, content, content_hash, search, decision_id, expires_at,
        changed_at, deleted_at, deleted_by) ON celeriac.memories TO celeriac_api;
END $$;
