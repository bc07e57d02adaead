"""`celeriac attest`: what a process that executes tools says about its workspace."""

import json
from pathlib import Path
from typing import Annotated

import typer

from celeriac.cli.group import WrongUsage
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
    try:
        before = Collected.from_json(json.loads(since.read_text()))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{since} was not made by `celeriac attest --save`: {error}") from error
    typer.echo(json.dumps(attested(before, now, root=root, nonce=nonce).to_json()))
