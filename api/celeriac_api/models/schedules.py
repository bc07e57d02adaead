"""Schedules, and what came of their times."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from celeriac import reports
from celeriac.cron import MAX_EXPRESSION_CHARACTERS
from celeriac.schedule import MAX_CATCH_UP, MAX_JITTER_SECONDS, CatchUp, NewSchedule, Overlap
from celeriac_api.models.body import Body, Id, Text
from celeriac_api.models.report_model import model_of


class AddSchedule(Body):
    """Starts runs at the times of a cron expression."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "schedule_id": "nightly",
                    "agent": "reporter",
                    "input": "yesterday",
                    "cron": "30 2 * * *",
                    "time_zone": "Europe/Berlin",
                }
            ]
        }
    )

    schedule_id: Annotated[Id, Field(description="A name of your choice.")]
    agent: Annotated[Text, Field(max_length=200)]
    input: Annotated[Any, Field(description="Any JSON that the agent's input schema takes.")]
    cron: Annotated[Text, Field(max_length=MAX_EXPRESSION_CHARACTERS)]
    time_zone: Annotated[Text, Field(max_length=100)] = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    catch_up_limit: Annotated[int, Field(ge=1, le=MAX_CATCH_UP)] = 10
    jitter_seconds: Annotated[float, Field(ge=0, le=MAX_JITTER_SECONDS, allow_inf_nan=False)] = 0.0
    user_id: Annotated[Id | None, Field(description="Whose runs they are; yours by default.")] = (
        None
    )

    def to_schedule(self) -> NewSchedule:
        return NewSchedule(**self.model_dump(exclude={"schedule_id", "user_id", "idempotency_key"}))


ScheduleModel = model_of(reports.Schedule)
ScheduleFireModel = model_of(reports.ScheduleFire)


class Schedules(BaseModel):
    schedules: list[ScheduleModel]  # type: ignore[valid-type]  # made while it runs
