-- Workflows: what their code asked for, the runs that do it, and what they are told (docs/workflows.md).

ALTER TABLE celeriac.runs
    ADD COLUMN generation integer,  -- of a workflow: how often it has continued as new
    ADD COLUMN told integer,  -- how many entries of that generation have ended
    ADD COLUMN generation_input jsonb,  -- NULL in the first, which has the run's
    DROP CONSTRAINT runs_kind_check,
    ADD CONSTRAINT runs_kind_check CHECK (kind IN ('agent', 'workflow', 'activity', 'rollback')),
    ADD CONSTRAINT runs_workflow CHECK (
        (kind = 'workflow') = (generation IS NOT NULL) AND (kind = 'workflow') = (told IS NOT NULL)
        AND (generation_input IS NULL OR generation > 0)
    ),
    ADD CONSTRAINT runs_activity CHECK (kind <> 'activity' OR parent_call_id IS NOT NULL),
    DROP CONSTRAINT runs_phase,
    ADD CONSTRAINT runs_phase CHECK (
        (CASE status
            WHEN 'queued' THEN phase IN ('waiting_model', 'waiting_tool', 'waiting_code')
            WHEN 'running' THEN phase IN ('waiting_model', 'waiting_tool', 'waiting_code')
            WHEN 'paused' THEN phase IN (
                'waiting_approval', 'waiting_external', 'waiting_timer', 'waiting_child',
                'waiting_user', 'waiting_thread', 'waiting_worker', 'waiting_budget',
                'waiting_activity')
            WHEN 'needs_attention' THEN phase IN
                ('waiting_model', 'waiting_tool', 'waiting_code', 'waiting_user')
            ELSE status IN ('completed', 'failed', 'cancelled') AND phase IS NULL
        END) IS TRUE  -- a check that is null, as of a missing phase, would let it pass
    ),
    DROP CONSTRAINT runs_resume_phase,
    ADD CONSTRAINT runs_resume_phase CHECK (
        resume_phase IN ('waiting_model', 'waiting_tool', 'waiting_code')
        AND (resume_phase IS NOT NULL) = (status = 'paused')
    );
ALTER TABLE celeriac.checkpoints
    DROP CONSTRAINT checkpoints_kind_check,
    ADD CONSTRAINT checkpoints_kind_check CHECK (kind IN ('think', 'act', 'flow'));

-- The log: one row for each thing that the code asked for, in the order in which it asked. Whoever
-- writes here has locked the workflow's run.
CREATE TABLE celeriac.activities (
    run_id text NOT NULL REFERENCES celeriac.runs,
    generation integer NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    kind text NOT NULL CHECK (kind IN
        ('activity', 'approval', 'model', 'child', 'timer', 'event', 'value', 'version')),
    name text NOT NULL,
    arguments jsonb,
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),  -- of kind, name, arguments
    step integer NOT NULL,  -- the turn that asked
    made_by text REFERENCES celeriac.runs,  -- the run that does it
    wait_group integer,  -- the code goes on when all of a group have ended; NULL: not waited for
    told integer,  -- the order in which ends became known; NULL: it goes on, or never began
    result jsonb,
    result_hash bytea,
    result_artifact bytea REFERENCES celeriac.artifacts,
    error jsonb,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    erased_at timestamptz,
    PRIMARY KEY (run_id, generation, number),
    CONSTRAINT activities_end CHECK ((told IS NOT NULL) = (ended_at IS NOT NULL)),
    CONSTRAINT activities_made_by CHECK (
        (made_by IS NOT NULL) = (kind IN ('activity', 'approval', 'model', 'child'))),
    CONSTRAINT activities_outcome CHECK (erased_at IS NOT NULL
        OR num_nonnulls(result, result_artifact, error)
            = (told IS NOT NULL OR kind IN ('value', 'version'))::int)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX activities_told ON celeriac.activities (run_id, generation, told)
    WHERE told IS NOT NULL;
CREATE INDEX activities_awaited ON celeriac.activities (run_id, wait_group)
    WHERE told IS NULL AND wait_group IS NOT NULL;
CREATE INDEX activities_artifact ON celeriac.activities (result_artifact)
    WHERE result_artifact IS NOT NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.activities
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_activity() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF celeriac.is_retaining() THEN
        RETURN NEW;
    END IF;
    IF ROW(OLD.run_id, OLD.generation, OLD.number, OLD.kind, OLD.name, OLD.arguments,
            OLD.fingerprint, OLD.step, OLD.made_by, OLD.asked_at)
        IS DISTINCT FROM ROW(NEW.run_id, NEW.generation, NEW.number, NEW.kind, NEW.name,
            NEW.arguments, NEW.fingerprint, NEW.step, NEW.made_by, NEW.asked_at)
        OR OLD.told IS NOT NULL OR OLD.kind IN ('value', 'version')
    THEN
        RAISE EXCEPTION 'entry %.% of run %: what was asked never changes, nor does its end',
            OLD.generation, OLD.number, OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_activity BEFORE UPDATE ON celeriac.activities FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_activity();

-- What somebody outside has told a workflow, until its code waits for it.
CREATE TABLE celeriac.mailbox (
    run_id text NOT NULL REFERENCES celeriac.runs,
    mail_id bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL CHECK (name <> ''),
    body jsonb,
    hash bytea NOT NULL,
    key text,  -- telling it again under the same key tells nothing more
    sent_by text NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    taken_generation integer,  -- the entry of the log that it has ended
    taken_number integer,
    erased_at timestamptz,
    PRIMARY KEY (run_id, mail_id),
    UNIQUE (run_id, key),
    CHECK ((taken_generation IS NULL) = (taken_number IS NULL)),
    CHECK ((body IS NULL) = (erased_at IS NOT NULL))
);
CREATE INDEX mailbox_waiting ON celeriac.mailbox (run_id, name, mail_id)
    WHERE taken_number IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.mailbox
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_mail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT celeriac.is_retaining() AND (
        ROW(OLD.run_id, OLD.mail_id, OLD.name, OLD.body, OLD.hash, OLD.key, OLD.sent_by, OLD.sent_at)
        IS DISTINCT FROM ROW(NEW.run_id, NEW.mail_id, NEW.name, NEW.body, NEW.hash, NEW.key,
            NEW.sent_by, NEW.sent_at)
        OR OLD.taken_number IS NOT NULL
    ) THEN
        RAISE EXCEPTION 'mail % of run %: what was told never changes, and is taken once',
            OLD.mail_id, OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_mail BEFORE UPDATE ON celeriac.mailbox FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_mail();

-- Rights -----------------------------------------------------------------------------------------

DO $$
DECLARE
    of_run text;
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT, INSERT ON celeriac.activities, celeriac.mailbox TO celeriac_worker;
        GRANT UPDATE (wait_group, told, result, result_hash, result_artifact, error, ended_at)
            ON celeriac.activities TO celeriac_worker;
        GRANT UPDATE (taken_generation, taken_number) ON celeriac.mailbox TO celeriac_worker;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    FOREACH of_run IN ARRAY '{activities,mailbox}'::text[] LOOP
        EXECUTE format('ALTER TABLE celeriac.%I ENABLE ROW LEVEL SECURITY', of_run);
        EXECUTE format('CREATE POLICY everybody ON celeriac.%I USING (true)', of_run);
        EXECUTE format('CREATE POLICY own_tenant ON celeriac.%1$I AS RESTRICTIVE TO celeriac_api'
            ' USING (EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = %1$I.run_id))'
            ' WITH CHECK (celeriac.sees_run(run_id))', of_run);
    END LOOP;
    GRANT SELECT ON celeriac.activities, celeriac.mailbox TO celeriac_api;
    GRANT INSERT ON celeriac.mailbox TO celeriac_api;
    -- Whoever cancels or decides may end an activity, and its workflow is told in that transaction.
    GRANT UPDATE (wait_group, told, result, result_hash, result_artifact, error, ended_at)
        ON celeriac.activities TO celeriac_api;
    GRANT UPDATE (taken_generation, taken_number) ON celeriac.mailbox TO celeriac_api;
END $$;
