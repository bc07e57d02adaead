"""Memories, and what the policy decided about candidates."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from celeriac import reports
from celeriac_api.models.body import MOST, Body, Id
from celeriac_api.models.report_model import model_of


class PutMemory(Body):
    """What to remember, for the policy to decide about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"value": "Prefers short answers in Chinese"},
                {"value": {"seat": "aisle"}, "replaces_version": 1, "expires_days": 365},
            ]
        }
    )

    value: Annotated[Any, Field(description="Any JSON but null; a text is best.")]
    kind: Literal["semantic", "episodic", "procedural"] = "semantic"
    replaces_version: Annotated[
        int | None, Field(ge=1, le=MOST, description="To change what is there: its version now.")
    ] = None
    expires_days: Annotated[float | None, Field(gt=0, le=36_500, allow_inf_nan=False)] = None
    user_id: Annotated[
        Id | None, Field(description="Of whom; of you by default. Others' take an operator.")
    ] = None


MemoryModel = model_of(reports.Memory)
MemoryDecisionModel = model_of(reports.MemoryDecision)
MemoryExportModel = model_of(reports.MemoryExport)
RememberedModel = model_of(reports.Remembered)


class MemoryPage(BaseModel):
    memories: list[MemoryModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None
    found_by: Annotated[
        list[str],
        Field(
            description="By what a query searched: `words`, and by meaning the embedder's name as "
            "well; empty without a query.",
            examples=[["words", "wordllama-0.4.0-l2_supercat-256"]],
        ),
    ]


class MemoryDecisionPage(BaseModel):
    decisions: list[MemoryDecisionModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class Forgotten(BaseModel):
    """It was there, and is not there any more."""

    forgotten: Literal[True]
