-- What must be so before a run may complete (docs/contracts.md).

-- The run keeps the contract that it was started with, whatever is deployed meanwhile. What it is
-- held against stands in effect_attempts.evidence, which is append-only already.
ALTER TABLE celeriac.runs ADD COLUMN contract jsonb;

-- Only a statement that sets this column fires it, and no step's does.
CREATE FUNCTION celeriac.guard_contract() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.contract IS DISTINCT FROM NEW.contract THEN
        RAISE EXCEPTION 'run %: its contract never changes', OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_contract BEFORE UPDATE OF contract ON celeriac.runs FOR EACH ROW
    EXECUTE FUNCTION celeriac.guard_contract();
