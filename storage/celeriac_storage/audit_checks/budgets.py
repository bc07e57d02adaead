"""What must hold of budgets: their sums, their limits, and that nothing was begun beyond them."""

from celeriac_storage.audit_checks.check import Check

_NAMED = "format('%%s of %%s %%s', measure, scope, subject)"

BUDGET_SUMS = Check(
    10,
    "what a budget says is used and reserved is the sum of its entries",
    f"""
    SELECT NULL::text AS run_id, format('%%s: used %%s, reserved %%s; its entries %%s, %%s',
        {_NAMED}, budget.used, budget.reserved, entered.used, entered.reserved) AS detail
    FROM celeriac.budgets AS budget CROSS JOIN LATERAL (
        SELECT coalesce(sum(used), 0) AS used,
            coalesce(sum(reserved) FILTER (WHERE used IS NULL), 0) AS reserved
        FROM celeriac.budget_entries AS entry WHERE entry.budget_id = budget.budget_id
    ) AS entered
    WHERE (budget.used, budget.reserved) <> (entered.used, entered.reserved)
    """,
)

BUDGET_LIMITS = Check(
    10,
    "a budget's limits are those that somebody set or topped up",
    f"""
    SELECT NULL::text AS run_id, format('%%s: %%s', {_NAMED}, what) AS detail
    FROM celeriac.budgets AS budget CROSS JOIN LATERAL (
        SELECT format('the hard limit is %%s, the last change says %%s', budget.hard_limit,
            coalesce(last.hard_limit::text, 'none')) AS what
        FROM (SELECT) AS one LEFT JOIN LATERAL (
            SELECT * FROM celeriac.budget_changes AS change
            WHERE change.budget_id = budget.budget_id ORDER BY seq DESC LIMIT 1
        ) AS last ON true
        WHERE (last.soft_limit, last.hard_limit, last.on_exceeded)
            IS DISTINCT FROM (budget.soft_limit, budget.hard_limit, budget.on_exceeded)
        UNION ALL
        SELECT format('%%s was topped up by %%s and became %%s', was, amount, hard_limit)
        FROM (
            SELECT *, lag(hard_limit) OVER (ORDER BY seq) AS was
            FROM celeriac.budget_changes AS change WHERE change.budget_id = budget.budget_id
        ) AS change
        WHERE amount IS NOT NULL AND hard_limit IS DISTINCT FROM was + amount
    ) AS wrong
    """,
)

BUDGET_CHARGES = Check(
    10,
    "what a budget charges for a step is what the step's model calls took",
    # A step may have been tried before there was the budget, or without a bill: no more, then.
    """
    SELECT run_id, format('step %%s is charged %%s tokens, its model calls took %%s', step,
        max(used), took) AS detail
    FROM (
        SELECT entry.budget_id, run_id, step, sum(entry.used) AS used
        FROM celeriac.budget_entries AS entry JOIN celeriac.budgets USING (budget_id)
        WHERE measure = 'tokens' AND entry.used > 0 GROUP BY 1, 2, 3
    ) AS charged JOIN (
        SELECT run_id, step, sum(input_tokens + output_tokens) AS took
        FROM celeriac.model_calls GROUP BY 1, 2
    ) AS called USING (run_id, step)
    WHERE used > took GROUP BY run_id, step, took
    """,
)

BUDGET_EXCEEDED = Check(
    10,
    "no step began that did not fit its budgets",
    # Back to the last step that a limit allowed, by what became of the entries since: what calls
    # used beyond what was reserved for them may have passed the limit then, and nothing else.
    f"""
    SELECT NULL::text AS run_id, format('%%s: with step %%s of run %%s, %%s of %%s', {_NAMED},
        allowed.step, allowed.run_id, budget.used + budget.reserved - since.amount,
        allowed.hard_limit) AS detail
    FROM celeriac.budgets AS budget CROSS JOIN LATERAL (
        SELECT * FROM celeriac.budget_entries AS entry
        WHERE entry.budget_id = budget.budget_id AND entry.hard_limit IS NOT NULL
        ORDER BY reserved_seq DESC LIMIT 1
    ) AS allowed CROSS JOIN LATERAL (
        SELECT coalesce(sum(CASE WHEN entry.reserved_seq > allowed.reserved_seq
            THEN coalesce(entry.used, entry.reserved) ELSE entry.used - entry.reserved END), 0)
            AS amount
        FROM celeriac.budget_entries AS entry
        WHERE entry.budget_id = budget.budget_id
            AND greatest(entry.reserved_seq, entry.settled_seq) > allowed.reserved_seq
    ) AS since
    WHERE budget.used + budget.reserved - since.amount > allowed.hard_limit
    """,
)

BUDGET_RELEASED = Check(
    10,
    "while a scheduler lives, a run that has ended holds no steps, calls or seconds",
    # Tokens and money of a call that was lost stay reserved for ever.
    f"""
    SELECT run_id, format('%%s: %%s reserved for step %%s', {_NAMED}, entry.reserved, entry.step)
        AS detail
    FROM celeriac.budget_entries AS entry JOIN celeriac.budgets AS budget USING (budget_id)
    JOIN celeriac.runs AS run USING (run_id)
    WHERE entry.used IS NULL AND measure NOT IN ('tokens', 'usd')
        AND finished_at < now() - make_interval(secs => %(overdue_seconds)s)
        AND EXISTS (SELECT FROM celeriac.leaders WHERE held_until > now())
    """,
)
