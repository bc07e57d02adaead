"""What must hold of plans, and of runs that do what is left of one."""

from celeriac_storage.audit_checks.check import Check

KEPT = Check(
    3,
    "what a run keeps of an earlier one's plan is what the log of that one says",
    """
    SELECT line.run_id, format('step %%s is kept of run %%s, which has no such result',
        line.label, plan.continues) AS detail
    FROM celeriac.plans AS plan JOIN celeriac.activities AS line USING (run_id)
    JOIN celeriac.runs AS earlier ON earlier.run_id = plan.continues AND earlier.erased_at IS NULL
    WHERE line.name = 'plan.kept ' || line.label AND line.erased_at IS NULL AND NOT EXISTS (
        SELECT FROM celeriac.activities AS done
        WHERE (done.run_id, done.label) = (plan.continues, line.label) AND done.error IS NULL
            AND (done.told IS NOT NULL OR done.name = line.name)
            AND (done.result_hash, done.result_artifact)
                IS NOT DISTINCT FROM (line.result_hash, line.result_artifact)
    )
    """,
)

HASHES = Check(
    7,
    "a plan's hash is that of its steps",
    """
    SELECT run_id, format('plan, version %%s', version) AS detail
    FROM celeriac.plans WHERE erased_at IS NULL AND hash <> sha256(convert_to(body::text, 'UTF8'))
    """,
)
