"""What must hold of what is remembered."""

from celeriac_storage.audit_checks.check import Check

ALLOWED = Check(
    6,
    "a memory rests on an allow-decision about exactly it, of the same owner",
    """
    SELECT decision.run_id, format('%%s/%%s of %%s: %%s', memory.namespace, memory.memory_key,
        memory.user_id, wrong) AS detail
    FROM celeriac.memories AS memory
    LEFT JOIN celeriac.memory_decisions AS decision USING (decision_id)
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN decision.decision_id IS NULL THEN 'no decision'
            WHEN decision.verdict <> 'allow' THEN 'it was refused'
            WHEN (decision.tenant_id, decision.user_id) <> (memory.tenant_id, memory.user_id)
                THEN 'decided for another owner'
            WHEN decision.erased_at IS NULL AND (decision.namespace, decision.memory_key,
                decision.kind) <> (memory.namespace, memory.memory_key, memory.kind)
                THEN 'decided under another key or kind'
            WHEN decision.content_hash <> memory.content_hash THEN 'other content was allowed'
            WHEN (content IS NULL) <> (deleted_at IS NOT NULL)
                OR (content IS NULL) <> (search IS NULL) THEN 'deleted in part'
        END AS wrong
    ) AS judged
    WHERE wrong IS NOT NULL
    """,
)

GOVERNED = Check(
    6,
    "what changes how agents work was approved by somebody else",
    # Where the run was pruned, its approvals are gone with it.
    """
    SELECT run_id, format('%%s/%%s of %%s', namespace, memory_key, decision.user_id) AS detail
    FROM celeriac.memory_decisions AS decision JOIN celeriac.runs AS run USING (run_id)
    WHERE verdict = 'allow' AND decision.kind = 'procedural' AND NOT EXISTS (
        SELECT FROM celeriac.approvals AS approval
        JOIN celeriac.approval_decisions AS decided USING (approval_id)
        WHERE approval.approval_id = decision.approval_id
            AND (approval.run_id, approval.call_id) = (decision.run_id, decision.call_id)
            AND approval.status IN ('approved', 'revoked') AND consumed_at IS NOT NULL
            AND decided.decision = 'approve' AND reviewer <> decision.user_id
    )
    """,
)

OWNED = Check(
    6,
    "a decision about a call is about its run's owner, and there is one for each such call",
    """
    SELECT run_id, format('call %%s: %%s', call_id, CASE
        WHEN decision.decision_id IS NULL THEN 'no decision'
        ELSE 'the decision names ' || decision.user_id END) AS detail
    FROM (
        SELECT run.run_id, call_id, run.tenant_id, run.user_id
        FROM celeriac.effects JOIN celeriac.runs AS run USING (run_id)
        WHERE tool = 'remember' AND tool_version = 'memories-1' AND state = 'committed'
    ) AS made
    LEFT JOIN celeriac.memory_decisions AS decision USING (run_id, call_id)
    WHERE decision.decision_id IS NULL
        OR (decision.tenant_id, decision.user_id) <> (made.tenant_id, made.user_id)
    """,
)

HASHES = Check(
    7,
    "a memory's hash is that of its content",
    """
    SELECT NULL::text AS run_id, format('%%s/%%s of %%s', namespace, memory_key, user_id) AS detail
    FROM celeriac.memories
    WHERE content IS NOT NULL AND content_hash <> sha256(convert_to(content::text, 'UTF8'))
    """,
)

VECTORS = Check(
    6,
    "a vector is of a memory as it stands",
    """
    SELECT NULL::text AS run_id, format('%%s/%%s of %%s, by %%s: %%s', made.namespace,
        made.memory_key, made.user_id, embedder, CASE WHEN memory.content IS NULL
            THEN 'it is forgotten' ELSE 'of version ' || made.version END) AS detail
    FROM celeriac.memory_vectors AS made
    LEFT JOIN celeriac.memories AS memory USING (tenant_id, user_id, namespace, memory_key)
    WHERE memory.content IS NULL OR memory.version <> made.version
    """,
)
