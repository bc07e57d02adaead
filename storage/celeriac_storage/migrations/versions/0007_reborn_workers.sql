-- A worker that was declared dead and lives goes on under a new id. What it is doing meanwhile it does
-- under the old one, so whoever finds a call of that has to know.

ALTER TABLE celeriac.workers ADD COLUMN predecessor text;  -- what the same process was called before

-- A worker that registers an agent's definition again makes it the latest.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT UPDATE (registered_at) ON celeriac.agents TO celeriac_worker;
    END IF;
END $$;
