"""Plans: work that is laid out before it begins, as steps that need one another (docs/plans.md).

A plan is data: code writes it, or a model does, and it is checked as a whole before anything of it
is stored. What executes it is one workflow (`celeriac.plan.runner`). Nothing here reaches a server.
"""

from celeriac.plan.plan import CheckpointInterval, OnFailure, Plan, PlanStep
from celeriac.plan.references import result_of

__all__ = ["CheckpointInterval", "OnFailure", "Plan", "PlanStep", "result_of"]
