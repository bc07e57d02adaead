"""The Celery side: the step task and everything one step needs. `step.take_step` is the main
flow, `install` brings it into an existing Celery application.

The modules, in the order of a step's life:

the worker   celery_app, broker, broker_url, redis_transport, worker_service, dedicated_worker,
             hosting, hosted_worker, worker_process, heartbeat, watchdog, loaded_agent
the message  step_task, publisher
the step     step, claimed_step, transition, gate, places, committing
meanwhile    heeding, hearing, withdrawing
think        thinking, conversation, selecting, lookback, memorizing, embedding, planning,
             allotment, answering, text_stream, contracting
act          acting, batch, tool_contexts, calling, preconditions, transacting, approving,
             external_call, recovering, late_reports
elsewhere    requesting, delegating, sleeping, task_tool, called_task
other runs   forking, undoing, turning, live_flow, beginning, decision_tool, replaying
seen         observing, tracing, metrics, bell, flower
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac_tasks.hosting import install

__all__ = ["install"]


def __getattr__(name: str) -> object:
    # At its first use: every module in this package would wait for it otherwise.
    if name == "install":
        from celeriac_tasks.hosting import install

        return install
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
