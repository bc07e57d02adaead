"""A plan as people are shown it: the JSON of `celeriac plan show` and of `/v1/runs/{id}/plan`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celeriac.ids import RunId
from celeriac.plan.standing import Node
from celeriac.states import RunStatus


@dataclass(frozen=True, slots=True)
class PlanReport:
    run_id: RunId
    status: RunStatus  # of the run
    version: int  # above 1: it was edited so often, from run to run
    hash: str  # SHA-256 of what is stored, in hex
    goal: str
    checkpoint_interval: str
    continues: RunId | None  # the run whose completed steps it has kept
    continued_by: RunId | None  # the run that does what this one has left
    created_at: datetime
    layers: int
    steps: Sequence[Node]  # by layer
