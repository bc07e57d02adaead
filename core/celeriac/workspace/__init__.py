"""Tools that read and change files in a run's workspace, and snapshots to take changes back.

`docs/workspace.md` says what is confined, what is not, and how a crash is told from a change.
"""
