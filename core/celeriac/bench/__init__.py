"""Measurements of this installation, on the configured servers: `celeriac bench`.

They run real workers and a real scheduler in processes of their own, on the queue `celeriac`, and
leave their runs behind like any others. Use a database that may be measured.
"""
