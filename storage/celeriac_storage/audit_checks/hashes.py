"""Every hash is the hash of what is stored."""

from celeriac_storage.audit_checks.check import Check

APPROVAL_HASHES = Check(
    7,
    "a proposal's hash is that of its tool, version and arguments",
    """
    SELECT run_id, format('proposal %%s of call %%s', approval_id, call_id) AS detail
    FROM celeriac.approvals
    WHERE erased_at IS NULL AND arguments_hash <> sha256(convert_to(
        concat_ws(E'\\n', tool, tool_version, arguments::text), 'UTF8'))
    """,
)

CHECKPOINT_HASHES = Check(
    7,
    "a checkpoint's hash is that of its state",
    """
    SELECT run_id, format('checkpoint %%s', step) AS detail
    FROM celeriac.checkpoints WHERE hash <> sha256(convert_to(state::text, 'UTF8'))
    """,
)

MESSAGE_HASHES = Check(
    7,
    "a message's hash is that of its body",
    """
    SELECT run_id, format('message %%s', position) AS detail
    FROM celeriac.messages
    WHERE erased_at IS NULL
        AND hash IS DISTINCT FROM sha256(convert_to(body::text, 'UTF8'))
    """,
)

RESULT_HASHES = Check(
    7,
    "an effect's result hash is that of its result",
    """
    SELECT run_id, format('call %%s', call_id) AS detail
    FROM celeriac.effects
    WHERE erased_at IS NULL
        AND result_hash IS DISTINCT FROM sha256(convert_to(result::text, 'UTF8'))
    """,
)

ENTRY_HASHES = Check(
    7,
    "the hash of what came of an entry of a log is that of its result, and so is what was told",
    """
    SELECT run_id, format('entry %%s.%%s', generation, number) AS detail
    FROM celeriac.activities
    WHERE erased_at IS NULL
        AND result_hash IS DISTINCT FROM sha256(convert_to(result::text, 'UTF8'))
    UNION ALL
    SELECT run_id, format('mail %%s', mail_id) FROM celeriac.mailbox
    WHERE erased_at IS NULL AND hash <> sha256(convert_to(body::text, 'UTF8'))
    """,
)

FINGERPRINTS = Check(
    7,
    "an effect's fingerprint is that of its tool, version and arguments",
    """
    SELECT run_id, format('call %%s', call_id) AS detail
    FROM celeriac.effects
    WHERE erased_at IS NULL AND fingerprint <> sha256(convert_to(
        concat_ws(E'\\n', tool, tool_version, arguments::text), 'UTF8'))
    """,
)

ARTIFACTS = Check(
    7,
    "an artifact's hash is that of its content",
    """
    SELECT NULL::text AS run_id, format('artifact %%s', encode(hash, 'hex')) AS detail
    FROM celeriac.artifacts WHERE hash <> sha256(content)
    """,
)

EFFECT_ARTIFACTS = Check(
    7,
    "the artifact of an effect exists and is what was stored",
    """
    SELECT run_id, format('call %%s, artifact %%s', call_id, encode(result_artifact, 'hex'))
        AS detail
    FROM celeriac.effects LEFT JOIN celeriac.artifacts ON hash = result_artifact
    WHERE result_artifact IS NOT NULL AND erased_at IS NULL
        AND sha256(content) IS DISTINCT FROM result_artifact
    """,
)

ERASED = Check(
    7,
    "nothing is left of what was erased",
    """
    SELECT run_id, format('%%s rows in %%s', count(*), source) AS detail
    FROM (
        SELECT run_id, 'runs' AS source FROM celeriac.runs
        WHERE input IS NOT NULL OR result IS NOT NULL OR generation_input IS NOT NULL
        UNION ALL SELECT run_id, 'messages' FROM celeriac.messages WHERE body IS NOT NULL
        UNION ALL SELECT run_id, 'inbox' FROM celeriac.inbox WHERE body IS NOT NULL
        UNION ALL SELECT run_id, 'plans' FROM celeriac.plans WHERE body IS NOT NULL
        UNION ALL SELECT run_id, 'effects' FROM celeriac.effects
            WHERE arguments IS NOT NULL OR result IS NOT NULL OR result_artifact IS NOT NULL
        UNION ALL SELECT run_id, 'activities' FROM celeriac.activities
            WHERE arguments IS NOT NULL OR result IS NOT NULL OR result_artifact IS NOT NULL
        UNION ALL SELECT run_id, 'mailbox' FROM celeriac.mailbox WHERE body IS NOT NULL
        UNION ALL SELECT run_id, 'effect_attempts' FROM celeriac.effect_attempts
            WHERE evidence - '{by,is_over,verified,is_retried}'::text[] <> '{}'
        UNION ALL SELECT run_id, 'model_calls' FROM celeriac.model_calls WHERE selection IS NOT NULL
        UNION ALL SELECT run_id, 'approvals' FROM celeriac.approvals WHERE arguments IS NOT NULL
        UNION ALL SELECT run_id, 'approval_decisions' FROM celeriac.approval_decisions AS decision
            JOIN celeriac.approvals USING (approval_id)
            WHERE edited_arguments IS NOT NULL OR answers <> '{}'
    ) AS payload JOIN celeriac.runs AS run USING (run_id)
    WHERE run.erased_at IS NOT NULL
    GROUP BY run_id, source
    UNION ALL
    SELECT run_id, format('%%s rows in %%s', count(*), source)
    FROM (
        SELECT run_id, 'checkpoints' AS source FROM celeriac.checkpoints
        UNION ALL SELECT run_id, 'messages' FROM celeriac.messages
        UNION ALL SELECT run_id, 'effect_attempts' FROM celeriac.effect_attempts
        UNION ALL SELECT run_id, 'model_calls' FROM celeriac.model_calls
        UNION ALL SELECT run_id, 'activities' FROM celeriac.activities
    ) AS row_of JOIN celeriac.runs AS run USING (run_id)
    WHERE run.pruned_at IS NOT NULL
    GROUP BY run_id, source
    """,
)
