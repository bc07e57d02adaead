"""The Celery side: the step task and everything one step needs. `step.take_step` is the main
flow.
"""

from collections.abc import Sequence

from celery import Celery


def install(app: Celery, agent_modules: Sequence[str] = ()) -> None:
    """Make an existing Celery application execute Celeriac's steps.

    Agents come from `agent_modules`, or else from `CELERIAC_AGENTS`. The workers must serve the
    queues named in `CELERIAC_QUEUES` and acknowledge late, as the task asks for itself.
    Raises `InvalidInput` if an agent or a setting cannot be used.
    """
    from celeriac.registry import load_agents
    from celeriac.settings import settings
    from celeriac_tasks.step_task import StepTask

    configured = settings()
    StepTask(app, configured, load_agents(agent_modules or configured.agent_modules))
