"""What an existing application's settings must be, told where it is installed."""

import subprocess
import sys
from typing import Any

import pytest
from celery import Celery

from celeriac import Agent
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.scripted import ScriptedModel, say
from celeriac.settings import Settings
from celeriac_tasks import install
from celeriac_tasks.celery_app import STEP_TASK, make_queue
from celeriac_tasks.hosted_worker import HostedWorker, _check_steps_per_task, _check_task, _declare

BROKER = "redis://:secret-word@127.0.0.1:6379/3"


def application(**conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update({"broker_url": BROKER, "broker_transport_options": {}, **conf})
    return app


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"CELERIAC_{name.upper()}", raising=False)


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"broker_url": None}, "broker_url"),
        ({"broker_url": "sqs://"}, "broker_url"),
        ({"broker_url": f"{BROKER};redis://other"}, "broker_url"),
        ({"broker_url": f"{BROKER}?nonsense=1"}, "broker_url"),
        ({"broker_url": [BROKER, "redis://other"]}, "broker_url"),
        ({"accept_content": ["pickle"]}, "accept_content"),
        ({"broker_transport_options": {"global_keyprefix": "shop:"}}, "global_keyprefix"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused_by_its_name(
    conf: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        install(application(**conf))

    assert "secret-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("redis://localhost", "redis://127.0.0.1:6379/0"),
        ("amqp://", "pyamqp://guest:guest@127.0.0.1:5672//"),
    ],
)
def test_one_broker_may_be_spelled_in_two_ways(theirs: str, ours: str) -> None:
    settings = Settings.model_validate({"broker_url": ours})

    install(application(broker_url=theirs), settings)


def test_a_broker_that_schedulers_do_not_publish_on_is_refused() -> None:
    settings = Settings.model_validate({"broker_url": "redis://127.0.0.1:6379/4"})

    with pytest.raises(InvalidInput, match=r"6379/3 and CELERIAC_BROKER_URL is \S+6379/4"):
        install(application(), settings)


def test_two_agents_of_one_name_are_refused() -> None:
    agents = [Agent("packer", ScriptedModel([say("packed")])) for _ in range(2)]

    with pytest.raises(InvalidAgent, match="packer"):
        install(application(), agents=agents)


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        ({"acks_late": False}, "acks_late"),
        ({"reject_on_worker_lost": False}, "reject_on_worker_lost"),
        ({"rate_limit": "1/m"}, "rate_limit"),
    ],
)
def test_an_annotation_of_all_tasks_that_a_step_cannot_live_with_is_refused(
    annotation: dict[str, object], named: str
) -> None:
    app = application(task_annotations={"*": annotation})
    HostedWorker(app, [], lambda: pytest.fail("not asked"))

    with pytest.raises(InvalidInput, match=named):
        _check_task(app)


def test_auto_is_refused_where_a_shutdown_would_not_be_heard() -> None:
    settings = Settings.model_validate({"steps_per_task": "auto", "pool": "prefork"})

    with pytest.raises(InvalidInput, match="CELERIAC_STEPS_PER_TASK"):
        _check_steps_per_task(settings)


def test_its_settings_and_queues_are_left_as_they_are() -> None:
    app = application(task_queue_max_priority=5)
    before = dict(app.conf)

    install(app)
    _declare(app, "celeriac")

    assert dict(app.conf) == before
    assert set(app.amqp.queues.consume_from) == {"celery", "celeriac"}
    ours, plain = app.amqp.queues["celeriac"], make_queue("celeriac")
    # Bound to nothing of the application's, and declared as schedulers and clients declare it.
    assert ours.exchange.name == ""
    assert ours.durable == plain.durable
    assert ours.queue_arguments == plain.queue_arguments
    assert STEP_TASK not in app.tasks  # only a worker has it


def test_whoever_only_imports_the_application_loads_neither_agents_nor_drivers() -> None:
    program = (
        "import sys\n"
        "from celery import Celery\n"
        "from celeriac_tasks import install\n"
        f"install(Celery('shop', broker={BROKER!r}))\n"
        "print({'pydantic_ai', 'psycopg', 'sqlalchemy'} & set(sys.modules))\n"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert loaded.stdout.strip() == "set()"
