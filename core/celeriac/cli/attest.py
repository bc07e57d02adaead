"""`celeriac attest`: what a process that executes tools says about its workspace."""

import json
import socket
from pathlib import Path
from typing import Annotated

import typer

from celeriac.cli.group import WrongUsage
from celeriac.cli.starting import parse_json
from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput


def attest(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The workspace.")],
    save: Annotated[
        Path | None, typer.Option(help="Before a call: keep what stands there in this file.")
    ] = None,
    since: Annotated[
        Path | None, typer.Option(help="After it: attest what has changed since that file.")
    ] = None,
    root: Annotated[str | None, typer.Option(help="With --since: the workspace's name.")] = None,
    nonce: Annotated[str | None, typer.Option(help="With --since: the call's own.")] = None,
    call: Annotated[
        str | None,
        typer.Option(help="With --since: make the receipt of this call, to be submitted."),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --call: what it returned.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --call: or why it failed.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="With --call: who executed it; else this machine's name.")
    ] = None,
) -> None:
    """Tell the digest of a workspace, or attest what a call has changed in it, as JSON."""
    from celeriac.workspace.attestation import ALGORITHM, Collected, collect
    from celeriac.workspace.attestation import attest as attested

    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}")
    now = collect(folder)
    if since is None:
        if save is not None:
            save.write_text(json.dumps(now.to_json()))
        typer.echo(json.dumps({"algorithm": ALGORITHM, "digest": now.digest}))
        return
    if not root or not nonce or save is not None:
        raise WrongUsage("--since needs --root and --nonce, and no --save")
    if (call is None and (result, error, host) != (None, None, None)) or (
        call is not None and (result is None) == (error is None)
    ):
        raise WrongUsage("--call needs either --result or --error, which say nothing without it")
    try:
        before = Collected.from_json(json.loads(since.read_text()))
    except (OSError, ValueError) as wrong:
        raise InvalidInput(f"{since} was not made by `celeriac attest --save`: {wrong}") from wrong
    told: JsonValue = attested(before, now, root=root, nonce=nonce).to_json()
    if call is not None:
        came_to: dict[str, JsonValue] = (
            {"error": error} if result is None else {"result": parse_json(result, "--result")}
        )
        told = {
            "tool_call_id": call,
            **came_to,
            "host": host or socket.gethostname(),
            "workspace": told,
        }
    typer.echo(json.dumps(told))
