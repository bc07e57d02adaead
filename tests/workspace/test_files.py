"""What is in files survives: bytes, line ends, modes, encodings; and what is too large is said."""

import base64
import os
from pathlib import Path

import pytest

from celeriac import Agent
from celeriac.errors import InvalidAgent, ToolError, WorkspaceAway
from celeriac.recovery import Done, NotDone, Unclear
from celeriac.scripted import ScriptedModel, say
from celeriac.settings import settings
from celeriac.workspace import changing, records
from celeriac.workspace import files as operations
from celeriac.workspace.place import Place, of_run
from celeriac.workspace.tools import workspace_tools
from tests.workspaces import RUN, Files


def test_a_file_is_written_read_edited_and_deleted(files: Files) -> None:
    assert files.write("src/a.py", "one\ntwo\n")["is_new"]
    assert files.read("src/a.py")["content"] == "one\ntwo\n"
    files.call("edit_file", path="src/a.py", old="two", new="three")
    assert files.contents() == {"src/a.py": b"one\nthree\n"}
    assert files.call("replace_in_file", path="src/a.py", old="e", new="E")["replaced"] == 3
    assert files.contents() == {"src/a.py": b"onE\nthrEE\n"}
    files.call("delete_file", path="src/a.py")
    assert files.contents() == {}


def test_an_edit_that_is_not_clear_changes_nothing(files: Files) -> None:
    files.write("a.txt", "same same")

    with pytest.raises(ToolError, match="stands 2 times"):
        files.call("edit_file", path="a.txt", old="same", new="x")
    with pytest.raises(ToolError, match="is not in"):
        files.call("edit_file", path="a.txt", old="other", new="x")
    with pytest.raises(ToolError, match="there is no"):
        files.call("edit_file", path="b.txt", old="other", new="x")
    assert files.contents() == {"a.txt": b"same same"}


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("utf-8", "ünï ☃ \ufeff no mark".encode()),
        ("utf-8", "\ufeffwith a mark ☃\r\nold Mac\rmixed\n".encode()),
        ("latin-1", bytes(range(1, 256))),
        ("cp1252", "“quoted” €".encode("cp1252")),
        ("utf-16", "ünï ☃".encode("utf-16")),
    ],
)
def test_the_bytes_around_an_edit_stay_as_they_are(
    files: Files, encoding: str, content: bytes
) -> None:
    mark = "EDIT".encode(encoding).removeprefix(b"\xff\xfe" if encoding == "utf-16" else b"")
    done = "done".encode(encoding).removeprefix(b"\xff\xfe" if encoding == "utf-16" else b"")
    (files.folder / "a.txt").write_bytes(content + mark)

    assert "EDIT" in files.read("a.txt", encoding=encoding)["content"]
    files.call("edit_file", path="a.txt", old="EDIT", new="done", encoding=encoding)

    assert files.contents()["a.txt"] == content + done


def test_what_is_no_text_is_refused_or_goes_through_base64(files: Files) -> None:
    data = bytes(range(256)) * 3
    (files.folder / "a.bin").write_bytes(data)

    with pytest.raises(ToolError, match=r"not utf-8: byte 128 is 0x80.*'base64'"):
        files.read("a.bin")
    (files.folder / "nul.txt").write_bytes(b"a\0b")
    with pytest.raises(ToolError, match="NUL bytes"):
        files.read("nul.txt")
    with pytest.raises(ToolError, match="as latin-1"):
        files.write("b.txt", "☃", encoding="latin-1")
    with pytest.raises(ToolError, match="no base64"):
        files.write("b.bin", "not base64!", encoding="base64")
    encoded = files.read("a.bin", encoding="base64")["content"]
    files.write("b.bin", encoded, encoding="base64")
    assert files.contents()["b.bin"] == base64.b64decode(encoded) == data


def test_crlf_line_ends_are_kept(files: Files) -> None:
    (files.folder / "a.txt").write_bytes(b"one\r\ntwo\r\n")

    assert files.read("a.txt", first_line=2)["content"] == "two\r\n"
    files.call("edit_file", path="a.txt", old="one\ntwo", new="1\n2")
    assert files.contents()["a.txt"] == b"1\r\n2\r\n"
    files.write("a.txt", "a\nb\n")
    assert files.contents()["a.txt"] == b"a\r\nb\r\n"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o777])
def test_permissions_are_kept(files: Files, mode: int) -> None:
    script = files.folder / "run.sh"
    script.write_text("one")
    script.chmod(mode)

    files.write("run.sh", "two")

    assert script.stat().st_mode & 0o7777 == mode


def test_what_is_too_large_is_cut_or_refused_and_says_so(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(operations, "MAX_RETURNED_CHARACTERS", 100)
    (files.folder / "long.txt").write_text("a line of 20 charac\n" * 50)
    (files.folder / "large.txt").write_text("x" * 1001)

    told = files.read("long.txt")
    assert (len(told["content"]), told["lines"], told["is_truncated"]) == (100, 50, True)
    assert "only the first 100 of 1000 characters" in told["note"]
    assert not files.read("long.txt", first_line=3, lines=2)["is_truncated"]
    with pytest.raises(ToolError, match="1001 bytes; at most 1000"):
        files.read("large.txt")
    with pytest.raises(ToolError, match="would have 1001 bytes"):
        files.write("new.txt", "x" * 1001)


def test_files_of_secrets_are_left_to_people(files: Files) -> None:
    (files.folder / ".env").write_text("PASSWORD=hunter2-hunter2")
    (files.folder / ".ssh").mkdir()
    (files.folder / ".ssh/config").write_text("Host hunter2-hunter2")

    for path in (".env", "conf/prod.env", "id_rsa", "server.PEM", ".ssh/config"):
        with pytest.raises(ToolError, match="file of secrets"):
            files.read(path)
        with pytest.raises(ToolError, match="file of secrets"):
            files.write(path, "x")
    assert files.call("search_files", text="hunter2")["matches"] == []
    files.write(".env.example", "PASSWORD=")


def test_search_tells_path_and_line(files: Files) -> None:
    files.write("src/a.py", "one\nneedle = 1\r\n")
    files.write("b.txt", "a needle")

    assert files.call("search_files", text="needle", pattern="*.py")["matches"] == [
        {"path": "src/a.py", "line": 2, "text": "needle = 1"}
    ]


# What verify says -------------------------------------------------------------------------------


def test_verify_tells_a_change_that_came_about_from_one_that_did_not(files: Files) -> None:
    told = files.write("a.txt", "one")

    assert files.verify("write_file", 1) == Done(told)
    assert files.verify("write_file", 2) == NotDone()
    (files.folder / "a.txt").write_text("a person's edit, after the call")
    assert files.verify("write_file", 1) == Done(told)


@pytest.mark.parametrize("found", ["before", "after", "foreign", "foreign, and not renamed"])
def test_verify_decides_by_what_stands_there_if_the_end_was_not_noted(
    files: Files, found: str
) -> None:
    (files.folder / "a.txt").write_text("before")
    files.write("a.txt", "after")
    record = records.find(files.workspace, files.context("write_file", 1).idempotency_key)
    assert record is not None
    object.__setattr__(record, "is_done", False)  # as the worker that was killed left it
    records.write(files.workspace, record)
    (files.folder / "a.txt").write_text(found.partition(",")[0])
    if found == "foreign, and not renamed":
        (files.folder / record.temporary).write_text("after")

    match found:
        case "after":
            assert isinstance(files.verify("write_file", 1), Done)
        case "foreign":
            assert isinstance(files.verify("write_file", 1), Unclear)
        case _:
            assert files.verify("write_file", 1) == NotDone()


def test_a_call_that_is_late_changes_nothing(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celeriac.workspace.tools.CHANGE_SECONDS", -1.0)

    with pytest.raises(ToolError, match="given up"):
        files.write("a.txt", "late")

    assert list(files.folder.iterdir()) == []


def test_an_attempt_that_was_taken_over_changes_nothing_when_it_wakes_up(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen right before the rename; meanwhile another worker makes the call anew."""

    def frozen(point: str, _step: int) -> None:
        if point == "workspace.before_rename":
            monkeypatch.undo()
            monkeypatch.setattr("celeriac.workspace.place._locks", lambda _: True)
            files.write("a.txt", "of the next attempt", again=1)
            (files.folder / "a.txt").unlink()  # what comes after it

    monkeypatch.setenv("CELERIAC_WORKSPACES", os.environ["CELERIAC_WORKSPACES"])
    monkeypatch.setattr(changing, "reach", frozen)

    with pytest.raises(ToolError):
        files.write("a.txt", "of the frozen attempt")

    assert files.contents() == {}


def test_somebody_who_saves_the_file_meanwhile_is_not_overwritten(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files.folder / "a.txt").write_text("before")

    def save(point: str, _step: int) -> None:
        if point == "workspace.before_rename":
            (files.folder / "a.txt").write_text("a person's")

    monkeypatch.setattr(changing, "reach", save)

    with pytest.raises(ToolError, match="changed by somebody else"):
        files.write("a.txt", "the agent's")
    assert files.contents() == {"a.txt": b"a person's"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_a_definite_failure(files: Files) -> None:
    (files.folder / "fixed").mkdir(mode=0o500)

    with pytest.raises(ToolError, match="cannot be changed"):
        files.write("fixed/a.txt", "x")


# Where it is ------------------------------------------------------------------------------------


def test_each_thread_has_a_folder_of_its_own(workspaces: Path, files: Files) -> None:
    context = files.context("write_file")
    place = Place()
    workspace = place.workspace(context)
    changing.change_file(
        workspace, context, "a.txt", operations.written("x", "utf-8", "a.txt"), within_seconds=60
    )

    assert workspace.files.is_relative_to(workspaces / "threads")
    assert not workspace.kept.is_relative_to(workspace.files)
    assert of_run("default", RUN) == workspace == place.workspace(context)


def test_a_worker_without_the_folder_says_so_and_makes_no_empty_one(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not-mounted").mkdir()
    monkeypatch.setenv("CELERIAC_WORKSPACES", str(tmp_path / "not-mounted"))
    settings.cache_clear()

    with pytest.raises(WorkspaceAway, match=r"no folder of workspaces at .*not-mounted"):
        Place().workspace(files.context("read_file"))
    assert list((tmp_path / "not-mounted").iterdir()) == []

    monkeypatch.undo()
    settings.cache_clear()


def test_a_workspace_that_is_gone_is_not_made_again(files: Files) -> None:
    files.folder.rmdir()

    with pytest.raises(WorkspaceAway, match="not on this worker"):
        files.write("a.txt", "x")
    assert not files.folder.exists()


def test_the_input_names_a_workspace_inside_the_allowed_roots_only(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "project").mkdir(parents=True)
    (allowed / "way-out").symlink_to(tmp_path)
    monkeypatch.setenv("CELERIAC_WORKSPACE_ROOTS", str(allowed))
    settings.cache_clear()
    place = Place(folder_from="folder")

    def workspace_of(given: object) -> Path:
        context = files.context("read_file")
        object.__setattr__(context, "_read_input", lambda: given)
        return place.workspace(context).files

    assert workspace_of({"folder": str(allowed / "project")}) == allowed / "project"
    for refused in (
        {"folder": str(files.folder)},
        {"folder": str(allowed / "way-out/project")},
        {"folder": f"{allowed}/../project"},
        {"folder": "project"},
        {"folder": "/"},
        {"folder": str(allowed / "missing")},
        {"folder": 7},
        {},
        "text",
    ):
        with pytest.raises(ToolError):
            workspace_of(refused)


def test_what_is_kept_lies_apart_from_the_workspace(workspaces: Path, files: Files) -> None:
    for folder in (workspaces, workspaces.parent, workspaces / "threads"):
        folder.mkdir(exist_ok=True)
        with pytest.raises(ToolError, match="must lie apart"):
            Place(folder).workspace(files.context("read_file"))
    with pytest.raises(InvalidAgent, match="not both"):
        Place(workspaces, "folder")


def test_the_tools_make_an_agent() -> None:
    agent = Agent("coder", ScriptedModel([say("done")]), tools=workspace_tools(tests=["pytest"]))

    assert [tool.name for tool in agent.tools] == [
        "read_file",
        "list_files",
        "search_files",
        "write_file",
        "edit_file",
        "replace_in_file",
        "delete_file",
        "run_command",
        "run_tests",
    ]
    without = workspace_tools(commands=False)
    assert "run_command" not in [tool.name for tool in without]
