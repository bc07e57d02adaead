-- Celeriac's first schema. docs/states.md draws the two state machines that the triggers enforce.
--
-- Sizes matter: a step writes one row to each of five tables, so rows carry no column twice and
-- run ids are short. Values are jsonb in the codec's canonical form; hashes are sha256 of what is
-- stored (body::text), computed here, so that `celeriac audit` can check them with SQL alone. Indexes
-- that only grow at their end are packed to the full.

CREATE SCHEMA celeriac;

-- Who owns what -------------------------------------------------------------------------------

CREATE TABLE celeriac.tenants (
    tenant_id text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE celeriac.users (
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    user_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, user_id)
);

CREATE TABLE celeriac.threads (
    tenant_id text NOT NULL,
    thread_id text NOT NULL,
    user_id text NOT NULL,
    next_position integer NOT NULL DEFAULT 0,  -- of the next root run
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, thread_id),
    UNIQUE (tenant_id, user_id, thread_id),  -- the target of the runs' foreign key
    FOREIGN KEY (tenant_id, user_id) REFERENCES celeriac.users
);

-- What is known of agents and workers -----------------------------------------------------------

CREATE TABLE celeriac.agents (
    agent text NOT NULL,
    agent_hash text NOT NULL,  -- sha256 of the definition: a changed tool or prompt is a new row
    definition jsonb NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent, agent_hash)
);

CREATE TABLE celeriac.workers (
    worker_id text PRIMARY KEY,
    hostname text NOT NULL,
    pid integer NOT NULL,
    pool text NOT NULL,
    agents text[] NOT NULL,
    queues text[] NOT NULL,
    lifeline_key bigint,  -- of the advisory lock it holds while it lives; NULL behind a pooler
    lifeline_since timestamptz,
    started_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    stopped_at timestamptz,  -- said goodbye
    dead_at timestamptz,  -- declared dead, by
    verdict text CHECK (verdict IN ('lifeline', 'lease')),
    CHECK ((dead_at IS NULL) = (verdict IS NULL)),
    CHECK ((lifeline_key IS NULL) = (lifeline_since IS NULL))
);
CREATE INDEX workers_alive ON celeriac.workers (worker_id)
    WHERE dead_at IS NULL AND stopped_at IS NULL;

CREATE TABLE celeriac.leaders (
    role text PRIMARY KEY,
    holder text NOT NULL,
    held_until timestamptz NOT NULL
);

-- Runs -------------------------------------------------------------------------------------------

CREATE TABLE celeriac.runs (
    run_id text PRIMARY KEY,
    tenant_id text NOT NULL,
    user_id text NOT NULL,
    thread_id text NOT NULL,
    thread_position integer,  -- NULL for children and hand-offs, which share their root's turn
    root_run_id text NOT NULL,
    parent_run_id text,
    forked_from text,
    forked_step integer,
    kind text NOT NULL DEFAULT 'agent' CHECK (kind IN ('agent', 'workflow')),
    agent text NOT NULL,
    agent_hash text,  -- these three are pinned by the first step
    tools_hash text,
    prompt_hash text,

    status text NOT NULL,
    phase text,
    resume_phase text,  -- the phase a pause goes back to
    outcome text,
    step integer NOT NULL DEFAULT 0 CHECK (step >= 0),
    epoch integer NOT NULL DEFAULT 0,  -- counts claims, for people
    claim_token uuid,  -- the fence: who may commit this step
    worker_id text,
    step_started_at timestamptz,
    step_deadline timestamptz,
    wake_at timestamptz,

    queue text NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    published_at timestamptz,  -- when the queued step was last put on the broker
    publish_count integer NOT NULL DEFAULT 0,  -- of this step; its backoff doubles with it
    deaths integer NOT NULL DEFAULT 0,  -- workers that died in this run, ever
    strikes integer NOT NULL DEFAULT 0,  -- of this step: deaths and missed deadlines since a commit
    failed_thinks integer NOT NULL DEFAULT 0,  -- of this step

    request_version integer NOT NULL DEFAULT 0,  -- moves with each cancel, interrupt and say
    cancel_requested_at timestamptz,
    interrupt_requested_at timestamptz,
    start_key text,

    input jsonb,
    result jsonb,
    error jsonb,
    erased_at timestamptz,
    key_id text,
    limits jsonb NOT NULL,
    tool_calls_used integer NOT NULL DEFAULT 0,
    input_tokens_used bigint NOT NULL DEFAULT 0,
    output_tokens_used bigint NOT NULL DEFAULT 0,

    message_count integer NOT NULL DEFAULT 0,
    last_event_seq integer NOT NULL DEFAULT 0,
    pruned_to_seq integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    paused_at timestamptz,  -- while it is paused or needs attention, since then
    waited interval NOT NULL DEFAULT '0',  -- in all pauses that are over

    -- Composite: a run can only hang on a thread of its own user and tenant.
    FOREIGN KEY (tenant_id, user_id, thread_id)
        REFERENCES celeriac.threads (tenant_id, user_id, thread_id),
    CONSTRAINT runs_claim CHECK (
        (claim_token IS NOT NULL) = (status = 'running')
        AND (status <> 'running' OR worker_id IS NOT NULL)
    ),
    CONSTRAINT runs_finished CHECK (
        (finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))
    ),
    CONSTRAINT runs_result CHECK (
        erased_at IS NOT NULL OR (result IS NOT NULL) = (status = 'completed')
    ),
    CONSTRAINT runs_error CHECK (
        (status NOT IN ('failed', 'needs_attention') OR error IS NOT NULL OR erased_at IS NOT NULL)
        AND (status <> 'completed' OR error IS NULL)
    ),
    CONSTRAINT runs_phase CHECK (
        (CASE status
            WHEN 'queued' THEN phase IN ('waiting_model', 'waiting_tool')
            WHEN 'running' THEN phase IN ('waiting_model', 'waiting_tool')
            WHEN 'paused' THEN phase IN (
                'waiting_approval', 'waiting_external', 'waiting_timer', 'waiting_child',
                'waiting_user', 'waiting_thread', 'waiting_worker')
            WHEN 'needs_attention' THEN phase IN ('waiting_model', 'waiting_tool', 'waiting_user')
            ELSE status IN ('completed', 'failed', 'cancelled') AND phase IS NULL
        END) IS TRUE  -- a check that is null, as of a missing phase, would let it pass
    ),
    CONSTRAINT runs_resume_phase CHECK (
        resume_phase IN ('waiting_model', 'waiting_tool')
        AND (resume_phase IS NOT NULL) = (status = 'paused')
    )
) WITH (fillfactor = 70);  -- a run row changes at every step: leave room on its page

CREATE UNIQUE INDEX runs_thread ON celeriac.runs (tenant_id, thread_id, thread_position);
CREATE UNIQUE INDEX runs_start_key ON celeriac.runs (tenant_id, start_key)
    WHERE start_key IS NOT NULL;
CREATE INDEX runs_listed ON celeriac.runs (created_at);
CREATE INDEX runs_queued ON celeriac.runs (published_at) WHERE status = 'queued';
CREATE INDEX runs_running ON celeriac.runs (worker_id) WHERE status = 'running';
CREATE INDEX runs_paused ON celeriac.runs (phase, wake_at) WHERE status = 'paused';

-- What a run leaves behind ----------------------------------------------------------------------

CREATE TABLE celeriac.checkpoints (
    run_id text NOT NULL REFERENCES celeriac.runs,
    step integer NOT NULL,
    kind text NOT NULL CHECK (kind IN ('think', 'act')),
    reason text NOT NULL,
    state jsonb NOT NULL,  -- pending calls (if any, the run waits for tools), control counters
    hash bytea NOT NULL,
    message_count integer NOT NULL,
    schema_version smallint NOT NULL,
    worker_id text NOT NULL,
    epoch integer NOT NULL,
    started_at timestamptz NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step) WITH (fillfactor = 100)
);

CREATE TABLE celeriac.messages (
    run_id text NOT NULL REFERENCES celeriac.runs,
    position integer NOT NULL,
    role text NOT NULL CHECK (role IN ('user', 'assistant', 'results', 'question')),
    body jsonb,  -- role results: only the call ids; the results themselves are in effects
    hash bytea NOT NULL,
    erased_at timestamptz,
    key_id text,
    PRIMARY KEY (run_id, position) WITH (fillfactor = 100),
    CHECK ((body IS NULL) = (erased_at IS NOT NULL))
);

CREATE TABLE celeriac.inbox (
    run_id text NOT NULL REFERENCES celeriac.runs,
    inbox_id bigint GENERATED ALWAYS AS IDENTITY,
    author text NOT NULL,
    body jsonb NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now(),
    drained_step integer,
    PRIMARY KEY (run_id, inbox_id)
);

CREATE TABLE celeriac.events (
    run_id text NOT NULL REFERENCES celeriac.runs,
    seq integer NOT NULL,
    type text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data jsonb NOT NULL,  -- ids and facts, never payloads
    PRIMARY KEY (run_id, seq) WITH (fillfactor = 100)
);

CREATE TABLE celeriac.artifacts (
    hash bytea PRIMARY KEY,  -- sha256 of the content
    media_type text NOT NULL,
    content bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE celeriac.effects (
    run_id text NOT NULL REFERENCES celeriac.runs,
    call_id text NOT NULL,
    step integer NOT NULL,  -- of the think that asked for it
    call_index smallint NOT NULL,
    provider_call_id text NOT NULL,
    tool text NOT NULL,
    tool_version text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('none', 'transactional', 'external')),
    flags jsonb,
    requirement jsonb,  -- what approval it needs, copied when it was proposed
    arguments jsonb,
    fingerprint bytea NOT NULL,  -- of tool, version and arguments; compared, never part of the key
    version smallint NOT NULL DEFAULT 1,
    state text NOT NULL,
    attempt smallint NOT NULL DEFAULT 0,
    token uuid,  -- the claim of the latest attempt
    result jsonb,
    result_hash bytea,
    result_artifact bytea REFERENCES celeriac.artifacts,
    error jsonb,
    rolls_back text,
    planned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at timestamptz,
    erased_at timestamptz,
    key_id text,
    PRIMARY KEY (run_id, call_id),
    CONSTRAINT effects_state CHECK (state IN (
        'planned', 'proposed', 'approved', 'in_flight', 'unknown', 'not_done', 'committed', 'failed',
        'invalid', 'precondition_failed', 'rejected', 'expired', 'known_bad', 'rolled_back'
    )),
    CONSTRAINT effects_outcome CHECK (
        (result IS NULL AND result_artifact IS NULL) OR error IS NULL
    ),
    CONSTRAINT effects_committed CHECK (
        state <> 'committed' OR result IS NOT NULL OR result_artifact IS NOT NULL
        OR erased_at IS NOT NULL
    )
) WITH (fillfactor = 80);

CREATE TABLE celeriac.effect_attempts (
    run_id text NOT NULL,
    call_id text NOT NULL,
    attempt smallint NOT NULL,
    entry smallint NOT NULL,  -- 0 the start, then what became known, in order
    token uuid,
    worker_id text,
    outcome text NOT NULL CHECK (
        outcome IN ('started', 'committed', 'failed', 'unknown', 'not_done', 'known_bad')),
    evidence jsonb,
    approval_id text,
    approval_version smallint,
    deadline_at timestamptz,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, call_id, attempt, entry),
    FOREIGN KEY (run_id, call_id) REFERENCES celeriac.effects,
    CHECK ((entry = 0) = (outcome = 'started'))
);

CREATE TABLE celeriac.model_calls (
    run_id text NOT NULL REFERENCES celeriac.runs,
    step integer NOT NULL,
    attempt smallint NOT NULL,
    model text NOT NULL,
    message_count integer NOT NULL,  -- the request was messages 0 .. message_count - 1
    selection jsonb,  -- NULL: all of them
    prompt_hash text,  -- NULL: the run's own
    tools_hash text,
    outcome text NOT NULL,  -- 'answered', or the kind of failure
    error jsonb,
    input_tokens integer NOT NULL,
    output_tokens integer NOT NULL,
    usage jsonb,
    cost numeric,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step, attempt) WITH (fillfactor = 100)
);

-- Stops a statement, and with it the whole transaction, when what it counted on is not so.
CREATE FUNCTION celeriac.demand(holds boolean, message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION '%', message USING ERRCODE = 'CE005';
    END IF;
END $$;

-- Append-only -------------------------------------------------------------------------------------

CREATE FUNCTION celeriac.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'celeriac.% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'CE001';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.messages
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.events
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.effect_attempts
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.model_calls
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.runs
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.effects
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

-- Transitions -------------------------------------------------------------------------------------

-- Immutable, so that the planner folds it to a constant: which statuses may follow which.
CREATE FUNCTION celeriac.run_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT was = now_is AND was NOT IN ('completed', 'failed', 'cancelled')
        OR CASE was
            WHEN 'queued' THEN now_is IN ('running', 'paused', 'needs_attention', 'cancelled')
            WHEN 'running' THEN now_is IN
                ('queued', 'paused', 'needs_attention', 'completed', 'failed', 'cancelled')
            WHEN 'paused' THEN now_is IN ('queued', 'cancelled')
            WHEN 'needs_attention' THEN now_is IN ('queued', 'failed', 'cancelled')
            ELSE false
        END
$$;

CREATE FUNCTION celeriac.effect_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'planned' THEN now_is IN ('planned', 'proposed', 'in_flight', 'committed', 'failed',
            'invalid', 'precondition_failed')
        WHEN 'proposed' THEN now_is IN ('approved', 'rejected', 'expired', 'proposed')
        WHEN 'approved' THEN now_is IN ('approved', 'in_flight', 'committed', 'failed',
            'precondition_failed', 'planned')
        WHEN 'in_flight' THEN now_is IN ('committed', 'failed', 'not_done', 'unknown')
        WHEN 'unknown' THEN now_is IN ('committed', 'failed', 'not_done', 'known_bad', 'unknown')
        WHEN 'not_done' THEN now_is = 'in_flight'
        WHEN 'committed' THEN now_is = 'known_bad'
        WHEN 'known_bad' THEN now_is = 'rolled_back'
        ELSE false
    END
$$;

-- One function without a WHEN clause: PostgreSQL parses those anew for each statement, which took a
-- tenth of the time of a step.
CREATE FUNCTION celeriac.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.run_id <> NEW.run_id OR OLD.tenant_id <> NEW.tenant_id OR OLD.user_id <> NEW.user_id
        OR OLD.thread_id <> NEW.thread_id OR OLD.agent <> NEW.agent OR NEW.step < OLD.step
        OR NEW.last_event_seq < OLD.last_event_seq OR NEW.epoch < OLD.epoch
        OR (OLD.input IS DISTINCT FROM NEW.input AND NEW.erased_at IS NULL)
    THEN
        RAISE EXCEPTION 'run %: owner, agent, input and step history never change', OLD.run_id
            USING ERRCODE = 'CE003';
    END IF;
    IF OLD.status = NEW.status AND OLD.finished_at IS NULL THEN
        RETURN NEW;
    END IF;
    IF NOT celeriac.run_may_become(OLD.status, NEW.status) THEN
        RAISE EXCEPTION 'run % is %: it cannot become %', OLD.run_id, OLD.status, NEW.status
            USING ERRCODE = 'CE002';
    END IF;
    -- A run's wall time does not count what it waited, for a person least of all.
    IF OLD.status IN ('paused', 'needs_attention') THEN
        NEW.waited := OLD.waited
            + (clock_timestamp() - coalesce(OLD.paused_at, OLD.created_at));  -- NULL: born paused
        NEW.paused_at := NULL;
    END IF;
    IF NEW.status IN ('paused', 'needs_attention') THEN
        NEW.paused_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_run BEFORE UPDATE ON celeriac.runs FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_run();

CREATE FUNCTION celeriac.guard_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT celeriac.effect_may_become(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'effect % of run % is %: it cannot become %',
            OLD.call_id, OLD.run_id, OLD.state, NEW.state USING ERRCODE = 'CE002';
    END IF;
    IF (OLD.arguments IS DISTINCT FROM NEW.arguments OR OLD.fingerprint <> NEW.fingerprint)
        AND OLD.state <> 'proposed' AND NEW.erased_at IS NULL THEN
        RAISE EXCEPTION 'effect % of run % is %: its arguments are frozen',
            OLD.call_id, OLD.run_id, OLD.state USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER legal_transition BEFORE UPDATE ON celeriac.effects FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_effect();

-- A transactional effect is in flight only inside the step's own transaction. Deferred to the
-- commit: if the tool itself says COMMIT, this refuses it, and the tool's writes go with it.
CREATE FUNCTION celeriac.guard_tool_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM celeriac.effects
        WHERE run_id = NEW.run_id AND call_id = NEW.call_id AND state = 'in_flight'
    ) THEN
        RAISE EXCEPTION 'the tool % ended the step''s transaction (effect % of run %)',
            NEW.tool, NEW.call_id, NEW.run_id USING ERRCODE = 'CE004';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER tool_never_commits AFTER UPDATE ON celeriac.effects
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.kind = 'transactional' AND NEW.state = 'in_flight')
    EXECUTE FUNCTION celeriac.guard_tool_commit();

-- Rights ------------------------------------------------------------------------------------------

-- The login role is the user's own; make it a member of celeriac_worker. Roles belong to the whole
-- cluster, so another database's migration may have made it, or may be making it right now.
DO $$
BEGIN
    CREATE ROLE celeriac_worker NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role celeriac_worker was not created: this login may not create roles';
END $$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT USAGE ON SCHEMA celeriac TO celeriac_worker;
        GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA celeriac TO celeriac_worker;
        GRANT UPDATE ON celeriac.runs, celeriac.effects, celeriac.threads, celeriac.workers,
            celeriac.leaders, celeriac.inbox TO celeriac_worker;
        GRANT SELECT ON celeriac_schema_version TO celeriac_worker;  -- a worker checks it first
    END IF;
END $$;
