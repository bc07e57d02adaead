"""What is in the wheel, and that it is enough."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from celeriac_storage.schema import head

# Building the wheel and installing it belongs to whichever test comes first.
pytestmark = pytest.mark.timeout(400)

PACKAGES = {
    "celeriac", "celeriac_storage", "celeriac_tasks", "celeriac_scheduler", "celeriac_api",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_takes_these_names_in_site_packages_and_no_other(files: list[str]) -> None:
    tops = {name.partition("/")[0] for name in files}

    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_every_package_tells_type_checkers_that_it_has_types(files: list[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(files)


def test_nothing_but_code_and_what_it_reads_is_in_it(files: list[str]) -> None:
    kinds = {Path(name).suffix for name in files if ".dist-info/" not in name}

    assert kinds == {".py", ".typed", ".sql", ".mako", ".html", ".css", ".js", ".svg", ".txt"}


def test_an_empty_database_is_migrated_by_what_was_installed(
    environment: Path, empty_database_url: str, tmp_path: Path
) -> None:
    migrated = subprocess.run(
        [environment / "celeriac", "migrate", "--database-url", empty_database_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert head() in migrated.stdout
