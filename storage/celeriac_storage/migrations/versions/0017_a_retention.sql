-- What may be taken away again: payloads, by erasing; whole runs, by pruning (docs/retention.md).
--
-- Both are functions of the tables' owner, and the only way past the append-only triggers. Who may
-- call them is a member of celeriac_retention.

ALTER TABLE celeriac.runs ADD COLUMN pruned_at timestamptz,
    ADD CONSTRAINT runs_pruned CHECK (pruned_at IS NULL
        OR erased_at IS NOT NULL AND status IN ('completed', 'failed', 'cancelled'));
CREATE INDEX runs_finished ON celeriac.runs (finished_at) WHERE pruned_at IS NULL;
CREATE INDEX runs_forked_from ON celeriac.runs (forked_from) WHERE forked_from IS NOT NULL;

-- Words under a key stay as a hash, so that saying them again is still noticed.
ALTER TABLE celeriac.inbox ALTER COLUMN body DROP NOT NULL,
    ADD COLUMN hash bytea,  -- of an erased body
    ADD COLUMN erased_at timestamptz,
    ADD CONSTRAINT inbox_erased CHECK (
        (body IS NULL) = (erased_at IS NOT NULL) AND (body IS NULL) = (hash IS NOT NULL));

-- A step stores a large value before the commit that refers to it, so what is not referred to is swept
-- only an hour after somebody stored it last.
ALTER TABLE celeriac.artifacts
    ADD COLUMN stored_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN unused_since timestamptz;
CREATE INDEX artifacts_unused ON celeriac.artifacts (unused_since) WHERE unused_since IS NOT NULL;

CREATE FUNCTION celeriac.touch_artifact(of_hash bytea) RETURNS boolean
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH touched AS (
        UPDATE celeriac.artifacts SET stored_at = clock_timestamp() WHERE hash = of_hash RETURNING 1
    )
    SELECT EXISTS (SELECT FROM touched)
$$;

-- Whether a trigger lets a change pass: one of the functions below makes it, as the tables' owner.
-- Not in SQL: inlined, it would slow down the triggers that ask it.
CREATE FUNCTION celeriac.is_retaining() RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN current_setting('celeriac.retention', true) IS NOT DISTINCT FROM 'on'
        AND current_user = (SELECT pg_get_userbyid(relowner) FROM pg_class
            WHERE oid = 'celeriac.runs'::regclass);
END $$;

CREATE OR REPLACE FUNCTION celeriac.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'TRUNCATE' AND celeriac.is_retaining() THEN
        RETURN NULL;  -- of a statement's trigger it means nothing
    END IF;
    RAISE EXCEPTION 'celeriac.% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'CE001';
END $$;

CREATE OR REPLACE FUNCTION celeriac.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.run_id <> NEW.run_id OR OLD.tenant_id <> NEW.tenant_id OR OLD.user_id <> NEW.user_id
        OR OLD.thread_id <> NEW.thread_id OR OLD.agent <> NEW.agent OR OLD.kind <> NEW.kind
        OR OLD.parent_run_id IS DISTINCT FROM NEW.parent_run_id OR NEW.step < OLD.step
        OR NEW.last_event_seq < OLD.last_event_seq OR NEW.epoch < OLD.epoch
        OR (OLD.input IS DISTINCT FROM NEW.input AND NOT celeriac.is_retaining())
    THEN
        RAISE EXCEPTION 'run %: owner, agent, kind, parent, input and step history never change', OLD.run_id
            USING ERRCODE = 'CE003';
    END IF;
    IF OLD.status = NEW.status AND OLD.finished_at IS NULL THEN
        RETURN NEW;
    END IF;
    IF OLD.status = NEW.status AND celeriac.is_retaining() THEN
        RETURN NEW;
    END IF;
    IF NOT celeriac.run_may_become(OLD.status, NEW.status) THEN
        RAISE EXCEPTION 'run % is %: it cannot become %', OLD.run_id, OLD.status, NEW.status
            USING ERRCODE = 'CE002';
    END IF;
    -- A run's wall time does not count what it waited, for a person least of all.
    IF OLD.status IN ('paused', 'needs_attention') THEN
        IF OLD.started_at IS NOT NULL THEN
            NEW.waited := OLD.waited + (clock_timestamp() - OLD.paused_at);
        END IF;
        NEW.paused_at := NULL;
    END IF;
    IF NEW.status IN ('paused', 'needs_attention') THEN
        NEW.paused_at := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION celeriac.guard_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = NEW.state AND celeriac.is_retaining() THEN
        RETURN NEW;
    END IF;
    IF NOT celeriac.effect_may_become(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'effect % of run % is %: it cannot become %',
            OLD.call_id, OLD.run_id, OLD.state, NEW.state USING ERRCODE = 'CE002';
    END IF;
    IF (OLD.arguments IS DISTINCT FROM NEW.arguments OR OLD.fingerprint <> NEW.fingerprint)
        AND OLD.state <> 'proposed' THEN
        RAISE EXCEPTION 'effect % of run % is %: its arguments are frozen',
            OLD.call_id, OLD.run_id, OLD.state USING ERRCODE = 'CE003';
    END IF;
    IF OLD.state = 'committed' AND NEW.state = 'rolled_back' AND pg_trigger_depth() = 1 THEN
        RAISE EXCEPTION 'effect % of run % is rolled back by the commit of its undo only',
            OLD.call_id, OLD.run_id USING ERRCODE = 'CE006';
    END IF;
    IF OLD.rolls_back IS NULL THEN
        IF NEW.rolls_back IS NOT NULL THEN
            RAISE EXCEPTION 'effect % of run % is no undo', OLD.call_id, OLD.run_id
                USING ERRCODE = 'CE003';
        END IF;
        IF OLD.state = 'known_bad' AND NEW.state = 'committed' THEN
            RAISE EXCEPTION 'effect % of run % is known_bad, and only an undo can be made by hand',
                OLD.call_id, OLD.run_id USING ERRCODE = 'CE002';
        END IF;
        RETURN NEW;
    END IF;
    IF (OLD.rolls_back_run, OLD.rolls_back, OLD.rolls_back_kind)
        IS DISTINCT FROM (NEW.rolls_back_run, NEW.rolls_back, NEW.rolls_back_kind) THEN
        RAISE EXCEPTION 'effect % of run %: what it takes back never changes',
            OLD.call_id, OLD.run_id USING ERRCODE = 'CE003';
    END IF;
    NEW.rolls_back_stands := nullif(
        NEW.state IN ('in_flight', 'unknown', 'committed', 'known_bad'), false);
    -- A person may be settling the call just now: whoever comes second sees what the first has done.
    IF NEW.state = 'in_flight' AND OLD.state <> 'in_flight' THEN
        PERFORM FROM celeriac.effects
        WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back
            AND state IN ('committed', 'known_bad')
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'effect % of run % is not in effect, and there is nothing to undo',
                NEW.rolls_back, NEW.rolls_back_run USING ERRCODE = 'CE006';
        END IF;
    END IF;
    -- In the transaction that commits the undo, whoever does: a step, or a person who says so.
    IF NEW.state = 'committed' AND OLD.state <> 'committed' AND NEW.rolls_back_kind <> 'compensate'
    THEN
        UPDATE celeriac.effects SET state = 'rolled_back'
        WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back
            AND state IN ('committed', 'known_bad');
        IF NOT FOUND AND NOT EXISTS (
            SELECT FROM celeriac.effects
            WHERE run_id = NEW.rolls_back_run AND call_id = NEW.rolls_back AND state = 'rolled_back'
        ) THEN
            RAISE EXCEPTION 'effect % of run % has not taken effect, and cannot be rolled back',
                NEW.rolls_back, NEW.rolls_back_run USING ERRCODE = 'CE006';
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION celeriac.guard_approval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT celeriac.approval_may_become(OLD.status, NEW.status) THEN
        RAISE EXCEPTION 'approval % is %: it cannot become %',
            OLD.approval_id, OLD.status, NEW.status USING ERRCODE = 'CE002';
    END IF;
    IF ROW(OLD.approval_id, OLD.tenant_id, OLD.run_id, OLD.call_id, OLD.version, OLD.agent_hash,
            OLD.tool, OLD.tool_version, OLD.arguments_hash, OLD.reason, OLD.rollback_plan,
            OLD.idempotency_key, OLD.requirement, OLD.quorum, OLD.policy_version, OLD.requested_by,
            OLD.edited_from, OLD.created_at, OLD.expires_at)
        IS DISTINCT FROM
        ROW(NEW.approval_id, NEW.tenant_id, NEW.run_id, NEW.call_id, NEW.version, NEW.agent_hash,
            NEW.tool, NEW.tool_version, NEW.arguments_hash, NEW.reason, NEW.rollback_plan,
            NEW.idempotency_key, NEW.requirement, NEW.quorum, NEW.policy_version, NEW.requested_by,
            NEW.edited_from, NEW.created_at, NEW.expires_at)
        OR NOT celeriac.is_retaining() AND ROW(OLD.arguments, OLD.intent, OLD.data_lineage,
            OLD.permissions_touched, OLD.blast_radius)
        IS DISTINCT FROM ROW(NEW.arguments, NEW.intent, NEW.data_lineage,
            NEW.permissions_touched, NEW.blast_radius)
        OR OLD.surfaced_at IS NOT NULL AND NEW.surfaced_at IS DISTINCT FROM OLD.surfaced_at
        OR OLD.consumed_at IS NOT NULL AND NEW.consumed_at IS DISTINCT FROM OLD.consumed_at
    THEN
        RAISE EXCEPTION 'approval %: what is proposed, shown or consumed never changes',
            OLD.approval_id USING ERRCODE = 'CE003';
    END IF;
    IF OLD.status = NEW.status THEN
        RETURN NEW;
    END IF;
    -- Each ending has its evidence in rows that a worker may not write, or in the clock.
    IF NOT (CASE NEW.status
        -- By the decision's own moment, which cannot be in the past: a look at the clock from here
        -- would refuse what was decided in the last instant.
        WHEN 'approved' THEN NEW.decided_at >= statement_timestamp()
            AND (NEW.expires_at > NEW.decided_at) IS NOT FALSE AND (
            SELECT count(*) FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'approve'
                AND arguments_hash = NEW.arguments_hash) >= NEW.quorum
        WHEN 'rejected' THEN EXISTS (SELECT FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'reject')
        WHEN 'superseded' THEN EXISTS (SELECT FROM celeriac.approval_decisions
            WHERE approval_id = NEW.approval_id AND decision = 'edit')
        WHEN 'expired' THEN (NEW.expires_at <= clock_timestamp()) IS TRUE
        ELSE true
    END) THEN
        RAISE EXCEPTION 'approval %: nothing says that it is %', OLD.approval_id, NEW.status
            USING ERRCODE = 'CE006';
    END IF;
    RETURN NEW;
END $$;

-- Erasing -----------------------------------------------------------------------------------------

-- A line of history or of the audit without the free text in it; what kind of error it was stays.
CREATE FUNCTION celeriac.without_text(data jsonb, keys text[]) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(key, CASE
        WHEN key = ANY (keys) AND jsonb_typeof(value) = 'object' THEN jsonb_build_object(
            'kind', coalesce(value ->> 'kind', 'error'), 'message', '(erased)')
        WHEN key = ANY (keys) AND jsonb_typeof(value) = 'string' THEN '"(erased)"'::jsonb
        WHEN key = ANY (keys) THEN 'null'::jsonb
        ELSE value
    END), '{}') FROM jsonb_each(data)
$$;

CREATE FUNCTION celeriac.kind_of_error(error jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT celeriac.without_text(jsonb_build_object('error', error), '{error}') -> 'error'
    WHERE error IS NOT NULL
$$;

-- Whether nothing more is to happen with the run: it has ended; no call of it waits for a word about
-- what came of it; no run goes on that has it in view, in its thread, as its child, or undoing it.
CREATE FUNCTION celeriac.is_at_rest(of_run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM celeriac.runs AS run
        WHERE run_id = of_run AND status IN ('completed', 'failed', 'cancelled')
            AND NOT EXISTS (
                SELECT FROM celeriac.effects
                WHERE effects.run_id = run.run_id AND state IN ('in_flight', 'unknown', 'known_bad')
            )
            AND NOT EXISTS (
                SELECT FROM celeriac.runs AS beside
                WHERE (beside.tenant_id, beside.thread_id) = (run.tenant_id, run.thread_id)
                    AND beside.status NOT IN ('completed', 'failed', 'cancelled')
            )
            AND NOT EXISTS (
                SELECT FROM celeriac.runs AS child
                WHERE child.parent_run_id = run.run_id
                    AND child.status NOT IN ('completed', 'failed', 'cancelled')
            )
    )
$$;

-- Takes the payload out of what the runs have left. The caller has locked them, and they are at rest.
CREATE FUNCTION celeriac.take_payload(of_runs text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_erased CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE celeriac.runs SET input = NULL, result = NULL,
        error = celeriac.kind_of_error(error),
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.messages SET body = NULL, erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.inbox SET hash = sha256(convert_to(body::text, 'UTF8')), body = NULL,
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    -- A reason is free text where a person gave it, and a code where the scheduler did.
    UPDATE celeriac.events SET data = celeriac.without_text(data, CASE type
        WHEN 'run.recovered' THEN '{}'
        WHEN 'run.needs_attention' THEN '{error}'
        ELSE '{text,why,message,error,reason}'
    END::text[])
    WHERE run_id = ANY (of_runs) AND data ?| '{text,why,message,error,reason}';
    UPDATE celeriac.artifacts SET unused_since = now_erased
    FROM celeriac.effects
    WHERE run_id = ANY (of_runs) AND result_artifact = artifacts.hash AND unused_since IS NULL;
    UPDATE celeriac.effects SET arguments = NULL, result = NULL,
        result_hash = coalesce(result_hash, result_artifact), result_artifact = NULL,
        error = celeriac.kind_of_error(error),
        erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    -- What the checks of an attempt read in it, and no words.
    UPDATE celeriac.effect_attempts SET evidence = (
        SELECT jsonb_object_agg(key, value) FROM jsonb_each(evidence)
        WHERE key IN ('by', 'is_over', 'verified', 'is_retried')
    )
    WHERE run_id = ANY (of_runs) AND evidence IS NOT NULL;
    UPDATE celeriac.model_calls SET selection = NULL,
        error = celeriac.kind_of_error(error)
    WHERE run_id = ANY (of_runs) AND (selection IS NOT NULL OR error IS NOT NULL);
    DELETE FROM celeriac.recalls WHERE run_id = ANY (of_runs);  -- by the memories' keys
    UPDATE celeriac.approval_decisions SET edited_arguments = NULL, answers = '{}',
        reason = CASE reason WHEN '' THEN '' ELSE '(erased)' END, erased_at = now_erased
    WHERE erased_at IS NULL
        AND approval_id IN (SELECT approval_id FROM celeriac.approvals WHERE run_id = ANY (of_runs));
    UPDATE celeriac.approvals SET arguments = NULL, intent = '(erased)', blast_radius = '(erased)',
        data_lineage = '["(erased)"]', permissions_touched = '["(erased)"]', erased_at = now_erased
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    UPDATE celeriac.audit
    SET detail = celeriac.without_text(detail - 'answers', '{reason,message,why}')
    WHERE (run_id = ANY (of_runs) OR object = ANY (of_runs)
            OR object IN (SELECT approval_id FROM celeriac.approvals WHERE run_id = ANY (of_runs)))
        AND detail ?| '{reason,message,why,answers}';
END $$;

-- Erases the payload of runs, all of which must be at rest, and locks them for it; how many were not
-- erased before.
CREATE FUNCTION celeriac.erase_runs(of_runs text[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    restless text;
    found integer;
BEGIN
    -- The threads first, as whoever starts a run: it must not begin with what is erased just now.
    PERFORM FROM celeriac.threads
    WHERE (tenant_id, thread_id) IN (
        SELECT tenant_id, thread_id FROM celeriac.runs WHERE run_id = ANY (of_runs))
    ORDER BY tenant_id, thread_id FOR NO KEY UPDATE;
    PERFORM FROM celeriac.runs WHERE run_id = ANY (of_runs) ORDER BY run_id FOR UPDATE;
    SELECT run_id INTO restless FROM unnest(of_runs) AS run_id
    WHERE NOT celeriac.is_at_rest(run_id) LIMIT 1;
    IF restless IS NOT NULL THEN
        RAISE EXCEPTION 'run % is not at rest: nothing was erased', restless USING ERRCODE = 'CE007';
    END IF;
    SELECT count(*) INTO found FROM celeriac.runs
    WHERE run_id = ANY (of_runs) AND erased_at IS NULL;
    PERFORM set_config('celeriac.retention', 'on', true);
    PERFORM celeriac.take_payload(of_runs);
    PERFORM set_config('celeriac.retention', 'off', true);
    RETURN found;
END $$;

-- Erases the stored answers to API requests that were the user's, or that name one of the runs; their
-- keys stay. Without a user: all of the tenant's.
CREATE FUNCTION celeriac.erase_answers(of_tenant text, of_user text, of_runs text[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found integer;
BEGIN
    UPDATE celeriac.idempotency_keys SET status = NULL, headers = NULL, body = NULL,
        pruned_at = clock_timestamp()
    WHERE tenant_id = of_tenant AND body IS NOT NULL AND (of_user IS NULL AND of_runs IS NULL
        OR principal = of_user
        OR strpos(body, '"user_id": "' || of_user || '"') > 0  -- as answers are written
        OR EXISTS (SELECT FROM unnest(of_runs) AS run_id WHERE strpos(body, run_id) > 0));
    GET DIAGNOSTICS found = ROW_COUNT;
    RETURN found;
END $$;

CREATE OR REPLACE FUNCTION celeriac.guard_schedule_fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.outcome = NEW.outcome AND celeriac.is_retaining() THEN
        RETURN NEW;
    END IF;
    IF OLD.outcome <> 'queued' OR ROW(OLD.tenant_id, OLD.schedule_id, OLD.scheduled_at)
        <> ROW(NEW.tenant_id, NEW.schedule_id, NEW.scheduled_at) THEN
        RAISE EXCEPTION 'schedule %: what came of % never changes', OLD.schedule_id,
            OLD.scheduled_at USING ERRCODE = 'CE003';
    END IF;
    RETURN NEW;
END $$;

-- Removes the user's schedules, or all of the tenant's, and erases what they start runs with.
CREATE FUNCTION celeriac.erase_schedules(of_tenant text, of_user text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('celeriac.retention', 'on', true);
    UPDATE celeriac.schedules SET input = '"(erased)"', next_fire_at = NULL, due_at = NULL,
        removed_at = coalesce(removed_at, clock_timestamp())
    WHERE tenant_id = of_tenant AND user_id = coalesce(of_user, user_id);
    -- No time that is still to be started starts anything any more.
    UPDATE celeriac.schedule_fires AS fire SET outcome = 'skipped'
    FROM celeriac.schedules AS schedule
    WHERE (fire.tenant_id, fire.schedule_id) = (schedule.tenant_id, schedule.schedule_id)
        AND schedule.tenant_id = of_tenant AND schedule.user_id = coalesce(of_user, schedule.user_id)
        AND fire.outcome = 'queued';
    UPDATE celeriac.schedule_fires AS fire SET error = celeriac.kind_of_error(error)
    FROM celeriac.schedules AS schedule
    WHERE (fire.tenant_id, fire.schedule_id) = (schedule.tenant_id, schedule.schedule_id)
        AND schedule.tenant_id = of_tenant AND schedule.user_id = coalesce(of_user, schedule.user_id)
        AND error IS NOT NULL;
    PERFORM set_config('celeriac.retention', 'off', true);
END $$;

-- Deletes values that erased calls referred to and that no call does; how many.
CREATE FUNCTION celeriac.sweep_artifacts(at_most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found integer;
BEGIN
    WITH unused AS (
        SELECT hash FROM celeriac.artifacts
        WHERE unused_since IS NOT NULL AND stored_at < clock_timestamp() - interval '1 hour'
            AND NOT EXISTS (SELECT FROM celeriac.effects WHERE result_artifact = hash)
        ORDER BY unused_since LIMIT at_most FOR UPDATE SKIP LOCKED
    )
    DELETE FROM celeriac.artifacts USING unused WHERE artifacts.hash = unused.hash;
    GET DIAGNOSTICS found = ROW_COUNT;
    -- Somebody else's call refers to the rest: they are as used as any.
    UPDATE celeriac.artifacts SET unused_since = NULL
    WHERE unused_since IS NOT NULL
        AND EXISTS (SELECT FROM celeriac.effects WHERE result_artifact = hash);
    RETURN found;
END $$;

-- Pruning -----------------------------------------------------------------------------------------

-- Prunes those of the runs that are at rest and that nobody holds just now; which. Never waits for a
-- row. What stays of each is its row, its effectful calls with their hashes, what people decided, the
-- words that have keys, and its last event.
CREATE FUNCTION celeriac.prune_runs(of_runs text[]) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pruned text[];
BEGIN
    -- The thread first: a run that is started in it meanwhile waits, and sees it pruned. Then the run:
    -- whoever resolves, reports or undoes has locked that.
    WITH free AS (
        SELECT tenant_id, thread_id FROM celeriac.threads
        WHERE (tenant_id, thread_id) IN (
            SELECT tenant_id, thread_id FROM celeriac.runs WHERE run_id = ANY (of_runs))
        FOR NO KEY UPDATE SKIP LOCKED
    ), held AS (
        SELECT run_id FROM celeriac.runs JOIN free USING (tenant_id, thread_id)
        WHERE run_id = ANY (of_runs) AND pruned_at IS NULL
        FOR UPDATE OF runs SKIP LOCKED
    )
    SELECT array_agg(run_id) INTO pruned FROM held;
    -- A statement of its own, which sees what was committed before the locks.
    SELECT coalesce(array_agg(run_id), '{}') INTO pruned FROM unnest(pruned) AS run_id
    WHERE celeriac.is_at_rest(run_id) AND NOT EXISTS (
        SELECT FROM celeriac.runs AS fork
        WHERE fork.forked_from = run_id AND fork.pruned_at IS NULL);
    PERFORM set_config('celeriac.retention', 'on', true);
    DELETE FROM celeriac.checkpoints WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.messages WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.inbox WHERE run_id = ANY (pruned) AND key IS NULL;
    DELETE FROM celeriac.events USING celeriac.runs AS run
    WHERE run.run_id = ANY (pruned) AND events.run_id = run.run_id AND seq < last_event_seq;
    DELETE FROM celeriac.model_calls WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.selections WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.effect_attempts WHERE run_id = ANY (pruned);
    DELETE FROM celeriac.effects AS effect
    WHERE run_id = ANY (pruned) AND kind = 'none' AND rolls_back IS NULL
        AND NOT coalesce(flags ? 'child', false) AND NOT EXISTS (
        SELECT FROM celeriac.approvals
        WHERE (approvals.run_id, approvals.call_id) = (effect.run_id, effect.call_id));
    PERFORM celeriac.take_payload(pruned);
    UPDATE celeriac.runs SET pruned_at = clock_timestamp(), pruned_to_seq = last_event_seq - 1,
        words_waiting = (
            SELECT count(*) FROM celeriac.inbox
            WHERE inbox.run_id = runs.run_id AND drained_step IS NULL)
    WHERE run_id = ANY (pruned);
    PERFORM set_config('celeriac.retention', 'off', true);
    RETURN pruned;
END $$;

-- Rights ------------------------------------------------------------------------------------------

REVOKE EXECUTE ON FUNCTION celeriac.erase_runs, celeriac.erase_answers, celeriac.erase_schedules,
    celeriac.sweep_artifacts, celeriac.prune_runs, celeriac.take_payload,
    celeriac.touch_artifact FROM PUBLIC;
DO $$
BEGIN
    BEGIN
        CREATE ROLE celeriac_retention NOLOGIN;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;
        WHEN insufficient_privilege THEN
            RAISE NOTICE 'role celeriac_retention was not created: this login may not create roles';
    END;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
        GRANT EXECUTE ON FUNCTION celeriac.touch_artifact TO celeriac_worker;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_api') THEN
        GRANT EXECUTE ON FUNCTION celeriac.touch_artifact TO celeriac_api;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_retention') THEN
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_worker') THEN
            BEGIN
                GRANT celeriac_worker TO celeriac_retention;  -- reads, and cancels runs
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'celeriac_worker was not granted to celeriac_retention';
            END;
        END IF;
        GRANT EXECUTE ON FUNCTION celeriac.erase_runs, celeriac.erase_answers,
            celeriac.erase_schedules, celeriac.sweep_artifacts, celeriac.prune_runs TO celeriac_retention;
    END IF;
END $$;
