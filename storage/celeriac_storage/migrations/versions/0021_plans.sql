-- Plans (docs/plans.md): what is to be done, apart from how far it has come, which is the log's.

-- What a line of the log is for, for people: of a plan's run, the step.
ALTER TABLE celeriac.activities ADD COLUMN label text;
CREATE INDEX activities_label ON celeriac.activities (run_id, label) WHERE label IS NOT NULL;

CREATE TABLE celeriac.plans (
    run_id text NOT NULL REFERENCES celeriac.runs,
    version integer NOT NULL CHECK (version >= 1),  -- counts edits, from run to run
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),  -- of body::text
    body jsonb,
    continues text REFERENCES celeriac.runs,  -- whose completed steps are kept
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    erased_at timestamptz,
    PRIMARY KEY (run_id, version),
    CONSTRAINT plans_erased CHECK ((body IS NULL) = (erased_at IS NOT NULL))
);
-- Two runs that go on from the same one would both do what is left.
CREATE UNIQUE INDEX plans_continues ON celeriac.plans (continues) WHERE continues IS NOT NULL;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.plans
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

-- A plan is erased and pruned with its run, by the functions that may do so.
CREATE FUNCTION celeriac.take_plan() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.pruned_at IS NOT NULL THEN
        DELETE FROM celeriac.plans WHERE run_id = NEW.run_id;
    ELSE
        UPDATE celeriac.plans SET body = NULL, erased_at = NEW.erased_at
        WHERE run_id = NEW.run_id AND erased_at IS NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER take_plan AFTER UPDATE OF erased_at, pruned_at ON celeriac.runs FOR EACH ROW
    WHEN (NEW.kind = 'workflow' AND NEW.erased_at IS NOT NULL)
    EXECUTE FUNCTION celeriac.take_plan();

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT, INSERT ON celeriac.plans TO celeriac_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        ALTER TABLE celeriac.plans ENABLE ROW LEVEL SECURITY;
        CREATE POLICY everybody ON celeriac.plans USING (true);
        CREATE POLICY own_tenant ON celeriac.plans AS RESTRICTIVE TO celeriac_api
            USING (EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = plans.run_id))
            WITH CHECK (celeriac.sees_run(run_id)
                AND (continues IS NULL OR celeriac.sees_run(continues)));
        GRANT SELECT, INSERT ON celeriac.plans TO celeriac_api;
        -- The log of a run that keeps what an earlier one has completed begins with that.
        GRANT INSERT ON celeriac.activities TO celeriac_api;
    END IF;
END $$;
