"""What moves without a user: failover, redispatch, timers, schedules, deadlines, retention.

`scheduler.Scheduler` is the loop.
"""
