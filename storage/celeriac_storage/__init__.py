"""The only code that speaks SQL.

Functions take a `sqlalchemy.Connection` and say whether they need a transaction around them. What
moves states is written as SQL and sent to the driver as it is: each such statement is one atomic
step of a state machine and is read as one, and compiling an expression would cost more than running
it. Lists and look-ups use the Core tables of `tables`.

Where several rows are locked, the order is: run, then thread, then effects. Workers' rows are
locked before runs.
"""
