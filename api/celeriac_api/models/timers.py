"""Timers: what waits for a time."""

from pydantic import BaseModel

from celeriac import reports
from celeriac_api.models.report_model import model_of

TimerModel = model_of(reports.Timer)


class Timers(BaseModel):
    timers: list[TimerModel]  # type: ignore[valid-type]  # made while it runs
