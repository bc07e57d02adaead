-- Deadlines, timers and schedules (docs/time.md), and runs that other runs start (docs/children.md).

ALTER TABLE celeriac.runs
    ADD COLUMN deadline_at timestamptz,
    ADD COLUMN deadline_passed_at timestamptz,  -- when a scheduler noticed
    ADD COLUMN parent_call_id text,  -- of a child: the call of its parent that it is the answer to
    ADD COLUMN depth smallint NOT NULL DEFAULT 0 CHECK (depth >= 0),  -- parents above it
    ADD COLUMN history_until integer,  -- of a hand-off: how many of its parent's messages it has read
    ADD COLUMN children_started integer NOT NULL DEFAULT 0,
    -- What its children have used, each added when the parent is told of its end.
    ADD COLUMN child_steps_used integer NOT NULL DEFAULT 0,
    ADD COLUMN child_tool_calls_used integer NOT NULL DEFAULT 0,
    ADD COLUMN child_tokens_used bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT runs_child CHECK (
        (parent_call_id IS NULL OR parent_run_id IS NOT NULL AND kind <> 'rollback'
            AND thread_position IS NULL)
        AND (parent_call_id IS NOT NULL) = (depth > 0)
    );
-- A call of a parent has one child, whatever its worker does twice.
CREATE UNIQUE INDEX runs_one_child ON celeriac.runs (parent_run_id, parent_call_id)
    WHERE parent_call_id IS NOT NULL;
CREATE INDEX runs_live_children ON celeriac.runs (parent_run_id)
    WHERE parent_call_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_deadline ON celeriac.runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND finished_at IS NULL;

-- A run that nobody works on ends at its deadline by itself: no worker may be there to do it.
CREATE OR REPLACE FUNCTION celeriac.run_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT was = now_is AND was NOT IN ('completed', 'failed', 'cancelled')
        OR CASE was
            WHEN 'queued' THEN now_is IN
                ('running', 'paused', 'needs_attention', 'failed', 'cancelled')
            WHEN 'running' THEN now_is IN
                ('queued', 'paused', 'needs_attention', 'completed', 'failed', 'cancelled')
            WHEN 'paused' THEN now_is IN ('queued', 'failed', 'cancelled')
            WHEN 'needs_attention' THEN now_is IN ('queued', 'failed', 'cancelled')
            ELSE false
        END
$$;

-- Timers -----------------------------------------------------------------------------------------

CREATE TABLE celeriac.timers (
    run_id text NOT NULL REFERENCES celeriac.runs,
    timer_id text NOT NULL,  -- 'start' of a delayed run, or the call that waits
    due_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    fired_at timestamptz,
    PRIMARY KEY (run_id, timer_id)
);
CREATE INDEX timers_due ON celeriac.timers (due_at) WHERE fired_at IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.timers
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_timer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.fired_at IS NOT NULL OR OLD.run_id <> NEW.run_id OR OLD.timer_id <> NEW.timer_id THEN
        RAISE EXCEPTION 'timer % of run % fires once and stays as it is then', OLD.timer_id,
            OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_timer BEFORE UPDATE ON celeriac.timers FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_timer();

-- Schedules --------------------------------------------------------------------------------------

CREATE TABLE celeriac.schedules (
    tenant_id text NOT NULL,
    schedule_id text NOT NULL,
    user_id text NOT NULL,  -- whose runs it starts
    agent text NOT NULL,
    input jsonb NOT NULL,
    cron text NOT NULL,
    time_zone text NOT NULL,
    overlap text NOT NULL CHECK (overlap IN ('skip', 'queue', 'cancel_running', 'allow')),
    catch_up text NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
    catch_up_limit integer NOT NULL CHECK (catch_up_limit BETWEEN 1 AND 1000),
    jitter_seconds double precision NOT NULL CHECK (jitter_seconds BETWEEN 0 AND 86400),
    next_fire_at timestamptz,  -- as the expression says; NULL while it is paused or removed
    due_at timestamptz,  -- the same with its jitter
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    paused_at timestamptz,
    removed_at timestamptz,
    PRIMARY KEY (tenant_id, schedule_id),
    FOREIGN KEY (tenant_id, user_id) REFERENCES celeriac.users,
    CHECK ((next_fire_at IS NULL) = (due_at IS NULL)),
    CHECK (due_at IS NULL OR paused_at IS NULL AND removed_at IS NULL)
);
CREATE INDEX schedules_due ON celeriac.schedules (due_at) WHERE due_at IS NOT NULL;

-- What came of each time: the row that makes it happen once.
CREATE TABLE celeriac.schedule_fires (
    tenant_id text NOT NULL,
    schedule_id text NOT NULL,
    scheduled_at timestamptz NOT NULL,
    fired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    triggered_by text,  -- NULL: the time had come
    outcome text NOT NULL
        CHECK (outcome IN ('started', 'queued', 'skipped', 'missed', 'refused')),
    run_id text,
    error jsonb,
    PRIMARY KEY (tenant_id, schedule_id, scheduled_at),
    FOREIGN KEY (tenant_id, schedule_id) REFERENCES celeriac.schedules,
    CHECK ((run_id IS NOT NULL) = (outcome = 'started')),
    CHECK ((error IS NOT NULL) = (outcome = 'refused'))
);
CREATE INDEX schedule_fires_queued ON celeriac.schedule_fires (tenant_id, schedule_id, scheduled_at)
    WHERE outcome = 'queued';
CREATE INDEX schedule_fires_started ON celeriac.schedule_fires (tenant_id, schedule_id, fired_at)
    WHERE outcome = 'started';
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.schedule_fires
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_schedule_fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.outcome <> 'queued' OR ROW(OLD.tenant_id, OLD.schedule_id, OLD.scheduled_at)
        <> ROW(NEW.tenant_id, NEW.schedule_id, NEW.scheduled_at) THEN
        RAISE EXCEPTION 'schedule %: what came of % never changes', OLD.schedule_id,
            OLD.scheduled_at USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_schedule_fire BEFORE UPDATE ON celeriac.schedule_fires FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_schedule_fire();

-- Rights -----------------------------------------------------------------------------------------

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT, INSERT, UPDATE ON celeriac.timers, celeriac.schedules,
            celeriac.schedule_fires TO celeriac_worker;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    ALTER TABLE celeriac.timers ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.timers USING (true);
    CREATE POLICY own_tenant ON celeriac.timers AS RESTRICTIVE TO celeriac_api
        USING (EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = timers.run_id))
        WITH CHECK (celeriac.sees_run(run_id));
    ALTER TABLE celeriac.schedules ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.schedules USING (true);
    CREATE POLICY own_tenant ON celeriac.schedules AS RESTRICTIVE TO celeriac_api
        USING (tenant_id = ANY ((SELECT celeriac.current_tenants())::text[]));
    ALTER TABLE celeriac.schedule_fires ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.schedule_fires USING (true);
    CREATE POLICY own_tenant ON celeriac.schedule_fires AS RESTRICTIVE TO celeriac_api
        USING (tenant_id = ANY ((SELECT celeriac.current_tenants())::text[]));
    GRANT SELECT, INSERT ON celeriac.timers TO celeriac_api;
    GRANT SELECT, INSERT, UPDATE ON celeriac.schedules, celeriac.schedule_fires TO celeriac_api;
END $$;
