"""Which packages each entry point loads, because of what they cost at every start.

Measured in CPU time: pydantic-ai 1.7 s, SQLAlchemy 0.5 s, Celery 0.6 s, OpenAI's client 1.7 s.
"""

import subprocess
import sys

import pytest

SERVERS = {"alembic", "celery", "kombu", "psycopg", "redis", "sqlalchemy"}
MODELS = {"httpx2", "openai", "pydantic_ai"}
INTERFACE = {"flower", "rich", "typer"}
EVERYTHING = {*SERVERS, *MODELS, *INTERFACE, "griffe", "jsonschema", "pydantic"}

HELP = """\
from celeriac.cli.main import app
try:
    app(["--help"])
except SystemExit as ended:
    assert ended.code == 0
"""


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import celeriac", EVERYTHING),
        ("from celeriac import Agent, tool, ToolContext, Limits", {*SERVERS, *MODELS, *INTERFACE}),
        ("from celeriac import Client", {"celery", "kombu", *MODELS, *INTERFACE}),
        ("from celeriac.mcp import mcp_tools", {*SERVERS, *MODELS, *INTERFACE, "mcp", "mcp_types"}),
        (HELP, {*SERVERS, *MODELS, "flower", "pydantic"}),
        ("import celeriac_scheduler.scheduler", {*MODELS, *INTERFACE}),
        ("import celeriac_api.app", {"celery", *MODELS, "flower", "typer"}),
        ("import celeriac_tasks.worker_service", {"flower", "openai", "typer"}),
    ],
    ids=["celeriac", "agents", "client", "mcp", "help", "scheduler", "api", "worker"],
)
def test_an_entry_point_loads_nothing_that_it_does_not_need(code: str, unwanted: set[str]) -> None:
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"

    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )

    assert set(ran.stderr.split()) & unwanted == set()
