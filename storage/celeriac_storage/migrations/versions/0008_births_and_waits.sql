-- What a row may be born as, and which waits count.

-- Transitions were guarded, and births were not: a worker's login could have inserted a proposal
-- that was approved already, or a call, and executed it.
CREATE FUNCTION celeriac.guard_approval_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status NOT IN ('pending', 'cancelled') THEN
        RAISE EXCEPTION 'approval % cannot begin as %: nobody has decided', NEW.approval_id, NEW.status
            USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER born_undecided BEFORE INSERT ON celeriac.approvals FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_approval_birth();

CREATE FUNCTION celeriac.guard_effect_birth() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state NOT IN ('planned', 'proposed', 'invalid') THEN
        RAISE EXCEPTION 'effect % of run % cannot begin as %', NEW.call_id, NEW.run_id, NEW.state
            USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER born_unmade BEFORE INSERT ON celeriac.effects FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_effect_birth();

-- A wait before the first claim was added to `waited`, while the wall time counts from that claim.
-- And a run could have been made the rollback of another one.
CREATE OR REPLACE FUNCTION celeriac.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.run_id <> NEW.run_id OR OLD.tenant_id <> NEW.tenant_id OR OLD.user_id <> NEW.user_id
        OR OLD.thread_id <> NEW.thread_id OR OLD.agent <> NEW.agent OR OLD.kind <> NEW.kind
        OR OLD.parent_run_id IS DISTINCT FROM NEW.parent_run_id OR NEW.step < OLD.step
        OR NEW.last_event_seq < OLD.last_event_seq OR NEW.epoch < OLD.epoch
        OR (OLD.input IS DISTINCT FROM NEW.input AND NEW.erased_at IS NULL)
    THEN
        RAISE EXCEPTION 'run %: owner, agent, kind, parent, input and step history never change', OLD.run_id
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
        IF OLD.started_at IS NOT NULL THEN
            NEW.waited := OLD.waited + (clock_timestamp() - OLD.paused_at);
        END IF;
        NEW.paused_at := NULL;
    END IF;
    IF NEW.status IN ('paused', 'needs_attention') THEN
        NEW.paused_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;

-- Who decides has a login of another kind than who executes: a worker's may neither write decisions
-- nor principals.
DO $$
BEGIN
    CREATE ROLE celeriac_reviewer NOLOGIN;
    -- It may be missing: the login of an earlier migration could make no roles.
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT celeriac_worker TO celeriac_reviewer;  -- reads, and lets runs go on
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role celeriac_reviewer was not created: this login may not create roles';
END $$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_reviewer') THEN
        GRANT INSERT ON celeriac.approval_decisions TO celeriac_reviewer;
        GRANT INSERT, UPDATE ON celeriac.principals TO celeriac_reviewer;
        GRANT UPDATE (status, surfaced_at, decided_at, decided_by) ON celeriac.approvals
            TO celeriac_reviewer;
    END IF;
END $$;
