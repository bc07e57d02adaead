"""Budgets: their limits, and what of them is used."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from celeriac import reports
from celeriac_api.models.body import Body
from celeriac_api.models.report_model import model_of

Amount = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,18}(\.[0-9]{1,10})?$",
        examples=["12.50"],
        description="As a string, so that it is exact.",
    ),
]


class SetBudget(Body):
    """The limits of a budget; one that is not said does not limit anything."""

    hard_limit: Annotated[Amount | None, Field(description="No step begins that may pass it.")] = (
        None
    )
    soft_limit: Annotated[
        Amount | None, Field(description="The run's history says when it is reached.")
    ] = None
    on_exceeded: Annotated[
        Literal["pause", "fail"],
        Field(description="Whether a run then waits for a top-up, or ends."),
    ] = "pause"


class TopUp(Body):
    """What the hard limit grows by."""

    amount: Amount


BudgetModel = model_of(reports.Budget)


class Budgets(BaseModel):
    budgets: list[BudgetModel]  # type: ignore[valid-type]  # made while it runs
