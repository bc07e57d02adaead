-- What the runs of a tenant, a user or a thread, or one run, may use and cost (docs/budgets.md).

CREATE TABLE celeriac.budgets (
    budget_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL REFERENCES celeriac.tenants,
    scope text NOT NULL CHECK (scope IN ('tenant', 'user', 'thread', 'run')),
    subject text NOT NULL CHECK (subject <> ''),  -- the id of the tenant, user, thread or run
    measure text NOT NULL CHECK (measure IN ('tokens', 'usd', 'steps', 'tool_calls', 'seconds')),
    soft_limit numeric CHECK (soft_limit >= 0),
    hard_limit numeric CHECK (hard_limit >= 0),  -- NULL: what is used is only counted
    on_exceeded text NOT NULL CHECK (on_exceeded IN ('pause', 'fail')),
    used numeric NOT NULL DEFAULT 0 CHECK (used >= 0),
    reserved numeric NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    last_seq bigint NOT NULL DEFAULT 0,  -- counts what happens to it: changes, reservations, ends
    warned_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant_id, scope, subject, measure),
    CHECK (scope <> 'tenant' OR subject = tenant_id)
);

-- What one claim of a step reserved of a budget, and what it used. Open until the step's commit says
-- that; for ever, if nobody can know. No reference to the run: accounts outlive what they are about.
CREATE TABLE celeriac.budget_entries (
    budget_id bigint NOT NULL REFERENCES celeriac.budgets,
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    step integer NOT NULL,
    epoch integer NOT NULL,
    reserved numeric NOT NULL CHECK (reserved >= 0),
    used numeric CHECK (used >= 0),  -- NULL: open
    hard_limit numeric,  -- when it was reserved; NULL: there was none, or nothing was asked for
    reserved_seq bigint NOT NULL,
    settled_seq bigint,
    reserved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at timestamptz,
    PRIMARY KEY (budget_id, run_id, step, epoch),
    CHECK ((used IS NULL) = (settled_seq IS NULL) AND (used IS NULL) = (settled_at IS NULL))
) WITH (fillfactor = 90);
CREATE INDEX budget_entries_open ON celeriac.budget_entries (budget_id, run_id) WHERE used IS NULL;

CREATE TABLE celeriac.budget_changes (
    budget_id bigint NOT NULL REFERENCES celeriac.budgets,
    seq bigint NOT NULL,
    tenant_id text NOT NULL,
    amount numeric,  -- that was added to the hard limit; NULL: the limits were set
    soft_limit numeric,  -- from then on, as the next two
    hard_limit numeric,
    on_exceeded text NOT NULL,
    key text CHECK (key <> ''),  -- a top-up that is told again under its key is not made again
    by text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (budget_id, seq),
    UNIQUE (budget_id, key)
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.budget_changes
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.budgets
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON celeriac.budget_entries
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

CREATE FUNCTION celeriac.guard_budget_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.used IS NOT NULL OR NEW.used IS NULL
        OR ROW(OLD.budget_id, OLD.tenant_id, OLD.run_id, OLD.step, OLD.epoch, OLD.reserved,
            OLD.hard_limit, OLD.reserved_seq, OLD.reserved_at)
        IS DISTINCT FROM ROW(NEW.budget_id, NEW.tenant_id, NEW.run_id, NEW.step, NEW.epoch,
            NEW.reserved, NEW.hard_limit, NEW.reserved_seq, NEW.reserved_at)
    THEN
        RAISE EXCEPTION 'an entry of budget % is settled once, and nothing else of it changes',
            OLD.budget_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_budget_entry BEFORE UPDATE ON celeriac.budget_entries FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_budget_entry();

CREATE FUNCTION celeriac.guard_budget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(OLD.budget_id, OLD.tenant_id, OLD.scope, OLD.subject, OLD.measure)
        IS DISTINCT FROM ROW(NEW.budget_id, NEW.tenant_id, NEW.scope, NEW.subject, NEW.measure)
        OR NEW.last_seq < OLD.last_seq
    THEN
        RAISE EXCEPTION 'budget %: whose it is and what it measures never change', OLD.budget_id
            USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_budget BEFORE UPDATE ON celeriac.budgets FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_budget();

-- The budgets that a run uses ----------------------------------------------------------------------

-- Locks the rows in one order, whoever asks, so that runs which share several of them never wait for
-- each other in a circle. A step's commit has its run's row by then, and nothing else waits for a
-- run while it holds a budget.
CREATE FUNCTION celeriac.lock_budgets(of_run text) RETURNS SETOF celeriac.budgets
    LANGUAGE sql VOLATILE AS $$
    SELECT budget.* FROM celeriac.budgets AS budget
    JOIN celeriac.runs AS run ON run.run_id = of_run AND budget.tenant_id = run.tenant_id
        AND (budget.scope, budget.subject) IN (('tenant', run.tenant_id), ('user', run.user_id),
            ('thread', run.thread_id), ('run', run.run_id))
    ORDER BY budget.budget_id
    FOR NO KEY UPDATE OF budget
$$;

-- Ends what an earlier claim of the run has reserved of what can be counted again: a step is taken
-- once however often it was begun. Tokens and money of a lost call stay reserved: perhaps the
-- provider bills them. The budget is locked.
CREATE FUNCTION celeriac.release_uncommitted(of_budget bigint, of_run text, before_epoch integer)
    RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    released numeric;
BEGIN
    WITH ended AS (
        UPDATE celeriac.budget_entries AS entry SET used = 0, settled_at = clock_timestamp(),
            settled_seq = budget.last_seq + 1
        FROM celeriac.budgets AS budget
        WHERE budget.budget_id = of_budget AND budget.measure NOT IN ('tokens', 'usd')
            AND entry.budget_id = of_budget AND entry.run_id = of_run AND entry.used IS NULL
            AND entry.epoch < before_epoch
        RETURNING entry.reserved
    )
    SELECT sum(reserved) INTO released FROM ended;
    IF released IS NOT NULL THEN
        UPDATE celeriac.budgets SET reserved = reserved - released, last_seq = last_seq + 1
        WHERE budget_id = of_budget;
    END IF;
END $$;

-- The same for runs that have ended without another step. Some at a time, in the order of the budgets.
CREATE FUNCTION celeriac.release_ended() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    lost record;
BEGIN
    FOR lost IN
        SELECT DISTINCT entry.budget_id, entry.run_id FROM celeriac.budget_entries AS entry
        JOIN celeriac.budgets AS budget USING (budget_id)
        JOIN celeriac.runs AS run USING (run_id)
        WHERE entry.used IS NULL AND budget.measure NOT IN ('tokens', 'usd')
            AND run.finished_at IS NOT NULL
        ORDER BY 1, 2 LIMIT 100
    LOOP
        PERFORM FROM celeriac.budgets WHERE budget_id = lost.budget_id FOR NO KEY UPDATE;
        PERFORM celeriac.release_uncommitted(lost.budget_id, lost.run_id, 2147483647);
    END LOOP;
END $$;

-- Reserves what the step under this claim may use, of all budgets of its run or of none. `needs` has
-- an amount for each measure that the step uses. Without a refusal among the rows it is reserved;
-- the other rows are budgets whose soft limit this reaches and of which nobody has warned.
CREATE FUNCTION celeriac.reserve(of_run text, at_step integer, under_token uuid, needs jsonb)
    RETURNS TABLE (budget_id bigint, scope text, subject text, measure text, verdict text,
        needed numeric, used numeric, reserved numeric, soft_limit numeric, hard_limit numeric)
    LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    claimed_epoch integer;
    budget celeriac.budgets;
    need numeric;
    room numeric;
    is_refused boolean := false;
    granted bigint[] := '{}';  -- one that is made meanwhile was not asked
BEGIN
    SELECT epoch INTO claimed_epoch FROM celeriac.runs
    WHERE run_id = of_run AND step = at_step AND status = 'running' AND claim_token = under_token;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::bigint, NULL, NULL, NULL, 'fenced', NULL::numeric, NULL::numeric,
            NULL::numeric, NULL::numeric, NULL::numeric;
        RETURN;
    END IF;
    FOR budget IN SELECT * FROM celeriac.lock_budgets(of_run) LOOP
        need := (needs ->> budget.measure)::numeric;
        CONTINUE WHEN need IS NULL;
        PERFORM celeriac.release_uncommitted(budget.budget_id, of_run, claimed_epoch);
        SELECT * INTO budget FROM celeriac.budgets AS now_is
        WHERE now_is.budget_id = budget.budget_id;
        CONTINUE WHEN EXISTS (
            SELECT FROM celeriac.budget_entries AS entry
            WHERE (entry.budget_id, entry.run_id, entry.step, entry.epoch)
                = (budget.budget_id, of_run, at_step, claimed_epoch)
        );
        granted := granted || budget.budget_id;
        room := budget.hard_limit - budget.used - budget.reserved;
        IF room <= 0 OR need > room THEN
            is_refused := true;
            -- What calls in flight have reserved they may give back; then this is no refusal yet.
            room := room + celeriac.in_flight(budget.budget_id);
            verdict := CASE WHEN room > 0 AND need <= room THEN 'busy' ELSE budget.on_exceeded END;
        ELSIF budget.warned_at IS NULL AND budget.used + budget.reserved + need >= budget.soft_limit
        THEN
            verdict := 'warn';
        ELSE
            CONTINUE;
        END IF;
        RETURN QUERY SELECT budget.budget_id, budget.scope, budget.subject, budget.measure, verdict,
            need, budget.used, budget.reserved, budget.soft_limit, budget.hard_limit;
    END LOOP;
    IF is_refused THEN
        RETURN;
    END IF;
    FOR budget IN SELECT * FROM celeriac.lock_budgets(of_run) LOOP
        CONTINUE WHEN budget.budget_id <> ALL (granted);
        need := (needs ->> budget.measure)::numeric;
        INSERT INTO celeriac.budget_entries (budget_id, tenant_id, run_id, step, epoch, reserved,
            hard_limit, reserved_seq)
        VALUES (budget.budget_id, budget.tenant_id, of_run, at_step, claimed_epoch, need,
            budget.hard_limit, budget.last_seq + 1);
        UPDATE celeriac.budgets AS held SET reserved = held.reserved + need,
            last_seq = held.last_seq + 1
        WHERE held.budget_id = budget.budget_id;
    END LOOP;
END $$;

-- What the calls that are being made have reserved of a budget. A reservation whose claim is over
-- belongs to a call of which nobody knows what came of it.
CREATE FUNCTION celeriac.in_flight(of_budget bigint) RETURNS numeric LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(sum(entry.reserved), 0)
    FROM celeriac.budget_entries AS entry
    JOIN celeriac.runs AS run ON run.run_id = entry.run_id AND run.status = 'running'
        AND run.epoch = entry.epoch AND run.step = entry.step
    WHERE entry.budget_id = of_budget AND entry.used IS NULL
$$;

-- Settles what the step has reserved with what it used, in the step's own commit. A measure that is
-- null in `uses` stays reserved: the provider may bill the call, and nobody knows what.
CREATE FUNCTION celeriac.settle(of_run text, at_step integer, at_epoch integer, uses jsonb,
        warned jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    budget celeriac.budgets;
    amount numeric;
    given_back numeric;
BEGIN
    FOR budget IN SELECT * FROM celeriac.lock_budgets(of_run) LOOP
        PERFORM celeriac.release_uncommitted(budget.budget_id, of_run, at_epoch);
        amount := (uses ->> budget.measure)::numeric;
        IF amount IS NOT NULL THEN
            UPDATE celeriac.budget_entries AS entry SET used = amount,
                settled_at = clock_timestamp(), settled_seq = (SELECT last_seq + 1
                    FROM celeriac.budgets AS held WHERE held.budget_id = entry.budget_id)
            WHERE entry.budget_id = budget.budget_id AND entry.run_id = of_run
                AND entry.step = at_step AND entry.epoch = at_epoch AND entry.used IS NULL
            RETURNING entry.reserved INTO given_back;
            IF NOT FOUND THEN
                CONTINUE WHEN amount = 0;
                -- It began before there was this budget, or what it found out could not be refused.
                given_back := 0;
                INSERT INTO celeriac.budget_entries (budget_id, tenant_id, run_id, step, epoch,
                    reserved, used, reserved_seq, settled_seq, settled_at)
                SELECT budget.budget_id, budget.tenant_id, of_run, at_step, at_epoch, 0, amount,
                    last_seq + 1, last_seq + 1, clock_timestamp()
                FROM celeriac.budgets AS held WHERE held.budget_id = budget.budget_id;
            END IF;
            UPDATE celeriac.budgets AS held SET used = held.used + amount,
                reserved = held.reserved - given_back, last_seq = held.last_seq + 1
            WHERE held.budget_id = budget.budget_id;
        END IF;
        IF warned ? budget.budget_id::text THEN
            UPDATE celeriac.budgets AS held SET warned_at = clock_timestamp()
            WHERE held.budget_id = budget.budget_id AND held.warned_at IS NULL;
        END IF;
    END LOOP;
END $$;

-- Runs that wait for room --------------------------------------------------------------------------

ALTER TABLE celeriac.runs
    ADD COLUMN awaited_budget_id bigint,  -- of a run that waits in `waiting_budget`
    ADD COLUMN awaited_amount numeric,
    DROP CONSTRAINT runs_phase,
    ADD CONSTRAINT runs_phase CHECK (
        (CASE status
            WHEN 'queued' THEN phase IN ('waiting_model', 'waiting_tool')
            WHEN 'running' THEN phase IN ('waiting_model', 'waiting_tool')
            WHEN 'paused' THEN phase IN (
                'waiting_approval', 'waiting_external', 'waiting_timer', 'waiting_child',
                'waiting_user', 'waiting_thread', 'waiting_worker', 'waiting_budget')
            WHEN 'needs_attention' THEN phase IN ('waiting_model', 'waiting_tool', 'waiting_user')
            ELSE status IN ('completed', 'failed', 'cancelled') AND phase IS NULL
        END) IS TRUE  -- a check that is null, as of a missing phase, would let it pass
    );

-- What was sent to a model, where that was not simply everything -----------------------------------

-- Written before the model is asked, so that whoever asks again after a crash sends the same.
CREATE TABLE celeriac.selections (
    run_id text NOT NULL REFERENCES celeriac.runs,
    step integer NOT NULL,
    selection jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (run_id, step)
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON celeriac.selections
    FOR EACH STATEMENT EXECUTE FUNCTION celeriac.refuse_change();

-- The latest of a user's messages is found without reading those after it.
CREATE INDEX messages_of_user ON celeriac.messages (run_id, position) WHERE role = 'user';

-- Who may do what ----------------------------------------------------------------------------------

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT SELECT ON celeriac.budgets, celeriac.budget_entries, celeriac.budget_changes,
            celeriac.selections TO celeriac_worker;
        GRANT INSERT ON celeriac.budget_entries, celeriac.selections TO celeriac_worker;
        -- A worker counts; what the limits are is for people to say.
        GRANT UPDATE (used, reserved, last_seq, warned_at) ON celeriac.budgets TO celeriac_worker;
        GRANT UPDATE (used, settled_seq, settled_at) ON celeriac.budget_entries TO celeriac_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_reviewer') THEN
        GRANT INSERT ON celeriac.budgets, celeriac.budget_changes TO celeriac_reviewer;
        GRANT UPDATE (soft_limit, hard_limit, on_exceeded) ON celeriac.budgets TO celeriac_reviewer;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    GRANT SELECT ON celeriac.budgets, celeriac.budget_entries, celeriac.budget_changes,
        celeriac.selections TO celeriac_api;
    GRANT INSERT ON celeriac.budgets, celeriac.budget_changes TO celeriac_api;
    GRANT UPDATE (soft_limit, hard_limit, on_exceeded, last_seq, warned_at) ON celeriac.budgets
        TO celeriac_api;
END $$;
DO $$
DECLARE
    of_tenant text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        RETURN;
    END IF;
    FOREACH of_tenant IN ARRAY '{budgets,budget_entries,budget_changes}'::text[] LOOP
        EXECUTE format('ALTER TABLE celeriac.%I ENABLE ROW LEVEL SECURITY', of_tenant);
        EXECUTE format('CREATE POLICY everybody ON celeriac.%I USING (true)', of_tenant);
        EXECUTE format('CREATE POLICY own_tenant ON celeriac.%I AS RESTRICTIVE TO celeriac_api'
            ' USING (tenant_id = ANY ((SELECT celeriac.current_tenants())::text[]))', of_tenant);
    END LOOP;
    ALTER TABLE celeriac.selections ENABLE ROW LEVEL SECURITY;
    CREATE POLICY everybody ON celeriac.selections USING (true);
    CREATE POLICY own_tenant ON celeriac.selections AS RESTRICTIVE TO celeriac_api
        USING (EXISTS (SELECT FROM celeriac.runs AS mine WHERE mine.run_id = selections.run_id));
END $$;
