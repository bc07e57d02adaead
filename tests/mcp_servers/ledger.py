"""What the box office did, read from outside, and how to call its tools by hand."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celeriac import ToolContext
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId
from celeriac.mcp import StdioServer
from celeriac.tools import Tool
from celeriac_tasks.calling import Outcome, call_in_time

BOX_OFFICE = str(Path(__file__).with_name("box_office.py"))


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def open(self, gate: str) -> None:
        self.path.with_name(gate).touch()

    def over_pipes(self, **environment: str) -> StdioServer:
        return StdioServer(
            "box",
            [sys.executable, BOX_OFFICE],
            env={"BOX_LEDGER": str(self.path)} | environment,
        )


def named(tools: Sequence[Tool[..., Any]], name: str) -> Tool[..., Any]:
    (found,) = (tool for tool in tools if tool.name == name)
    return found


def called(tool: Tool[..., Any], **arguments: Any) -> Outcome:
    """What a step would be told of the call."""
    context = ToolContext(
        tool=tool.name,
        run_id=RunId("r1"),
        thread_id=ThreadId("t1"),
        user_id=UserId("u1"),
        tenant_id=TenantId("default"),
        step=1,
        call_id=CallId("0.0"),
        idempotency_key="default:r1:0.0",
    )
    return call_in_time(tool, context, tool.validate(arguments))
