-- The logins of an installation, for psql. Run it in Celeriac's database, before `celeriac migrate`,
-- as a login that may create roles:
--
--     APP_PASSWORD=... API_PASSWORD=... psql postgresql://OWNER@HOST/DATABASE -f deploy/postgres/roles.sql
--
-- The owner of the database migrates it. Workers, schedulers and clients use `celeriac_app`: it may
-- not change the history, nor any table's definition. The HTTP API uses `celeriac_web`, if it has a
-- password: it may decide proposals, which a worker may not, and sees one tenant at a time.

\set ON_ERROR_STOP on
\getenv password APP_PASSWORD
BEGIN;  -- without the password nothing is made

-- What it may do, `celeriac migrate` grants. Roles belong to the whole cluster, so another database's
-- installation may have made it.
SELECT 'CREATE ROLE celeriac_worker NOLOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') \gexec

SELECT 'CREATE ROLE celeriac_app LOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_app') \gexec
ALTER ROLE celeriac_app PASSWORD :'password';
GRANT celeriac_worker TO celeriac_app;

-- People decide about proposals through logins of their own, which you make and put into this role:
--     CREATE ROLE review_desk LOGIN PASSWORD '...' IN ROLE celeriac_reviewer;
SELECT 'CREATE ROLE celeriac_reviewer NOLOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_reviewer') \gexec
GRANT celeriac_worker TO celeriac_reviewer;

-- What is old is pruned, and who asks for it is forgotten, through logins of their own as well:
--     CREATE ROLE keeper LOGIN PASSWORD '...' IN ROLE celeriac_retention;
SELECT 'CREATE ROLE celeriac_retention NOLOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_retention') \gexec
GRANT celeriac_worker TO celeriac_retention;

-- Auditors read views, and nothing else:
--     CREATE ROLE auditor LOGIN PASSWORD '...' IN ROLE celeriac_auditor;
SELECT 'CREATE ROLE celeriac_auditor NOLOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_auditor') \gexec

-- The schemas of your own tables, which transactional tools write in the step's transaction.
GRANT CREATE ON DATABASE :"DBNAME" TO celeriac_app;

\getenv api_password API_PASSWORD
\if :{?api_password}
SELECT 'CREATE ROLE celeriac_api NOLOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') \gexec

SELECT 'CREATE ROLE celeriac_web LOGIN'
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_web') \gexec
ALTER ROLE celeriac_web PASSWORD :'api_password';
GRANT celeriac_api TO celeriac_web;
\endif
COMMIT;
