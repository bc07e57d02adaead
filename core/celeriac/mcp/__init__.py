"""Tools of MCP servers: `mcp_tools(server, pins="files.json", policy=ServerPolicy(...))`.

`servers` says where one is, `policy` what its tools may be taken for, `offer` what it says of them,
`listing` asks it for that, and `pins` keeps what it said when somebody looked; `tools` makes tools
of it, and `connection` calls them. Needs `celeriac[mcp]`.
"""

from celeriac.mcp.pins import pin
from celeriac.mcp.policy import ServerPolicy
from celeriac.mcp.servers import HttpServer, StdioServer
from celeriac.mcp.tools import mcp_tools

__all__ = ["HttpServer", "ServerPolicy", "StdioServer", "mcp_tools", "pin"]
