"""Fixtures: the wheel as it would be published, an environment that has nothing else of ours, and a
project with a Celery application of its own in it.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac_storage.database import Database
from tests.packaging.shop import Shop
from tests.processes import ROOT, Processes
from tests.servers import TestBroker
from tests.uv import run_uv


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "shop" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.processes)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built once."""
    folder = tmp_path_factory.mktemp("dist")
    _uv("build", "--wheel", "--out-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment in which nothing but the wheel was installed."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    _uv("venv", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(folder / "bin/python"), str(wheel))
    return folder / "bin"


@pytest.fixture
def shop(
    environment: Path,
    database: Database,
    leased_broker: TestBroker,
    processes: Processes,
    tmp_path: Path,
) -> Iterator[Shop]:
    shop = Shop(environment, database, leased_broker, processes, tmp_path / "shop")
    yield shop
    shop.close()


def _uv(*arguments: str) -> None:
    program = shutil.which("uv") or str(ROOT / "build/uv/bin/uv")
    run_uv(
        [program, *arguments],
        folder=Path(ROOT.anchor),  # nothing of the checkout may be found by accident
        environment={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
