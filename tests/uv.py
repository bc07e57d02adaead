"""uv for tests: with the package index, or without a network from what it has in its cache."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers import missing

SECONDS = 300
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # as `script/environment` has uv use


def run_uv(command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command of uv's, which must succeed. Without an index, and if the cache is not enough,
    the test is skipped; in CI it fails."""
    variables = dict(environment)
    if CERTIFICATES.is_file():
        variables.setdefault("SSL_CERT_FILE", str(CERTIFICATES))
    done = _run(command, folder, variables)
    is_cut_off = done.returncode != 0 and "error sending request" in done.stderr
    if is_cut_off and _run(command, folder, {**variables, "UV_OFFLINE": "1"}).returncode != 0:
        missing("the package index", RuntimeError(done.stderr.strip().splitlines()[-1]))
    assert is_cut_off or done.returncode == 0, f"{' '.join(command)}:\n{done.stderr}"


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        missing("uv", error)
