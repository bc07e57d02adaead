-- What people and other processes ask of a run while it goes on (docs/step.md).

-- On the run's own row, not counted in the inbox: a claim that waited for the row's lock sees the
-- row as it is now, but other tables as they were when it began to wait.
ALTER TABLE celeriac.runs
    ADD COLUMN words_waiting integer NOT NULL DEFAULT 0 CHECK (words_waiting >= 0),
    ADD COLUMN last_said_at timestamptz;

-- A call that nobody has begun can be taken back, one that is certainly not done be given up.
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
        WHEN 'not_done' THEN now_is IN ('in_flight', 'failed')
        WHEN 'committed' THEN now_is = 'known_bad'
        WHEN 'known_bad' THEN now_is = 'rolled_back'
        ELSE false
    END
$$;
