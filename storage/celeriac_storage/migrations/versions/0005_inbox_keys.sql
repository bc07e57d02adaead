-- What makes saying something again harmless (docs/step.md). Unique over all runs: after an error the
-- same start may come when another run of its thread listens.
ALTER TABLE celeriac.inbox ADD COLUMN key text;
CREATE UNIQUE INDEX inbox_key ON celeriac.inbox (key) WHERE key IS NOT NULL;
