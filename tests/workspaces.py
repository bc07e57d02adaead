"""A workspace in a folder of its own, and calls of its tools as a step makes them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId, effect_key
from celeriac.recovery import Finding
from celeriac.tools import Tool
from celeriac.workspace import records
from celeriac.workspace.place import Place, Workspace
from celeriac.workspace.tools import workspace_tools

RUN = RunId("run-1")


class Files:
    """What the tests say to it: call tools, look at files, and what was recorded."""

    def __init__(self, folder: Path, **declared: Any) -> None:
        self.folder = folder
        self.tools: Mapping[str, Tool[..., Any]] = {
            tool.name: tool for tool in workspace_tools(folder=folder, tests=["true"], **declared)
        }
        self.calls = 0

    def context(self, tool: str, number: int | None = None) -> ToolContext:
        """Of the next call, or of the call with that number again."""
        if number is None:
            self.calls += 1
            number = self.calls
        call_id = CallId(f"{number}.0")
        return ToolContext(
            tool=tool,
            run_id=RUN,
            thread_id=ThreadId("thread-1"),
            user_id=UserId("user-1"),
            tenant_id=TenantId("default"),
            step=number,
            call_id=call_id,
            idempotency_key=effect_key("default", RUN, call_id),
        )

    def call(self, tool: str, again: int | None = None, **arguments: Any) -> dict[str, Any]:
        told: dict[str, Any] = self.tools[tool].function(self.context(tool, again), **arguments)
        return told

    def write(self, path: str, content: str, **arguments: Any) -> dict[str, Any]:
        return self.call("write_file", path=path, content=content, **arguments)

    def read(self, path: str, **arguments: Any) -> dict[str, Any]:
        return self.call("read_file", path=path, **arguments)

    def verify(self, tool: str, number: int) -> Finding:
        """What the tool says of the call with that number."""
        verify = self.tools[tool].recovery.verify
        assert verify is not None
        return verify(self.context(tool, number))

    @property
    def workspace(self) -> Workspace:
        return Place(self.folder).workspace(replace(self.context("none", 0)))

    def snapshot(self, number: int) -> str:
        """The snapshot that was made before the call with that number."""
        record = records.find(self.workspace, self.context("none", number).idempotency_key)
        assert record is not None
        return record.snapshot

    def contents(self) -> dict[str, bytes]:
        """All regular files of the folder, git's data aside."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and not path.is_symlink() and ".git" not in path.parts
        }


def paths(found: JsonValue) -> list[str]:
    """The paths of a list of `{"path": ...}`."""
    assert isinstance(found, list)
    return [str(each["path"]) for each in found if isinstance(each, dict)]
