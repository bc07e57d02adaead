"""The tools that let an agent work on files, made for one way of finding its workspace.

coder = Agent("coder", model, tools=workspace_tools(folder_from="folder", tests=["pytest", "-q"]))
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from celeriac.approval import Approval
from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import InvalidAgent, WorkspaceAway
from celeriac.recovery import Finding, Retry
from celeriac.rollback import InBand
from celeriac.tools import Tool, tool
from celeriac.workspace import files
from celeriac.workspace.changing import File, Plan, change_file, find_change
from celeriac.workspace.commands import find_command
from celeriac.workspace.commands import run_command as run
from celeriac.workspace.place import Place, Workspace, of_run
from celeriac.workspace.rollback import find_rollback, undo_call

FILE_SECONDS = 60.0  # one call that reads or changes a file
# Earlier than the call is taken for lost: a worker that wakes up after that changes nothing more.
CHANGE_SECONDS = FILE_SECONDS - 10.0
COMMAND_SECONDS = 120.0  # one command, unless the agent's author says otherwise
MARGIN_SECONDS = 60.0  # around a command: two snapshots and the wait for the lock

Path_ = Annotated[str, Field(min_length=1, description="A path from the workspace's top.")]
Encoding_ = Annotated[
    files.Encoding, Field(description="How the file's bytes stand for text; base64 for any bytes.")
]
Told = dict[str, Any]


def workspace_tools(
    *,
    folder: Path | str | None = None,
    folder_from: str | None = None,
    commands: bool = True,
    tests: Sequence[str] | None = None,
    command_seconds: float = COMMAND_SECONDS,
    environment: Mapping[str, str] | None = None,
    change_approval: Approval | None = None,
    command_approval: Approval | None = None,
) -> list[Tool[..., Any]]:
    """`read_file`, `list_files`, `search_files`, `write_file`, `edit_file`, `replace_in_file`,
    `delete_file`, and `run_command` and `run_tests` if wanted.

    They work in a folder of the run's thread, or in `folder`, or in the one that the field
    `folder_from` of the run's input names (`celeriac.workspace.place`). `commands=False` leaves out
    `run_command`, which lets the model run any program with the worker's rights. `tests` is the
    command of `run_tests`, which must change nothing that matters: it is run again after a crash.
    A command may take `command_seconds` and sees `environment` besides a few harmless variables of
    the worker's. The approvals are those of the tools that change files, and of `run_command`.

    Raises `InvalidAgent` if the declarations contradict each other.
    """
    place = Place(folder, folder_from)
    made = [*_reading(place), *_changing(place, change_approval)]
    settings = _CommandSettings(command_seconds, dict(environment or {}))
    if commands:
        made.append(_run_command(place, settings, command_approval))
    if tests is not None:
        made.append(_run_tests(place, settings, list(tests)))
    return made


# A worker without the folder, or one that finds it locked, does not fail the call for good.
_RETRY = Retry(attempts=4, on=(WorkspaceAway,), first_seconds=2.0)


def _reading(place: Place) -> list[Tool[..., Any]]:
    @tool(effect="none", timeout_seconds=FILE_SECONDS, retry=_RETRY)
    def read_file(
        ctx: ToolContext,
        path: Path_,
        encoding: Encoding_ = "utf-8",
        first_line: Annotated[int, Field(ge=1)] = 1,
        lines: Annotated[int, Field(ge=1)] | None = None,
    ) -> Told:
        """Read a file of the workspace, or some lines of it."""
        with place.workspace(ctx).opened() as root:
            return files.read(root, path, encoding, first_line, lines)

    @tool(effect="none", timeout_seconds=FILE_SECONDS, retry=_RETRY)
    def list_files(
        ctx: ToolContext,
        path: Annotated[str, Field(description="A folder; '.' is the workspace itself.")] = ".",
        pattern: Annotated[str, Field(description="Of names, such as '*.py'.")] = "*",
        deep: Annotated[bool, Field(description="List the folders inside it too.")] = False,
    ) -> Told:
        """List what is in a folder of the workspace. Links are shown and never followed."""
        with place.workspace(ctx).opened() as root:
            return files.listed(root, path, pattern, deep=deep)

    @tool(effect="none", timeout_seconds=FILE_SECONDS, retry=_RETRY)
    def search_files(ctx: ToolContext, text: str, path: str = ".", pattern: str = "*") -> Told:
        """Find the lines that hold a text, exactly as given, in the files below a folder."""
        with place.workspace(ctx).opened() as root:
            return files.searched(root, path, text, pattern)

    return [read_file, list_files, search_files]


def _changing(place: Place, approval: Approval | None) -> list[Tool[..., Any]]:
    def verify(ctx: ToolContext) -> Finding:
        return find_change(place.workspace(ctx), ctx)

    changing: Callable[[Callable[..., Told]], Tool[..., Any]] = tool(
        effect="external",
        timeout_seconds=FILE_SECONDS,
        stateful=True,
        mutates_workspace=True,
        verify=verify,
        retry=_RETRY,
        rollback=_UNDO,
        approval=approval,
    )

    def change(
        ctx: ToolContext, path: str, plan: Callable[[File | None], Plan]
    ) -> dict[str, JsonValue]:
        return change_file(place.workspace(ctx), ctx, path, plan, within_seconds=CHANGE_SECONDS)

    @changing
    def write_file(
        ctx: ToolContext, path: Path_, content: str, encoding: Encoding_ = "utf-8"
    ) -> Told:
        """Write a whole file, new or in the place of the one that is there."""
        return change(ctx, path, files.written(content, encoding, path))

    @changing
    def edit_file(
        ctx: ToolContext, path: Path_, old: str, new: str, encoding: Encoding_ = "utf-8"
    ) -> Told:
        """Replace a text that stands exactly once in a file by another one."""
        return change(ctx, path, files.edited(old, new, encoding, path, every=False))

    @changing
    def replace_in_file(
        ctx: ToolContext, path: Path_, old: str, new: str, encoding: Encoding_ = "utf-8"
    ) -> Told:
        """Replace a text by another one wherever it stands in a file."""
        return change(ctx, path, files.edited(old, new, encoding, path, every=True))

    @changing
    def delete_file(ctx: ToolContext, path: Path_) -> Told:
        """Delete a file."""
        return change(ctx, path, files.deleted(path))

    return [write_file, edit_file, replace_in_file, delete_file]


class _CommandSettings:
    def __init__(self, seconds: float, environment: Mapping[str, str]) -> None:
        if not 0 < seconds < float("inf"):
            raise InvalidAgent(f"command_seconds={seconds!r} is not a positive number")
        self.seconds = seconds
        self.environment = environment


def _undo(ctx: ToolContext) -> Told:
    workspace, undone_key = _undone(ctx)
    return undo_call(workspace, undone_key, key=ctx.idempotency_key)


def _verify_undo(ctx: ToolContext) -> Finding:
    return find_rollback(_undone(ctx)[0], ctx.idempotency_key)


def _undone(ctx: ToolContext) -> tuple[Workspace, str]:
    """The workspace that the call to be undone has changed, and the call's key.

    The rollback is a run with a thread and an input of its own, so only the key leads there.
    """
    assert ctx.undoes_key is not None
    tenant_id, run_id, _ = ctx.undoes_key.split(":")
    workspace = of_run(tenant_id, run_id)
    if workspace is None:
        raise WorkspaceAway(f"this worker knows no workspace of run {run_id}; is it mounted here?")
    return workspace, ctx.undoes_key


_UNDO = InBand(_undo, verify=_verify_undo, retry=_RETRY)


def _run_command(
    place: Place, settings: _CommandSettings, approval: Approval | None
) -> Tool[..., Any]:
    def verify(ctx: ToolContext) -> Finding:
        return find_command(place.workspace(ctx), ctx)

    @tool(
        effect="external",
        timeout_seconds=settings.seconds + MARGIN_SECONDS,
        stateful=True,
        mutates_workspace=True,
        verify=verify,
        retry=_RETRY,
        rollback=_UNDO,
        approval=approval,
    )
    def run_command(
        ctx: ToolContext,
        command: Annotated[
            list[str],
            Field(min_length=1, description="The program and its arguments; no shell is between."),
        ],
        folder: Annotated[str, Field(description="Where to run it, inside the workspace.")] = ".",
    ) -> Told:
        """Run a command in the workspace, and tell its exit code, output and changed files."""
        return run(
            place.workspace(ctx),
            ctx,
            command,
            folder=folder,
            seconds=settings.seconds,
            environment=settings.environment,
        )

    return run_command


def _run_tests(place: Place, settings: _CommandSettings, command: list[str]) -> Tool[..., Any]:
    def verify(ctx: ToolContext) -> Finding:
        return find_command(place.workspace(ctx), ctx)

    @tool(
        effect="external",
        timeout_seconds=settings.seconds + MARGIN_SECONDS,
        stateful=True,
        mutates_workspace=True,  # caches and reports, which nobody builds on
        verifies=True,
        verify=verify,
        on_unknown="resend",
        retry=_RETRY,
        rollback=_UNDO,
    )
    def run_tests(
        ctx: ToolContext,
        arguments: Annotated[
            list[str] | None, Field(description="Added to the command, such as one test's name.")
        ] = None,
    ) -> Told:
        """Run the project's tests, and tell their exit code and output."""
        return run(
            place.workspace(ctx),
            ctx,
            [*command, *(arguments or [])],
            folder=".",
            seconds=settings.seconds,
            environment=settings.environment,
        )

    return run_tests
