"""What must hold of the decisions that calls were made on."""

from celeriac_storage.audit_checks.check import TERMINAL, Check, is_whole

DECISIONS = Check(
    5,
    "a call that needed a decision is approved and executed only on one that held",
    f"""
    SELECT run_id, format('call %%s is %%s: %%s', call_id, state, wrong) AS detail
    FROM celeriac.effects AS effect
    LEFT JOIN celeriac.approvals AS approval USING (run_id, call_id, version)
    CROSS JOIN LATERAL (
        SELECT count(*) AS found, count(*) FILTER (
            WHERE decision.arguments_hash IS DISTINCT FROM approval.arguments_hash
        ) AS about_others, count(*) FILTER (
            WHERE reviewer = approval.requested_by
                AND approval.requirement -> 'allow_self' <> 'true'
        ) AS by_owner, count(*) FILTER (
            WHERE jsonb_array_length(approval.requirement -> 'roles') > 0
                AND NOT approval.requirement -> 'roles' ?| roles
        ) AS without_role
        FROM celeriac.approval_decisions AS decision
        WHERE decision.approval_id = approval.approval_id AND decision = 'approve'
    ) AS decided CROSS JOIN LATERAL (
        SELECT CASE
            WHEN effect.requirement IS NULL THEN 'it was proposed, and says that it needs nobody'
            WHEN approval.approval_id IS NULL THEN 'no proposal of this version'
            WHEN approval.status <> 'approved' THEN 'its proposal is ' || approval.status
            WHEN state <> 'approved' AND consumed_at IS NULL THEN 'its approval was not used'
            WHEN consumed_at > expires_at THEN 'its approval had run out'
            WHEN approval.arguments_hash <> fingerprint THEN 'other arguments were approved'
            WHEN found < quorum THEN format('%%s of %%s approvals', found, quorum)
            WHEN about_others > 0 THEN 'a decision is about other arguments'
            WHEN by_owner > 0 THEN 'approved by the owner of the run'
            WHEN without_role > 0 THEN 'approved without the role'
            WHEN kind = 'external' AND state <> 'approved' AND {is_whole("effect")} AND NOT EXISTS (
                SELECT FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                    AND entry.approval_id = approval.approval_id
                    AND entry.attempt = consumed_by_attempt
            ) THEN 'no attempt was made on its approval'
        END AS wrong
    ) AS judged
    WHERE (effect.requirement IS NOT NULL OR EXISTS (
            SELECT FROM celeriac.approvals AS any_version
            WHERE (any_version.run_id, any_version.call_id) = (effect.run_id, effect.call_id)
        ))
        AND (state IN ('approved', 'in_flight', 'unknown', 'not_done', 'committed', 'known_bad',
                'rolled_back')
            OR state = 'failed' AND kind = 'external')
        AND wrong IS NOT NULL
    """,
)

PROPOSALS = Check(
    5,
    "a call that waits for a decision has one proposal that stands, and a pending proposal such a"
    " call",
    f"""
    SELECT run_id, format('call %%s is %%s, run %%s, proposal %%s', call_id,
        coalesce(state, 'missing'), run.status, coalesce(standing.status, 'missing')) AS detail
    FROM (
        SELECT * FROM celeriac.effects WHERE requirement IS NOT NULL
    ) AS effect FULL JOIN (
        SELECT * FROM celeriac.approvals WHERE status IN ('pending', 'approved')
    ) AS standing USING (run_id, call_id)
    JOIN celeriac.runs AS run USING (run_id)
    WHERE standing.approval_id IS NOT NULL AND (
            (standing.version, standing.arguments_hash, standing.arguments, standing.requirement)
            IS DISTINCT FROM (effect.version, fingerprint, effect.arguments, effect.requirement)
            OR standing.tenant_id <> run.tenant_id)
        OR (standing.status IS NOT DISTINCT FROM 'pending')
            <> (state IS NOT DISTINCT FROM 'proposed' AND run.status NOT IN {TERMINAL})
        OR state = 'approved' AND standing.status IS DISTINCT FROM 'approved'
    """,
)
