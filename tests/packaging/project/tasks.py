"""A shop's own Celery application, with settings made for its own tasks, and Celeriac in it."""

import os
import time
from pathlib import Path

from celery import Celery

from celeriac import Agent, ToolContext, tool
from celeriac.scripted import ScriptedModel, call, say
from celeriac_tasks import install

HERE = Path(__file__).parent

app = Celery("shop", broker=os.environ["SHOP_BROKER_URL"])
app.conf.update(
    task_default_queue=os.environ["SHOP_QUEUE"],
    task_serializer="pickle",
    accept_content=["pickle", "json"],
    task_routes={"*": {"queue": os.environ["SHOP_QUEUE"], "exchange": "elsewhere"}},
    task_default_rate_limit="1/m",
    task_time_limit=2,
)


@app.task
def stamp(parcel: str) -> None:
    """One of the shop's own: says that it was executed, and where."""
    with (HERE / f"stamped-{parcel}").open("a") as file:
        file.write(f"{os.getpid()}\n")


@app.task
def stall(parcel: str) -> None:
    """Takes longer than it may."""
    (HERE / f"stalled-{parcel}").touch()
    _wait_for(HERE / "never")


@app.task(time_limit=60)
def wrap(parcel: str) -> None:
    """Begins, and waits until the parcel may leave."""
    (HERE / f"wrapping-{parcel}").touch()
    _wait_for(HERE / f"wrapped-{parcel}")
    (HERE / f"done-{parcel}").touch()


@tool(effect="none", timeout_seconds=60.0)
def wait_for_carrier(ctx: ToolContext) -> str:
    """Note which process waits, and wait until the carrier is there."""
    with (HERE / f"waiting-{ctx.run_id}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    _wait_for(HERE / "carrier")
    return "there"


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


packer = Agent(
    "packer",
    ScriptedModel([call("wait_for_carrier"), say("packed")]),
    tools=[wait_for_carrier],
    queue=os.environ["CELERIAC_QUEUES"],
)

install(app, agents=[packer])
