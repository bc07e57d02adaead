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
