"""The only code that speaks SQL.

Functions take a `sqlalchemy.Connection` and say whether they need a transaction around them. What
moves states is written as SQL and sent to the driver as it is: each such statement is one atomic
step of a state machine and is read as one, and compiling an expression would cost more than running
it. Lists and look-ups use the Core tables of `tables`.

Where several rows are locked, the order is: run, then thread, then effects. Workers' rows are
locked before runs.

The modules, by what their rows are about:

the database  database, schema, tables, tenancy, refusal, health
a run         admitting, new_run, taken_ids, starting, said_instead, run_events, news, ending
its steps     claims, step_record, steps, step_statement, settling, dispatch
its thread    threads, inbox, history, artifacts, selections
its pauses    pauses, waking, timers, deadlines, requests
calls         effects, lost_calls, submitting, receipts, resolving, deeds
people        approvals, rulings, deciding, editing, expiring, consuming, principals
other runs    children, forks, rollbacks, plans, plan_retries, schedules, firing
workflows     entries, entry_ids, entry_ends, kept_entries, mailbox, workflow_log
memory        memories, remembering, recalls, ranking, memory_vectors
budgets       budgets, budget_limits
workers       workers, lifeline, verdicts, agents
access        owners, ownership, tokens, strangers, console_sessions, idempotency_keys,
              audit_trail
shown         run_report, run_list, reading, following, conversations, timelines, overview,
              gauges, replays, stages
kept, gone    audit, audit_checks, contract_audit, pruning, erasing
measured      measuring, measuring_memory
"""
