"""What must hold of workflows: their logs, and the runs that make the entries of them."""

from celeriac_storage.audit_checks.check import TERMINAL, Check
from celeriac_storage.entry_ids import ENTRY_ID

ENTRY_NUMBERS = Check(
    2,
    "the entries of a log are numbered without a gap, and so are their ends",
    # But for the holes with which a retry begins, until its first turn.
    """
    SELECT run_id, format('generation %%s: %%s entries up to number %%s, %%s ends up to %%s',
        log.generation, entries, last_number, ends, last_told) AS detail
    FROM (
        SELECT run_id, generation, count(*) AS entries, max(number) AS last_number,
            count(told) AS ends, max(told) AS last_told
        FROM celeriac.activities GROUP BY run_id, generation
    ) AS log JOIN celeriac.runs AS run USING (run_id)
    WHERE entries <> last_number + 1 AND (forked_from IS NULL OR EXISTS (
            SELECT FROM celeriac.checkpoints AS turn
            WHERE turn.run_id = run.run_id AND turn.state ? 'entries'))
        OR ends <> coalesce(last_told + 1, 0)
        OR log.generation > run.generation OR log.generation = run.generation AND run.told <> ends
    """,
)

MADE_BY = Check(
    3,
    "an entry that a run makes has that run, and each run of a workflow makes an entry",
    # A retry has kept what its origin's log says, or what came of that afterwards.
    f"""
    SELECT entry.run_id, format('entry %%s.%%s is made by %%s, which is no run of its own',
        entry.generation, number, made_by) AS detail
    FROM celeriac.activities AS entry LEFT JOIN celeriac.runs AS made
        ON (made.run_id, made.parent_run_id, made.parent_call_id)
            = (made_by, entry.run_id, {ENTRY_ID})
    WHERE made_by IS NOT NULL AND made.run_id IS NULL AND NOT EXISTS (
        SELECT FROM celeriac.runs AS run JOIN celeriac.activities AS before
            ON before.run_id = run.forked_from
        WHERE run.run_id = entry.run_id AND entry.told IS NOT NULL
            AND (before.generation, before.number, before.fingerprint, before.made_by)
                = (entry.generation, entry.number, entry.fingerprint, entry.made_by)
            AND (before.told IS NULL OR before.error IS NOT NULL AND entry.error IS NULL
                OR entry.erased_at IS NOT NULL OR before.erased_at IS NOT NULL
                OR (before.result_hash, before.result_artifact, before.error) IS NOT DISTINCT FROM
                    (entry.result_hash, entry.result_artifact, entry.error))
    )
    UNION ALL
    SELECT child.run_id, format('it makes entry %%s of workflow %%s, which has none',
        child.parent_call_id, child.parent_run_id)
    FROM celeriac.runs AS child JOIN celeriac.runs AS workflow
        ON workflow.run_id = child.parent_run_id AND workflow.kind = 'workflow'
    WHERE child.parent_call_id IS NOT NULL AND workflow.pruned_at IS NULL AND NOT EXISTS (
        SELECT FROM celeriac.activities AS entry
        WHERE entry.run_id = workflow.run_id AND entry.made_by = child.run_id
            AND child.depth = workflow.depth + 1 AND child.root_run_id = workflow.root_run_id
    )
    """,
)

ENTRY_ENDS = Check(
    3,
    "an entry has ended exactly if the run that makes it has, as that run has",
    # Of a workflow that has ended itself, and of a generation that is over, nothing is noted.
    f"""
    SELECT entry.run_id, format('entry %%s.%%s has %%s, and run %%s is %%s', entry.generation,
        number, CASE WHEN entry.told IS NULL THEN 'not ended'
            WHEN entry.error IS NULL THEN 'a result' ELSE 'an error' END, made_by, made.status)
        AS detail
    FROM celeriac.activities AS entry JOIN celeriac.runs AS run USING (run_id)
    JOIN celeriac.runs AS made ON made.run_id = made_by
    WHERE made.parent_run_id = entry.run_id AND (
        entry.told IS NOT NULL AND made.status NOT IN {TERMINAL}
        OR entry.told IS NOT NULL AND (entry.error IS NULL) <> (made.status = 'completed')
        OR entry.told IS NULL AND made.status IN {TERMINAL} AND run.status NOT IN {TERMINAL}
            AND entry.generation = run.generation)
    """,
)

WAITING_WORKFLOWS = Check(
    9,
    "a workflow that waits, waits for something that can happen",
    """
    SELECT run_id, 'nothing that its code waits for is open' AS detail
    FROM celeriac.runs AS run
    WHERE status = 'paused' AND phase = 'waiting_activity' AND NOT EXISTS (
        SELECT FROM celeriac.activities AS entry
        WHERE entry.run_id = run.run_id AND entry.generation = run.generation
            AND entry.told IS NULL AND wait_group IS NOT NULL
    )
    UNION ALL
    SELECT run_id, format('everything of group %%s has ended', wait_group)
    FROM celeriac.runs AS run JOIN celeriac.activities AS entry USING (run_id)
    WHERE status = 'paused' AND phase = 'waiting_activity' AND wait_group IS NOT NULL
        AND entry.generation = run.generation
    GROUP BY run_id, wait_group, paused_at
    -- What ended before the run began to wait was of an earlier wait.
    HAVING bool_and(entry.told IS NOT NULL) AND max(ended_at) > paused_at
    UNION ALL
    SELECT run_id, format('event %%s was told, and is waited for', name)
    FROM celeriac.runs AS run JOIN celeriac.activities AS entry USING (run_id)
        JOIN celeriac.mailbox AS mail USING (run_id, name)
    WHERE status = 'paused' AND phase = 'waiting_activity' AND entry.kind = 'event'
        AND entry.generation = run.generation AND entry.told IS NULL AND wait_group IS NOT NULL
        AND taken_number IS NULL
    """,
)

ENTRY_TIMERS = Check(
    9,
    "a timer of a workflow has fired exactly if its entry has ended",
    f"""
    SELECT entry.run_id, format('entry %%s.%%s %%s, its timer %%s', entry.generation, number,
        CASE WHEN entry.told IS NULL THEN 'goes on' ELSE 'has ended' END,
        CASE WHEN timer_id IS NULL THEN 'is missing' WHEN fired_at IS NULL THEN 'has not fired'
            ELSE 'has fired' END) AS detail
    FROM celeriac.activities AS entry JOIN celeriac.runs AS run USING (run_id)
    LEFT JOIN celeriac.timers AS timer
        ON timer.run_id = entry.run_id AND timer_id = {ENTRY_ID}
    WHERE entry.kind = 'timer' AND run.status NOT IN {TERMINAL}
        AND entry.generation = run.generation
        AND (timer_id IS NULL OR (entry.told IS NULL) <> (fired_at IS NULL))
    """,
)

TAKEN_MAIL = Check(
    3,
    "what was told has ended the entry that it says, of that name",
    """
    SELECT mail.run_id, format('mail %%s has ended entry %%s.%%s, which is no such entry', mail_id,
        taken_generation, taken_number) AS detail
    FROM celeriac.mailbox AS mail JOIN celeriac.runs AS run USING (run_id)
    WHERE taken_number IS NOT NULL AND run.pruned_at IS NULL AND NOT EXISTS (
        SELECT FROM celeriac.activities AS entry
        WHERE (entry.run_id, entry.generation, entry.number, entry.name)
            = (mail.run_id, taken_generation, taken_number, mail.name)
            AND entry.kind = 'event' AND entry.told IS NOT NULL
    )
    """,
)
