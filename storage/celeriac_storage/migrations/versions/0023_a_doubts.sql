-- A call that is sent again with its key because nobody knows what came of it stays unknown until
-- there is an answer (docs/effects.md).

CREATE OR REPLACE FUNCTION celeriac.effect_may_become(was text, now_is text) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE was
        WHEN 'planned' THEN now_is IN ('planned', 'proposed', 'in_flight', 'committed', 'failed',
            'invalid', 'precondition_failed', 'rejected')
        WHEN 'proposed' THEN now_is IN ('approved', 'rejected', 'expired', 'proposed')
        WHEN 'approved' THEN now_is IN ('approved', 'in_flight', 'committed', 'failed',
            'precondition_failed', 'planned', 'rejected')
        WHEN 'in_flight' THEN now_is IN ('committed', 'failed', 'not_done', 'unknown')
        WHEN 'unknown' THEN now_is IN ('committed', 'failed', 'not_done', 'known_bad', 'unknown',
            'in_flight')
        WHEN 'not_done' THEN now_is IN ('in_flight', 'committed', 'failed', 'not_done',
            'precondition_failed')
        WHEN 'committed' THEN now_is IN ('known_bad', 'rolled_back')
        WHEN 'known_bad' THEN now_is IN ('committed', 'rolled_back')
        WHEN 'precondition_failed' THEN now_is = 'committed'
        ELSE false
    END
$$;
