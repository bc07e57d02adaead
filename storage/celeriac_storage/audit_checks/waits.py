"""What must hold of runs that wait: for their children, for a timer; and of what schedules did."""

from celeriac_storage.audit_checks.check import TERMINAL, Check

WAITING_PARENTS = Check(
    9,
    "a run that waits for others waits for one that goes on",
    # The end of a child and the news of it are one transaction.
    f"""
    SELECT run_id, 'no child of its calls goes on' AS detail FROM celeriac.runs AS parent
    WHERE status = 'paused' AND phase = 'waiting_child' AND NOT EXISTS (
        SELECT FROM celeriac.effects AS effect JOIN celeriac.runs AS child
            ON (child.parent_run_id, child.parent_call_id) = (effect.run_id, effect.call_id)
        WHERE effect.run_id = parent.run_id AND effect.state = 'in_flight'
            AND flags ? 'child' AND child.status NOT IN {TERMINAL}
    )
    """,
)

CHILDREN = Check(
    3,
    "a call that was given to another run has one, and each child answers such a call",
    """
    SELECT run_id, format('call %%s is %%s and has %%s children', call_id, state, count) AS detail
    FROM celeriac.effects AS effect, LATERAL (
        SELECT count(*) FROM celeriac.runs AS child
        WHERE (child.parent_run_id, child.parent_call_id) = (effect.run_id, effect.call_id)
    ) AS children
    WHERE coalesce(flags ? 'child', false) AND count <> (attempt > 0)::int
    UNION ALL
    SELECT run_id, format('it answers call %%s of run %%s, which is no such call', parent_call_id,
        parent_run_id)
    FROM celeriac.runs AS child
    WHERE parent_call_id IS NOT NULL AND NOT EXISTS (  -- of a workflow: `workflows.MADE_BY`
        SELECT FROM celeriac.runs AS workflow
        WHERE workflow.run_id = child.parent_run_id AND workflow.kind = 'workflow'
    ) AND NOT EXISTS (
        SELECT FROM celeriac.effects AS effect JOIN celeriac.runs AS parent USING (run_id)
        WHERE (effect.run_id, effect.call_id) = (child.parent_run_id, child.parent_call_id)
            AND flags ? 'child' AND child.depth = parent.depth + 1
            AND child.root_run_id = parent.root_run_id
    )
    """,
)

CHILD_USE = Check(
    10,
    "what a run's children used is counted in it, once they have ended",
    """
    SELECT run_id, format('the run says %%s steps, %%s tool calls and %%s tokens; its children '
        '%%s, %%s and %%s', child_steps_used, child_tool_calls_used, child_tokens_used, steps,
        tool_calls, tokens) AS detail
    FROM celeriac.runs AS parent, LATERAL (
        SELECT coalesce(sum(child.step + child.child_steps_used), 0) AS steps,
            coalesce(sum(child.tool_calls_used + child.child_tool_calls_used), 0) AS tool_calls,
            coalesce(sum(child.input_tokens_used + child.output_tokens_used
                + child.child_tokens_used), 0) AS tokens
        FROM celeriac.runs AS child JOIN celeriac.effects AS effect
            ON (effect.run_id, effect.call_id) = (child.parent_run_id, child.parent_call_id)
        WHERE child.parent_run_id = parent.run_id AND effect.state IN ('committed', 'failed')
            -- Of one that was told after its parent's end nothing is added any more.
            AND effect.settled_at < coalesce(parent.finished_at, 'infinity')
    ) AS children
    WHERE kind <> 'workflow' AND (child_steps_used, child_tool_calls_used, child_tokens_used)
        <> (steps, tool_calls, tokens)
    UNION ALL
    SELECT run_id, format('the workflow says %%s steps, %%s tool calls and %%s tokens; its runs '
        '%%s, %%s and %%s', child_steps_used, child_tool_calls_used, child_tokens_used, steps,
        tool_calls, tokens)
    FROM celeriac.runs AS workflow, LATERAL (
        SELECT coalesce(sum(used.steps), 0) AS steps,
            coalesce(sum(used.tool_calls), 0) AS tool_calls,
            coalesce(sum(used.tokens), 0) AS tokens,
            coalesce(sum(used.steps) FILTER (WHERE is_counted), 0) AS least_steps,
            coalesce(sum(used.tool_calls) FILTER (WHERE is_counted), 0) AS least_tool_calls,
            coalesce(sum(used.tokens) FILTER (WHERE is_counted), 0) AS least_tokens
        FROM celeriac.activities AS entry JOIN celeriac.runs AS child ON child.run_id = made_by,
        LATERAL (
            SELECT child.step + child.child_steps_used AS steps,
                child.tool_calls_used + child.child_tool_calls_used AS tool_calls,
                child.input_tokens_used + child.output_tokens_used + child.child_tokens_used
                    AS tokens,
                -- What nobody waits for any more is counted as well, until the workflow ends.
                entry.told IS NOT NULL OR workflow.finished_at IS NULL AS is_counted
        ) AS used
        WHERE entry.run_id = workflow.run_id AND child.parent_run_id = workflow.run_id
            AND (entry.told IS NOT NULL OR child.finished_at IS NOT NULL)
    ) AS made
    WHERE kind = 'workflow' AND pruned_at IS NULL
        AND NOT (child_steps_used BETWEEN least_steps AND steps
            AND child_tool_calls_used BETWEEN least_tool_calls AND tool_calls
            AND child_tokens_used BETWEEN least_tokens AND tokens)
    """,
)

TIMERS = Check(
    9,
    "a timer that is due fires in time, and a run that waits for one has one",
    f"""
    SELECT run_id, format('timer %%s was due at %%s', timer_id, due_at) AS detail
    FROM celeriac.timers JOIN celeriac.runs USING (run_id)
    WHERE fired_at IS NULL AND status NOT IN {TERMINAL}
        AND due_at < now() - make_interval(secs => %(overdue_seconds)s)
    UNION ALL
    SELECT run_id, 'it waits for a timer that nobody has set'
    FROM celeriac.runs AS run
    WHERE status = 'paused' AND phase = 'waiting_timer' AND wake_at IS NULL AND NOT EXISTS (
        SELECT FROM celeriac.timers WHERE timers.run_id = run.run_id AND fired_at IS NULL
    )
    """,
)

FIRES = Check(
    9,
    "a time of a schedule that started a run has that run, of its owner",
    """
    SELECT run_id, format('schedule %%s at %%s', schedule_id, scheduled_at) AS detail
    FROM celeriac.schedule_fires AS fire
    WHERE outcome = 'started' AND NOT EXISTS (
        SELECT FROM celeriac.runs AS run
        WHERE run.run_id = fire.run_id AND run.tenant_id = fire.tenant_id
            AND run.start_key LIKE 'schedule:%%'
    )
    """,
)
