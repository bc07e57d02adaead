-- Sessions of the console, and one-time tokens that nobody showed, are kept for a day after their end.
-- Who signed in and out is in the audit trail.

CREATE INDEX console_sessions_over ON celeriac.console_sessions
    ((least(ended_at, coalesce(expires_at, code_expires_at))));

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        -- A scheduler forgets what is old.
        GRANT SELECT (session_id, expires_at, code_expires_at, ended_at), DELETE
            ON celeriac.console_sessions TO celeriac_worker;
    END IF;
END $$;
