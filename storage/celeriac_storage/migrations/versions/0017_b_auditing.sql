-- What an auditor reads: views with names that stay, and a role that sees them and nothing else
-- (docs/auditing.md). They run with their owner's rights, so they show all tenants.

CREATE SCHEMA celeriac_audit;

CREATE VIEW celeriac_audit.runs AS
SELECT tenant_id, run_id, thread_id, user_id, kind,
    CASE kind WHEN 'rollback' THEN parent_run_id END AS rolls_back_run, agent, agent_hash, tools_hash,
    prompt_hash, status, phase, outcome, error ->> 'kind' AS error_kind, step AS steps,
    epoch AS claims, deaths, tool_calls_used, input_tokens_used, output_tokens_used, created_at,
    started_at, cancel_requested_at, finished_at, erased_at, pruned_at
FROM celeriac.runs;

CREATE VIEW celeriac_audit.steps AS
SELECT run.tenant_id, run_id, checkpoint.step, checkpoint.kind, reason, checkpoint.message_count,
    checkpoint.worker_id, checkpoint.epoch, checkpoint.started_at, committed_at,
    encode(hash, 'hex') AS state_hash, schema_version
FROM celeriac.checkpoints AS checkpoint JOIN celeriac.runs AS run USING (run_id);

CREATE VIEW celeriac_audit.effects AS
SELECT run.tenant_id, effect.run_id, effect.call_id, effect.step, effect.tool, effect.tool_version,
    effect.kind, effect.state, effect.attempt AS attempts,
    CASE WHEN effect.rolls_back IS NULL
        THEN concat_ws(':', run.tenant_id, effect.run_id, effect.call_id)
        ELSE concat_ws(':', run.tenant_id, effect.rolls_back_run, effect.rolls_back, 'undo')
    END AS idempotency_key,
    effect.arguments, encode(effect.fingerprint, 'hex') AS arguments_hash,
    encode(coalesce(effect.result_artifact, effect.result_hash), 'hex') AS result_hash,
    effect.error ->> 'kind' AS error_kind, effect.requirement IS NOT NULL AS needed_decision,
    effect.planned_at, effect.settled_at, effect.rolls_back_run, effect.rolls_back AS rolls_back_call,
    undo.run_id AS rolled_back_by_run, undo.call_id AS rolled_back_by_call, effect.erased_at
FROM celeriac.effects AS effect JOIN celeriac.runs AS run USING (run_id)
LEFT JOIN celeriac.effects AS undo
    ON (undo.rolls_back_run, undo.rolls_back) = (effect.run_id, effect.call_id)
        AND undo.rolls_back_stands;

-- What became known about each attempt at an external call, in order: entry 0 is its start.
CREATE VIEW celeriac_audit.attempts AS
SELECT run.tenant_id, run_id, entry.call_id, effect.tool, entry.attempt, entry.entry, entry.outcome,
    entry.worker_id, evidence ->> 'by' AS told_by, evidence, entry.approval_id,
    entry.approval_version, entry.deadline_at, entry.at
FROM celeriac.effect_attempts AS entry JOIN celeriac.effects AS effect USING (run_id, call_id)
JOIN celeriac.runs AS run USING (run_id);

-- Each proposal with each decision about it; without one, its reviewer is null.
CREATE VIEW celeriac_audit.decisions AS
SELECT tenant_id, approval_id, run_id, call_id, version, tool, tool_version, arguments,
    encode(approval.arguments_hash, 'hex') AS arguments_hash, intent, data_lineage,
    permissions_touched, blast_radius, rollback_plan ->> 'kind' AS rollback_kind, idempotency_key,
    approval.reason AS asked_because, requested_by, edited_from, quorum, status, created_at,
    expires_at, reviewer, decision, encode(decision.arguments_hash, 'hex') AS decided_arguments_hash,
    encode(rendering_hash, 'hex') AS rendering_hash, roles AS reviewer_roles, principal_version,
    decision.policy_version, decision.reason AS decided_because, answers, edited_arguments, shown_at,
    decision.decided_at, seconds_to_decision, revoked_because, consumed_at, consumed_by_attempt,
    approval.erased_at
FROM celeriac.approvals AS approval LEFT JOIN celeriac.approval_decisions AS decision
    USING (approval_id);

-- Who was shown which rendering of a proposal, and when.
CREATE VIEW celeriac_audit.shown AS
SELECT tenant_id, object AS approval_id, run_id, actor AS person,
    detail ->> 'rendering_hash' AS rendering_hash, at
FROM celeriac.audit WHERE action = 'approval.shown';

-- All that people, and programs in their name, did or were refused.
CREATE VIEW celeriac_audit.acts AS
SELECT tenant_id, audit_id, at, actor, action, object, run_id, outcome, detail FROM celeriac.audit;

-- Each undo, and what it was to take back.
CREATE VIEW celeriac_audit.rollbacks AS
SELECT run.tenant_id, run.run_id AS rollback_run, run.parent_run_id AS run_id,
    original.call_id, original.tool, original.state AS call_state, undo.call_id AS undo_call,
    undo.rolls_back_kind AS rollback_kind, undo.state AS undo_state,
    coalesce(coalesce(convert_from(content, 'UTF8')::jsonb, undo.result)
        @> '{"is_partial": true}', false) AS is_partial,
    undo.error ->> 'message' AS not_undone_because, request.actor AS requested_by,
    request.at AS requested_at, undo.settled_at, run.status AS rollback_status
FROM celeriac.runs AS run
JOIN celeriac.effects AS undo ON undo.run_id = run.run_id AND undo.rolls_back IS NOT NULL
JOIN celeriac.effects AS original
    ON (original.run_id, original.call_id) = (undo.rolls_back_run, undo.rolls_back)
LEFT JOIN celeriac.artifacts ON hash = undo.result_artifact
LEFT JOIN LATERAL (
    SELECT actor, at FROM celeriac.audit
    WHERE audit.run_id = run.run_id AND action = 'run.rollback' AND outcome = 'allowed'
    ORDER BY at LIMIT 1
) AS request ON true
WHERE run.kind = 'rollback';

-- Calls that reported success while a look at their target did not show it, then or for good.
CREATE VIEW celeriac_audit.failed_verifications AS
SELECT run.tenant_id, run_id, entry.call_id, effect.tool, entry.attempt, entry.entry, entry.at,
    entry.evidence ->> 'message' AS found, effect.state AS call_state, run.status AS run_status,
    settled.told_by AS settled_by, settled.at AS settled_at
FROM celeriac.effect_attempts AS entry
JOIN celeriac.effects AS effect USING (run_id, call_id)
JOIN celeriac.runs AS run USING (run_id)
LEFT JOIN LATERAL (
    SELECT evidence ->> 'by' AS told_by, later.at FROM celeriac.effect_attempts AS later
    WHERE (later.run_id, later.call_id, later.attempt) = (entry.run_id, entry.call_id, entry.attempt)
        AND later.entry > entry.entry AND later.evidence ? 'by'
    ORDER BY later.entry DESC LIMIT 1
) AS settled ON true
WHERE entry.outcome = 'known_bad' AND NOT coalesce(entry.evidence ? 'by', false)
    OR entry.outcome = 'unknown' AND entry.evidence ->> 'kind' = 'unverified';

-- Calls whose model was told that they failed, while their own worker has said since that they did not.
CREATE VIEW celeriac_audit.contradictions AS
SELECT run.tenant_id, run_id, effect.call_id, effect.tool, effect.state, effect.attempt,
    told.worker_id, told.at AS told_at, told.evidence -> 'result' AS told_result,
    run.status AS run_status
FROM celeriac.effects AS effect JOIN celeriac.runs AS run USING (run_id)
JOIN LATERAL (
    SELECT outcome, worker_id, at, evidence FROM celeriac.effect_attempts AS entry
    WHERE (entry.run_id, entry.call_id, entry.attempt)
        = (effect.run_id, effect.call_id, effect.attempt)
    ORDER BY entry.entry DESC LIMIT 1
) AS told ON told.outcome = 'committed'
WHERE effect.state IN ('failed', 'precondition_failed');

DO $$
BEGIN
    BEGIN
        CREATE ROLE celeriac_auditor NOLOGIN;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;
        WHEN insufficient_privilege THEN
            RAISE NOTICE 'role celeriac_auditor was not created: this login may not create roles';
    END;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'celeriac_auditor') THEN
        GRANT USAGE ON SCHEMA celeriac_audit TO celeriac_auditor;
        GRANT SELECT ON ALL TABLES IN SCHEMA celeriac_audit TO celeriac_auditor;
    END IF;
END $$;
