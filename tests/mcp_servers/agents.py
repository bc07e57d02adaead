"""Agents with the tools of a box office, from what was pinned."""

import os
import sys
from pathlib import Path

from celeriac import Agent
from celeriac.mcp import ServerPolicy, StdioServer, mcp_tools
from celeriac.scripted import ScriptedModel, call, say

FOLDER = Path(os.environ.get("BOX_FOLDER", "."))

_server = StdioServer(
    "box",
    [sys.executable, str(Path(__file__).with_name("box_office.py"))],
    env={"BOX_LEDGER": str(FOLDER / "ledger")},
)
_policy = ServerPolicy(trusts_annotations=True, timeout_seconds=20)
_tools = mcp_tools(_server, pins=FOLDER / "box.json", policy=_policy)

clerk = Agent(
    "clerk",
    ScriptedModel([call("box_book", show="Hamlet"), call("box_seats", show="Hamlet"), say("ok")]),
    tools=_tools,
)
printer = Agent(
    "printer", ScriptedModel([call("box_print_ticket", gate="paper"), say("ok")]), tools=_tools
)
pricer = Agent(
    "pricer", ScriptedModel([call("box_set_price", gate="paper"), say("ok")]), tools=_tools
)
