"""`celeriac workspaces`: what an operator does about files, in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.workspaces import RUN, Files


def celeriac(*arguments: str, code: int = 0, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "celeriac.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


def test_a_folder_is_prepared_and_what_is_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/file").touch()

    celeriac("workspaces", "prepare", str(tmp_path / "here"))
    told = celeriac("workspaces", "prepare", "--json", CELERIAC_WORKSPACES=str(tmp_path / "new"))

    assert {path.name for path in (tmp_path / "here").iterdir()} == {"file", ".celeriac-workspaces"}
    assert json.loads(told) == {"folder": str(tmp_path / "new")}
    assert (tmp_path / "new/.celeriac-workspaces").exists()


def test_what_was_done_is_shown_and_taken_back(files: Files) -> None:
    files.write("a.txt", "one")
    files.write("b.txt", "two")
    (files.folder / "b.txt").write_text("a person's")

    first, second = map(json.loads, celeriac("workspaces", "show", RUN, "--json").splitlines())
    assert [change["path"] for change in first["changes"]] == ["a.txt"]
    assert (second["tool"], second["is_done"], second["call_id"]) == ("write_file", True, "2.0")
    told = celeriac("workspaces", "rollback", RUN, "--to", first["snapshot"])

    assert "removed" in told
    assert "b.txt: it is not what the last call wrote" in told.replace("\n", " ")
    assert files.contents() == {"b.txt": b"a person's"}
    assert celeriac("workspaces", "show", RUN).count("write_file") == 2


def test_a_wrong_target_or_run_is_refused_in_one_line(files: Files) -> None:
    files.write("a.txt", "one")

    wrong = celeriac("workspaces", "rollback", RUN, "--to", "HEAD", code=1)
    unknown = celeriac("workspaces", "show", "no-such-run", code=1)

    assert wrong == "Error: 'HEAD' is no snapshot: give all 40 or 64 hex digits of its hash\n"
    assert unknown.startswith("Error: run no-such-run has changed nothing in any workspace")
    assert files.contents() == {"a.txt": b"one"}
