"""Figures for Prometheus: what is read off the rows, and what a process counts of itself.

docs/operations.md lists all of them; `rows`, `worker`, `celeriac_scheduler.figures` and
`celeriac_api.metrics` define them.
"""
