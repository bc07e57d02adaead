"""The script that makes the logins, as an administrator runs it."""

import os
import subprocess
from collections.abc import Mapping

from tests.crash.servers import postgres_programs
from tests.deploy.compose import ROOT, program

SCRIPT = ROOT / "deploy/postgres/roles.sql"


def run_script(url: str, environment: Mapping[str, str]) -> int:
    """Its exit code."""
    return subprocess.run(
        [program("psql", postgres_programs()), "--quiet", "--no-psqlrc", "-f", SCRIPT, url],
        env={**os.environ, **environment},
        check=False,
    ).returncode
