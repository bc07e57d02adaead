"""Threads, with their latest runs."""

from pydantic import BaseModel

from celeriac import reports
from celeriac_api.models.report_model import model_of

ThreadModel = model_of(reports.Thread)
ThreadLineModel = model_of(reports.ThreadLine)


class ThreadPage(BaseModel):
    threads: list[ThreadLineModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None
