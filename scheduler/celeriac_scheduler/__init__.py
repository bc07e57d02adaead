"""What moves without a user: failover, redispatch and timers. `scheduler.Scheduler` is the loop."""
