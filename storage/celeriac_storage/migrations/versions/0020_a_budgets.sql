-- Reserving locks the budgets of a run once, and a pruned run keeps what its model calls cost.

-- As before (migration 0011), but for the second pass: the rows that it changes are locked, and known.
CREATE OR REPLACE FUNCTION celeriac.reserve(of_run text, at_step integer, under_token uuid, needs jsonb)
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
    INSERT INTO celeriac.budget_entries (budget_id, tenant_id, run_id, step, epoch, reserved,
        hard_limit, reserved_seq)
    SELECT held.budget_id, held.tenant_id, of_run, at_step, claimed_epoch,
        (needs ->> held.measure)::numeric, held.hard_limit, held.last_seq + 1
    FROM celeriac.budgets AS held WHERE held.budget_id = ANY (granted);
    UPDATE celeriac.budgets AS held SET last_seq = held.last_seq + 1,
        reserved = held.reserved + (needs ->> held.measure)::numeric
    WHERE held.budget_id = ANY (granted);
END $$;

-- What a run's model calls cost goes with them when it is pruned, unless it is noted on the run.
ALTER TABLE celeriac.runs
    ADD COLUMN pruned_usd numeric NOT NULL DEFAULT 0,
    ADD COLUMN pruned_unpriced_calls integer NOT NULL DEFAULT 0;

CREATE FUNCTION celeriac.note_pruned_cost() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE celeriac.runs AS run SET pruned_usd = pruned_usd + gone.usd,
        pruned_unpriced_calls = pruned_unpriced_calls + gone.unpriced_calls
    FROM (
        SELECT run_id, coalesce(sum(cost), 0) AS usd,
            count(*) FILTER (WHERE cost IS NULL AND outcome = 'answered') AS unpriced_calls
        FROM pruned_calls GROUP BY run_id
    ) AS gone
    WHERE run.run_id = gone.run_id;
    RETURN NULL;
END $$;
CREATE TRIGGER note_pruned_cost AFTER DELETE ON celeriac.model_calls
    REFERENCING OLD TABLE AS pruned_calls FOR EACH STATEMENT
    EXECUTE FUNCTION celeriac.note_pruned_cost();
