"""The runs below a run, as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from celeriac.ids import RunId
from celeriac.reports import Child, Run


@dataclass(slots=True)
class Branch:
    """A run that another one started, with those that it started."""

    child: Child
    branches: list["Branch"] = field(default_factory=list)


def branches_below(run: Run) -> Sequence[Branch]:
    """Those that it started, each in the order in which they began."""
    below: dict[RunId, list[Branch]] = {run.run_id: []}
    for child in run.children:  # each stands after the one that started it
        branch = Branch(child)
        below[child.run_id] = branch.branches
        below[child.parent.run_id].append(branch)
    return below[run.run_id]
