"""Fixtures of the tests of workspaces: an agent's folder, beside what it must not touch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.settings import settings
from celeriac.workspace.place import prepare
from tests.workspaces import Files


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A prepared folder of workspaces, as a worker is told of it."""
    folder = tmp_path / "workspaces"
    prepare(folder)
    monkeypatch.setenv("CELERIAC_WORKSPACES", str(folder))
    monkeypatch.delenv("CELERIAC_WORKSPACE_ROOTS", raising=False)
    settings.cache_clear()
    yield folder
    settings.cache_clear()


@pytest.fixture
def files(workspaces: Path, tmp_path: Path) -> Files:  # noqa: ARG001 - the worker's setting
    folder = tmp_path / "project"
    folder.mkdir()
    return Files(folder)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the workspace; `SECRET` is in it."""
    file = tmp_path / "outside.txt"
    file.write_text(OUTSIDE)
    return file


OUTSIDE = "what only its owner may read"
