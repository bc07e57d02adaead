"""Which packages each entry point loads, because of what they cost at every start.

Measured in CPU time: pydantic-ai 1.7 s, SQLAlchemy 0.5 s, Celery 0.6 s, OpenAI's client 1.7 s.
"""

import subprocess
import sys

import pytest

CHECKS = {"attr", "griffe", "jsonschema", "referencing"}
SERVERS = {"alembic", "celery", "kombu", "psycopg", "redis", "sqlalchemy"}
MODELS = {"httpx2", "openai", "pydantic_ai"}
INTERFACE = {"flower", "rich", "typer"}
EVERYTHING = {*SERVERS, *MODELS, *INTERFACE, *CHECKS, "pydantic"}
EVENTS = {"celeriac.events.facts", "celeriac.events.types"}

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
        (
            "import celeriac.cli.service",
            {*EVERYTHING, "celeriac.cli.main", "celeriac.cli.runs"} - {"typer"},
        ),
        (
            "import celeriac.stack.stack",
            {*SERVERS - {"psycopg"}, *MODELS, *INTERFACE, *CHECKS, *EVENTS},
        ),
        ("import celeriac_scheduler.scheduler", {"alembic", *MODELS, *INTERFACE, *CHECKS, *EVENTS}),
        (
            "import celeriac_api.server",
            {"alembic", "celery", "cryptography.hazmat", "flower", "jwt", "typer"}
            | {*MODELS, *CHECKS, *EVENTS},
        ),
        (
            "import celeriac_tasks.worker_service",
            {"alembic", "flower", "openai", "typer", *EVENTS, *CHECKS - {"griffe"}},
        ),
        (
            "import celeriac_tasks.flower",
            {"alembic", "psycopg", "sqlalchemy", "typer", *MODELS, *CHECKS, *EVENTS},
        ),
    ],
    ids=[
        "celeriac",
        "agents",
        "client",
        "mcp",
        "help",
        "service",
        "stack",
        "scheduler",
        "api",
        "worker",
        "flower",
    ],
)
def test_an_entry_point_loads_nothing_that_it_does_not_need(code: str, unwanted: set[str]) -> None:
    report = "import sys; print(*sys.modules, file=sys.stderr)"

    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )

    assert set(ran.stderr.split()) & unwanted == set()


def test_a_service_searches_for_no_garbage_while_it_imports() -> None:
    code = """
import gc
from celeriac.cli.loading import loading
searched = [each["collections"] for each in gc.get_stats()]
with loading():
    import sqlalchemy
assert searched == [each["collections"] for each in gc.get_stats()]
assert gc.isenabled() and gc.get_freeze_count() > 10_000
"""

    subprocess.run([sys.executable, "-c", code], check=True)
