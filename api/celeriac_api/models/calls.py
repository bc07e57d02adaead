"""Calls that another process executes, or whose outcome is unknown."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from celeriac import reports
from celeriac_api.models.body import Body, CallIdText, Text
from celeriac_api.models.report_model import model_of


class CallResult(BaseModel):
    """What one call came to: its result, or why it failed."""

    model_config = ConfigDict(extra="forbid")

    call_id: CallIdText
    result: Annotated[Any, Field(description="What the call returned, any JSON.")] = None
    error: Annotated[Text | None, Field(description="Why it failed; the model is told it.")] = None
    receipt: Annotated[
        Any,
        Field(description="Of a call that changes files: the receipt that says either of both."),
    ] = None

    @model_validator(mode="after")
    def _is_one_of_all(self) -> "CallResult":
        if len({"result", "error", "receipt"} & self.model_fields_set) != 1:
            raise ValueError("say either the result or the error, or give a receipt")
        if "error" in self.model_fields_set and self.error is None:
            raise ValueError("the error may not be null")
        return self


class Results(Body):
    """What calls came to that another process has executed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"results": [{"call_id": "0.0", "result": {"in_stock": 3}}]}]
        }
    )

    results: Annotated[list[CallResult], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _has_each_call_once(self) -> "Results":
        if len({each.call_id for each in self.results}) != len(self.results):
            raise ValueError("a call stands twice")
        return self


class ResolveCall(Body):
    """What came of a call whose outcome is unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"call_id": "0.0", "committed": {"refund_id": "R-1"}},
                {"call_id": "0.0", "not_done": True},
            ]
        }
    )

    call_id: CallIdText
    committed: Annotated[Any, Field(description="It took effect: the result to tell.")] = None
    not_done: Annotated[
        Literal[True] | None,
        Field(description="It changed nothing and never will: it is made again."),
    ] = None

    @property
    def has_committed(self) -> bool:
        return "committed" in self.model_fields_set

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "ResolveCall":
        if self.has_committed == (self.not_done is not None):
            raise ValueError("say either committed, with the result, or not_done: true")
        return self


RequestedCallModel = model_of(reports.RequestedCall)


class Calls(BaseModel):
    calls: list[RequestedCallModel]  # type: ignore[valid-type]  # made while it runs
