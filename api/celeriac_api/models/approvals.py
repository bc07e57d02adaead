"""Proposals, and what people decide about them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from celeriac import reports
from celeriac_api.models.body import Body, Text
from celeriac_api.models.report_model import model_of


class DecideApproval(Body):
    """What you say about a proposal."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"decision": "approve", "arguments_hash": "…64 hex digits…"},
                {
                    "decision": "edit",
                    "arguments_hash": "…",
                    "arguments": {"order_id": "O-1", "amount": "40.00"},
                    "reason": "half of it was used",
                },
                {"decision": "reject", "arguments_hash": "…", "reason": "the order is too old"},
            ]
        }
    )

    decision: Literal["approve", "edit", "reject"]
    arguments_hash: Annotated[
        Text, Field(max_length=200, description="As it was shown: what you decide is that.")
    ]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="With edit: all arguments, as they should be.")
    ] = None
    reason: Text = ""
    answers: Annotated[
        dict[Text, Text], Field(description="To the questions of the checklist.")
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_arguments_to_edit(self) -> "DecideApproval":
        if (self.decision == "edit") != (self.arguments is not None):
            raise ValueError("arguments stand with the decision edit, and with no other")
        return self


ApprovalModel = model_of(reports.Approval)
DecidedModel = model_of(reports.Decided)


class ApprovalPage(BaseModel):
    approvals: list[ApprovalModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None
