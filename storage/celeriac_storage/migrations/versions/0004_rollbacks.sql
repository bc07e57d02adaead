-- Preconditions and rollbacks (docs/effects.md).

-- How often the call's precondition could not be read: nothing was tried, so these are no attempts.
ALTER TABLE celeriac.effects ADD COLUMN checks smallint NOT NULL DEFAULT 0 CHECK (checks >= 0);

CREATE OR REPLACE FUNCTION celeriac.effect_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'planned' THEN now_is IN ('planned', 'proposed', 'in_flight', 'committed', 'failed',
            'invalid', 'precondition_failed', 'rejected')
        WHEN 'proposed' THEN now_is IN ('approved', 'rejected', 'expired', 'proposed')
        WHEN 'approved' THEN now_is IN ('approved', 'in_flight', 'committed', 'failed',
            'precondition_failed', 'planned', 'rejected')
        WHEN 'in_flight' THEN now_is IN ('committed', 'failed', 'not_done', 'unknown')
        WHEN 'unknown' THEN now_is IN ('committed', 'failed', 'not_done', 'known_bad', 'unknown')
        WHEN 'not_done' THEN now_is IN ('in_flight', 'committed', 'failed', 'not_done',
            'precondition_failed')
        WHEN 'committed' THEN now_is IN ('known_bad', 'rolled_back')
        WHEN 'known_bad' THEN now_is IN ('committed', 'rolled_back')
        ELSE false
    END
$$;

-- A rollback is a run of its own, since one that has ended never changes. It undoes its parent.
ALTER TABLE celeriac.runs
    DROP CONSTRAINT runs_kind_check,
    ADD CONSTRAINT runs_kind_check CHECK (kind IN ('agent', 'workflow', 'rollback')),
    ADD CONSTRAINT runs_rollback CHECK (kind <> 'rollback' OR parent_run_id IS NOT NULL);
CREATE UNIQUE INDEX runs_one_rollback ON celeriac.runs (parent_run_id)
    WHERE kind = 'rollback' AND status NOT IN ('completed', 'failed', 'cancelled');
CREATE INDEX runs_parent ON celeriac.runs (parent_run_id) WHERE parent_run_id IS NOT NULL;

-- An undo is an effect. `rolls_back` is the call that it takes back; no foreign key, which every
-- other effect would pay for: the row is made from that of the call, and neither is ever deleted.
ALTER TABLE celeriac.effects
    ADD COLUMN rolls_back_run text,
    ADD COLUMN rolls_back_kind text
        CHECK (rolls_back_kind IN ('in_band', 'compensate', 'out_of_band', 'none')),
    -- Whether it has taken effect or may have; kept by trigger. Not the state itself, which would
    -- have every other effect's update write to the index below.
    ADD COLUMN rolls_back_stands boolean,
    ADD CONSTRAINT effects_rollback CHECK (
        (rolls_back IS NULL) = (rolls_back_run IS NULL)
        AND (rolls_back IS NULL) = (rolls_back_kind IS NULL)
    );
-- However many rollbacks there are, a call is undone once.
CREATE UNIQUE INDEX effects_undone_once ON celeriac.effects (rolls_back_run, rolls_back)
    WHERE rolls_back_stands;

CREATE OR REPLACE FUNCTION celeriac.guard_effect() RETURNS trigger LANGUAGE plpgsql AS $$
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
    IF OLD.state = 'committed' AND NEW.state = 'rolled_back' AND pg_trigger_depth() = 1 THEN
        RAISE EXCEPTION 'effect % of run % is rolled back by the commit of its undo only',
            OLD.call_id, OLD.run_id USING ERRCODE = 'CE006';
    END IF;
    IF OLD.rolls_back IS NULL THEN
        IF NEW.rolls_back IS NOT NULL THEN
            RAISE EXCEPTION 'effect % of run % is no undo', OLD.call_id, OLD.run_id
                USING ERRCODE = 'CE003';
        END IF;
        IF OLD.state = 'known_bad' AND NEW.state = 'committed' THEN
            RAISE EXCEPTION 'effect % of run % is known_bad, and only an undo can be made by hand',
                OLD.call_id, OLD.run_id USING ERRCODE = 'CE002';
        END IF;
        RETURN NEW;
    END IF;
    IF (OLD.rolls_back_run, OLD.rolls_back, OLD.rolls_back_kind)
        IS DISTINCT FROM (NEW.rolls_back_run, NEW.rolls_back, NEW.rolls_back_kind) THEN
        RAISE EXCEPTION 'effect % of run %: what it takes back never changes',
            OLD.call_id, OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    NEW.rolls_back_stands := nullif(
        NEW.state IN ('in_flight', 'unknown', 'committed', 'known_bad'), false);
    -- A person may be settling the call just now: whoever comes second sees what the first has done.
    IF NEW.state = 'in_flight' AND OLD.state <> 'in_flight' THEN
        PERFORM FROM celeriac.effects
        WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back
            AND state IN ('committed', 'known_bad')
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'effect % of run % is not in effect, and there is nothing to undo',
                NEW.rolls_back, NEW.rolls_back_run USING ERRCODE = 'CE006';
        END IF;
    END IF;
    -- In the transaction that commits the undo, whoever does: a step, or a person who says so.
    IF NEW.state = 'committed' AND OLD.state <> 'committed' AND NEW.rolls_back_kind <> 'compensate'
    THEN
        UPDATE celeriac.effects SET state = 'rolled_back'
        WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back
            AND state IN ('committed', 'known_bad');
        IF NOT FOUND AND NOT EXISTS (
            SELECT FROM celeriac.effects
            WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back AND state = 'rolled_back'
        ) THEN
            RAISE EXCEPTION 'effect % of run % has not taken effect, and cannot be rolled back',
                NEW.rolls_back, NEW.rolls_back_run USING ERRCODE = 'CE006';
        END IF;
    END IF;
    RETURN NEW;
END $$;
