"""What of a Celery task can be declared as a tool, and what the model is shown of it."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from celeriac import Agent, ToolContext, tool_from_task
from celeriac.errors import InvalidAgent
from celeriac.scripted import ScriptedModel, say
from celeriac.states import EffectKind
from celeriac_tasks.calling import Raised
from tests.called_by_hand import called


class Seat(BaseModel):
    row: int


def application(**settings: object) -> Celery:
    app = Celery("box", broker="redis://127.0.0.1:1", backend="redis://127.0.0.1:1")
    app.conf.update(settings)
    return app


def task_of(app: Celery, **options: Any) -> Any:
    # Not shared: an application that another test makes would have it as well.
    @app.task(bind=True, name="box.book", shared=False, **options)
    def book(self: object, show: str, seat: Seat, day: dt.date | None = None) -> str:
        """Book a seat.

        It is yours then.

        Args:
            show: Its title.
            seat: Where.
        """
        return f"{self} {show} {seat.row} {day}"

    return book


def test_a_task_is_shown_to_the_model_as_a_function_is() -> None:
    made = tool_from_task(task_of(application()), timeout_seconds=7)

    assert (made.name, made.description) == ("book", "Book a seat.")
    assert (made.effect, made.flags.stateful) == (EffectKind.EXTERNAL, True)
    schema: Any = made.parameters_schema
    assert list(schema["properties"]) == ["show", "seat", "day"]
    assert schema["properties"]["show"]["description"] == "Its title."
    assert schema["required"] == ["show", "seat"]
    Agent("clerk", ScriptedModel([say("")]), tools=[made])  # and it can be registered


def test_what_retries_itself_is_read_as_it_was_written() -> None:
    made = tool_from_task(task_of(application(), autoretry_for=(OSError,), pydantic=True))

    assert made.parameters.names == ("show", "seat", "day")


def test_its_name_description_and_effect_can_be_others() -> None:
    made = tool_from_task(
        task_of(application()), effect="none", name="seat_plan", description="Show the plan."
    )

    assert (made.name, made.description, made.effect) == (
        "seat_plan",
        "Show the plan.",
        EffectKind.NONE,
    )
    assert made.recovery.verify is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"result_backend": None}, "the result backend is disabled"),
        ({"result_backend": "rpc://"}, "the result backend is rpc"),
        ({"result_backend": "cache+memory://"}, "the result backend is cache+memory"),
        ({"result_serializer": "pickle"}, "only JSON is read"),
        ({"accept_content": ["pickle"]}, "add 'json'"),
        ({"task_always_eager": True}, "task_always_eager"),
    ],
)
def test_an_application_that_cannot_tell_what_came_of_a_call_is_refused(
    settings: dict[str, object], told: str
) -> None:
    app = Celery("box", broker="redis://127.0.0.1:1")
    app.conf.update({"result_backend": "redis://127.0.0.1:1", **settings})

    with pytest.raises(InvalidAgent, match=r"task box.book as a tool: .*") as refused:
        tool_from_task(task_of(app))
    assert told in str(refused.value)


@pytest.mark.parametrize(("attempt", "is_definite"), [(1, True), (2, False)])
def test_what_was_not_sent_has_done_nothing_unless_it_was_sent_before(
    attempt: int, is_definite: bool, tmp_path: Path
) -> None:
    app = application(result_backend=f"file://{tmp_path}")
    task = task_of(app, pydantic=True)

    outcome = called(tool_from_task(task), attempt, show="Hamlet", seat={"row": 1})

    assert isinstance(outcome, Raised)
    assert outcome.is_definite is is_definite
    assert "task box.book was not sent: the broker at redis://127.0.0.1:1" in str(outcome.error)


def test_a_backend_that_cannot_be_asked_keeps_a_call_from_being_sent(tmp_path: Path) -> None:
    (tmp_path / "celery-task-meta-default:r1:0.0").write_text("no JSON")
    app = application(result_backend=f"file://{tmp_path}")

    outcome = called(tool_from_task(task_of(app)), show="Hamlet", seat={"row": 1})

    assert isinstance(outcome, Raised)
    assert outcome.is_definite
    assert "the result backend cannot be asked" in str(outcome.error)


def test_what_cannot_be_true_of_a_task_is_refused() -> None:
    task = task_of(application())
    other = application()

    @other.task(shared=False)
    def wants_context(ctx: ToolContext) -> None:
        """Do something."""

    with pytest.raises(InvalidAgent, match="a task runs in another process"):
        tool_from_task(task, effect="transactional")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidAgent, match="effect='sometimes' is none of"):
        tool_from_task(task, effect="sometimes")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidAgent, match="cannot be sent to a task"):
        tool_from_task(wants_context)
    with pytest.raises(InvalidAgent, match="is no Celery task"):
        tool_from_task(print)  # type: ignore[arg-type]  # what is tested
