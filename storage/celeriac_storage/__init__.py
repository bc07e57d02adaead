"""The only code that speaks SQL.

Functions take a `sqlalchemy.Connection` and say whether they need a transaction around them. The
statements of the step itself (`claims`, `steps`, `effects`) are written as SQL and sent to the
driver as they are, because compiling an expression costs more than executing the statement;
everything else uses the Core tables of `tables`.

Where several rows are locked, the order is: run, then thread, then effects. Workers' rows are
locked before runs.
"""
