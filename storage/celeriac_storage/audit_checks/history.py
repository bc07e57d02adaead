"""What must hold of checkpoints, messages and events: they are whole, and in order."""

from celeriac_storage.audit_checks.check import TERMINAL, Check

EVENT_NUMBERS = Check(
    2,
    "events are numbered without a gap",
    """
    SELECT run_id, format('%%s rows, from %%s to %%s, expected %%s to %%s', found, first, last,
        pruned_to_seq + 1, last_event_seq) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT count(*) AS found, min(seq) AS first, max(seq) AS last
        FROM celeriac.events WHERE events.run_id = runs.run_id AND seq > pruned_to_seq
    ) AS event
    WHERE found <> last_event_seq - pruned_to_seq
        OR found > 0 AND (first, last) <> (pruned_to_seq + 1, last_event_seq)
    """,
)

TERMINAL_EVENT = Check(
    2,
    "a run has a terminal event exactly if it is terminal, and it is its last",
    f"""
    SELECT run_id, format('%%s, terminal events: %%s', status, coalesce(terminal, 'none')) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT string_agg(format('%%s at %%s of %%s', type, seq, last_event_seq), ', ' ORDER BY seq)
            AS terminal, count(*) AS found,
            bool_and(seq = last_event_seq AND type = 'run.' || status) AS is_right
        FROM celeriac.events WHERE events.run_id = runs.run_id
            AND type IN ('run.completed', 'run.failed', 'run.cancelled')
    ) AS event
    WHERE found <> (status IN {TERMINAL})::int OR NOT is_right
    """,
)

CHECKPOINTS = Check(
    7,
    "each step of a run has its checkpoint",
    """
    SELECT run_id, format('at step %%s with %%s checkpoints, from %%s to %%s', step, found, first,
        last) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT count(*) AS found, min(step) AS first, max(step) AS last
        FROM celeriac.checkpoints WHERE checkpoints.run_id = runs.run_id
    ) AS checkpoint
    WHERE pruned_at IS NULL
        AND (found <> step OR found > 0 AND (first, last) <> (0, step - 1))
    """,
)

MESSAGE_POSITIONS = Check(
    7,
    "messages are numbered without a gap, as many as run and checkpoint say",
    """
    SELECT run.run_id, format('%%s rows, up to position %%s; the run says %%s, its checkpoint %%s',
        found, last, run.message_count, coalesce(latest.message_count::text, 'nothing')) AS detail
    FROM celeriac.runs AS run CROSS JOIN LATERAL (
        SELECT count(*) AS found, min(position) AS first, max(position) AS last
        FROM celeriac.messages WHERE messages.run_id = run.run_id
    ) AS message
    LEFT JOIN celeriac.checkpoints AS latest
        ON latest.run_id = run.run_id AND latest.step = run.step - 1
    WHERE pruned_at IS NULL AND (
        found <> run.message_count OR latest.message_count <> run.message_count
        OR found > 0 AND (first, last) <> (0, run.message_count - 1))
    """,
)

WORDS_WAITING = Check(
    7,
    "as many words wait for a run as its row says",
    """
    SELECT run_id, format('the run says %%s, the inbox holds %%s', words_waiting, found) AS detail
    FROM celeriac.runs, LATERAL (
        SELECT count(*) AS found FROM celeriac.inbox
        WHERE inbox.run_id = runs.run_id AND drained_step IS NULL
    ) AS waiting
    WHERE words_waiting <> found
    """,
)

FORKS = Check(
    7,
    "a fork goes on with what its origin had said before the step at which it was forked",
    """
    SELECT fork.run_id, format('at step %%s of run %%s it has %%s messages in view, not %%s',
        fork.forked_step, fork.forked_from, fork.history_until, said) AS detail
    FROM celeriac.runs AS fork
    JOIN celeriac.runs AS origin ON origin.run_id = fork.forked_from
    LEFT JOIN celeriac.checkpoints AS last
        ON last.run_id = origin.run_id AND last.step = fork.forked_step - 1
    CROSS JOIN LATERAL (
        SELECT coalesce(last.message_count,
            (origin.forked_from IS NULL AND origin.kind = 'agent')::int) AS said
    ) AS before
    WHERE origin.pruned_at IS NULL AND (fork.history_until IS DISTINCT FROM said
        OR fork.forked_step NOT BETWEEN 0 AND origin.step)
    """,
)

TOLD_RESULTS = Check(
    7,
    "a message tells only of calls that exist and are settled",
    """
    SELECT message.run_id, format('message %%s tells of call %%s, which %%s', position,
        told.call_id, coalesce('is ' || state, 'does not exist')) AS detail
    FROM celeriac.messages AS message
    CROSS JOIN jsonb_array_elements_text(body -> 'calls') AS told (call_id)
    LEFT JOIN celeriac.effects AS effect
        ON effect.run_id = coalesce(body ->> 'run', message.run_id)
            AND effect.call_id = told.call_id
    WHERE role = 'results' AND (state IS NULL OR state NOT IN ('committed', 'failed', 'invalid',
        'precondition_failed', 'rejected', 'expired', 'known_bad', 'rolled_back'))
    """,
)

SELECTIONS = Check(
    7,
    "what was selected for a step is what its model was sent",
    # A step that only told of the user's words asked nobody, whatever was selected before them.
    """
    SELECT run_id, format('step %%s, %%s: %%s', chosen.step, what,
        CASE WHEN called.attempt IS NULL THEN 'no model call' ELSE 'its call says otherwise' END)
        AS detail
    FROM (
        SELECT run_id, step, 'messages' AS what, selection FROM celeriac.selections
        UNION ALL SELECT run_id, step, 'memories', NULL FROM celeriac.recalls
    ) AS chosen
    JOIN celeriac.checkpoints AS taken USING (run_id, step)
    JOIN celeriac.runs AS run USING (run_id)
    LEFT JOIN LATERAL (
        SELECT attempt, selection AS sent FROM celeriac.model_calls AS call
        WHERE (call.run_id, call.step) = (chosen.run_id, chosen.step)
        ORDER BY attempt DESC LIMIT 1
    ) AS called ON true
    WHERE erased_at IS NULL AND taken.kind = 'think' AND taken.reason <> 'said'
        AND (CASE what WHEN 'memories' THEN sent ? 'memories'
            ELSE sent - 'memories' = chosen.selection END) IS NOT TRUE
    """,
)
