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
        WHEN 'not_done' THEN now_is IN ('in_flight', 'failed', 'not_done', 'precondition_failed')
        WHEN 'committed' THEN now_is = 'known_bad'
        WHEN 'known_bad' THEN now_is = 'rolled_back'
        ELSE false
    END
$$;
