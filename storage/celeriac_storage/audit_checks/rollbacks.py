"""What must hold of calls that were taken back, and of what took them back."""

from celeriac_storage.audit_checks.check import TERMINAL, Check, is_whole

UNDONE_ONCE = Check(
    3,
    "a call that is rolled back has one undo that took effect, or a person's word, and none is"
    " undone twice",
    f"""
    SELECT run_id, format('call %%s is %%s with %%s undos in place, %%s compensations', call_id,
        state, undone, compensated) AS detail
    FROM celeriac.effects AS effect, LATERAL (
        SELECT count(*) FILTER (WHERE rolls_back_kind <> 'compensate') AS undone,
            count(*) FILTER (WHERE rolls_back_kind = 'compensate') AS compensated
        FROM celeriac.effects AS undo
        WHERE (undo.rolls_back_run, undo.rolls_back) = (effect.run_id, effect.call_id)
            AND undo.state = 'committed' AND undo.rolls_back_stands
    ) AS undos, LATERAL (
        -- Reported as done, and then declared not to be (`resolve --not-done`).
        SELECT EXISTS (
            SELECT FROM celeriac.effect_attempts AS entry
            WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                AND outcome = 'known_bad' AND evidence ? 'by'
        ) AS is_declared
    ) AS word
    WHERE undone + compensated > 1
        OR undone > 0 AND state <> 'rolled_back'
        OR compensated > 0 AND state NOT IN ('committed', 'known_bad', 'rolled_back')
        OR state = 'rolled_back' AND undone = 0 AND NOT is_declared AND {is_whole("effect")}
    """,
)

UNDOS = Check(
    3,
    "an undo takes back a call of the run that its own run rolls back",
    """
    SELECT undo.run_id, format('call %%s takes back call %%s of run %%s', undo.call_id,
        undo.rolls_back, undo.rolls_back_run) AS detail
    FROM celeriac.effects AS undo JOIN celeriac.runs AS run USING (run_id)
    LEFT JOIN celeriac.effects AS original
        ON (original.run_id, original.call_id) = (undo.rolls_back_run, undo.rolls_back)
    WHERE (undo.rolls_back IS NOT NULL) <> (run.kind = 'rollback')
        OR undo.rolls_back IS NOT NULL AND (
            original.run_id IS NULL OR run.parent_run_id <> original.run_id
            OR original.arguments IS DISTINCT FROM undo.arguments
                AND original.erased_at IS NULL AND undo.erased_at IS NULL
            OR coalesce(undo.rolls_back_stands, false)
                <> (undo.state IN ('in_flight', 'unknown', 'committed', 'known_bad'))
        )
    """,
)

ONE_ROLLBACK = Check(
    3,
    "one rollback of a run goes on at a time",
    f"""
    SELECT parent_run_id AS run_id, string_agg(run_id, ', ' ORDER BY run_id) AS detail
    FROM celeriac.runs WHERE kind = 'rollback' AND status NOT IN {TERMINAL}
    GROUP BY parent_run_id HAVING count(*) > 1
    """,
)
