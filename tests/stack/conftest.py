"""Fixtures: folders for stacks, and real stacks in them.

folder    an empty folder that any account may enter; what was in it is removed afterwards
data      DATA below it, not made yet
prepared  DATA with servers' data in it that are migrated: initdb takes seconds
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.stack.servers import Servers
from celeriac_storage.database import Database
from celeriac_storage.schema import migrate
from tests.machine import kill_everything


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)
            # A whole stack starts a dozen processes: seconds, but on a machine where others test
            # as well it has taken a minute.
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own: root's is closed to others, where a stack puts its data elsewhere.
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-")).resolve()
    folder.chmod(0o755)
    yield folder
    kill_everything(folder)
    shutil.rmtree(folder)


@pytest.fixture
def data(folder: Path) -> Path:
    return folder / "data"


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-")).resolve()
    folder.chmod(0o755)
    with Servers(folder / "data") as servers:
        database = Database(servers.database_url, connections=1)
        migrate(database)
        database.close()
    yield folder / "data"
    shutil.rmtree(folder)


@pytest.fixture
def prepared(template: Path, data: Path) -> Path:
    # Owners and modes as well, which shutil leaves behind.
    subprocess.run(["cp", "-a", template, data], check=True)
    return data
