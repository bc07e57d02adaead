"""Attacks: whatever stands in a workspace, and whatever changes meanwhile, nothing outside of it is
read or changed, and nothing blocks."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from celeriac.errors import ToolError
from celeriac.settings import settings
from celeriac.workspace import files as operations
from celeriac.workspace.confinement import MAX_DEPTH, MAX_NAME_BYTES, opened_root, parts_of
from celeriac.workspace.place import prepare
from tests.workspace.conftest import OUTSIDE
from tests.workspaces import Files, paths

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"content": "changed"}),
    ("edit_file", {"old": "what", "new": "changed"}),
    ("replace_in_file", {"old": "what", "new": "changed"}),
    ("delete_file", {}),
]


def assert_refused(files: Files, path: str, outside: Path) -> None:
    """No tool reads or changes what the path would lead to."""
    with pytest.raises(ToolError):
        files.read(path)
    for tool, arguments in CHANGES:
        with pytest.raises(ToolError):
            files.call(tool, path=path, **arguments)
    assert outside.read_text() == OUTSIDE


@pytest.mark.parametrize(
    "path",
    [
        "../outside.txt",
        "a/../../outside.txt",
        "./../outside.txt",
        "a/./b/../../../outside.txt",
        "/etc/passwd",
        "//etc/passwd",
        "/proc/self/root/etc/passwd",
        "..",
        "",
        ".",
        "a\0b",
        "x" * (MAX_NAME_BYTES + 1),
        "a/" * 3000 + "b",
        "ü" * 200,  # 400 bytes
        ".git/config",
        ".GIT/config",
        "a/.git/hooks/pre-commit",
        ".git. /config",
        "git~1/config",
        ".celeriac-0123",
        "\ud800",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(files: Files, outside: Path, path: str) -> None:
    assert_refused(files, path, outside)


def test_no_symbolic_link_is_followed(files: Files, outside: Path) -> None:
    (files.folder / "inside").mkdir()
    (files.folder / "inside/file.txt").write_text("what stands inside")
    (files.folder / "link.txt").symlink_to(outside)
    (files.folder / "folder").symlink_to(outside.parent)
    (files.folder / "relative").symlink_to("..")
    (files.folder / "loop").symlink_to("loop")
    (files.folder / "dangling").symlink_to(outside.parent / "new.txt")
    (files.folder / "to-inside").symlink_to("inside")

    for path in (
        "link.txt",
        "folder/outside.txt",
        "relative/outside.txt",
        "loop",
        "loop/x",
        "dangling",
        "to-inside/file.txt",
    ):
        assert_refused(files, path, outside)
    assert not (outside.parent / "new.txt").exists()
    with pytest.raises(ToolError):
        files.call("list_files", path="folder")
    assert "folder/outside.txt" not in paths(files.call("list_files", deep=True)["entries"])
    assert files.call("search_files", text="only its owner")["matches"] == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
def test_open_descriptors_are_no_way_out(files: Files, outside: Path) -> None:
    with outside.open() as held, opened_root(outside.parent) as root:
        (files.folder / "fd").symlink_to("/proc/self/fd")
        (files.folder / "held").symlink_to(f"/proc/self/fd/{held.fileno()}")
        (files.folder / "root").symlink_to(f"/proc/self/fd/{root}")

        for path in (
            f"fd/{held.fileno()}",
            "held",
            "root/outside.txt",
            f"/proc/self/fd/{held.fileno()}",
            f"../../../proc/self/fd/{held.fileno()}",
        ):
            assert_refused(files, path, outside)


def test_a_second_name_of_a_file_outside_is_not_opened(files: Files, outside: Path) -> None:
    (files.folder / "linked.txt").hardlink_to(outside)

    assert_refused(files, "linked.txt", outside)
    assert files.call("search_files", text="owner")["matches"] == []


def test_what_is_no_regular_file_never_blocks(files: Files, outside: Path) -> None:
    os.mkfifo(files.folder / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(files.folder)  # the path of a socket has 100 bytes at most
    listener.bind("socket")
    os.chdir(here)
    try:
        for path in ("pipe", "socket"):
            assert_refused(files, path, outside)
        kinds = {each["path"]: each["kind"] for each in files.call("list_files")["entries"]}
        assert kinds == {"pipe": "named pipe", "socket": "socket"}
        assert files.call("search_files", text="x")["matches"] == []
        files.write("beside.txt", "the snapshot has not blocked either")
    finally:
        listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_not_opened(files: Files, outside: Path) -> None:
    os.mknod(files.folder / "null", 0o20666, os.makedev(1, 3))
    os.mknod(files.folder / "zero", 0o20666, os.makedev(1, 5))

    assert_refused(files, "null", outside)
    assert_refused(files, "zero", outside)


SWAP = """\
import os, sys
swapped, link, parked = sys.argv[1:]
while True:
    os.rename(swapped, parked)
    os.rename(link, swapped)
    os.rename(swapped, link)
    os.rename(parked, swapped)
"""


# A mutation that opens paths without O_NOFOLLOW, or checks them first and opens them afterwards,
# is found by this within a second.
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_that_comes_and_goes_meanwhile_leads_nowhere(
    files: Files, outside: Path, what: str
) -> None:
    """A process puts a link in the place of a folder or file, and takes it away, all the time."""
    real = files.folder / "real"
    real.mkdir()
    (real / "outside.txt").write_text("what stands inside")
    link = files.folder / "link"
    link.symlink_to(outside.parent if what == "folder" else outside)
    swapped = real if what == "folder" else real / "outside.txt"
    parked = files.folder / "parked"
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, swapped, link, parked])
    answers = set()
    try:
        with files.workspace.opened() as root:
            for _ in range(6000):
                try:
                    told = operations.read(root, "real/outside.txt", "utf-8", 1, None)
                    answers.add(str(told["content"]))
                except ToolError:
                    answers.add("refused")
        for number in range(15):
            with suppress(ToolError):
                files.write("real/outside.txt", f"what stands inside: {number}")
    finally:
        swapping.kill()
        swapping.wait()
    assert OUTSIDE not in answers
    assert outside.read_text() == OUTSIDE
    assert sorted(path.name for path in outside.parent.iterdir()) == [
        "outside.txt",
        "project",
        "workspaces",
    ]


def test_a_huge_folder_is_listed_in_part(files: Files) -> None:
    for number in range(operations.MAX_ENTRIES + 50):
        (files.folder / f"{number:05d}").touch()

    told = files.call("list_files")

    assert len(told["entries"]) == operations.MAX_ENTRIES
    assert told["is_truncated"]
    assert "only 1000 entries" in told["note"]


def test_names_of_any_bytes_are_listed_and_no_call_fails_for_them(files: Files) -> None:
    for name in (
        b"line\nbreak",
        b"caf\xe9",
        b":(glob)**",
        b"-rf",
        b'"quoted"',
        b"a\\b",
        b"\x1b[2J",
    ):
        Path(os.fsdecode(os.fsencode(files.folder) + b"/" + name)).write_bytes(b"x")

    listed = files.call("list_files")["entries"]

    assert {"path": "caf\\xe9", "is_escaped": True, "kind": "file", "bytes": 1} in listed
    assert files.read("line\nbreak")["content"] == "x"
    assert files.read(":(glob)**")["content"] == "x"
    files.write("-rf", "y")
    files.call("delete_file", path="a\\b")
    assert len(files.contents()) == 6


def test_a_name_that_differs_in_case_only_is_refused(files: Files) -> None:
    files.write("Docs/README.md", "one")

    with pytest.raises(ToolError, match=r"'Docs/README.md' already"):
        files.write("Docs/readme.md", "two")
    with pytest.raises(ToolError, match="'Docs' already"):
        files.write("docs/other.md", "three")
    files.write("Docs/README.md", "four")


def test_a_deep_folder_is_walked_to_a_limit(files: Files) -> None:
    path = "/".join(["d"] * (MAX_DEPTH - 1)) + "/file.txt"
    files.write(path, "deep")
    top = os.open(files.folder, os.O_RDONLY)
    for _ in range(400):
        with suppress(FileExistsError):
            os.mkdir("d", dir_fd=top)
        top, above = os.open("d", os.O_RDONLY, dir_fd=top), top
        os.close(above)
    os.close(top)

    assert files.read(path)["content"] == "deep"
    assert files.call("search_files", text="deep")["matches"][0]["path"] == path
    with pytest.raises(ToolError, match="levels"):
        files.write("d/" + path, "deeper")
    files.write("beside.txt", "the snapshot can be made")


# The state machine ------------------------------------------------------------------------------

NAMES = ["a", "b", "outside.txt", "link"]
ODD = ["..", ".", "", "/", "~", "a/..", "*", "\n", ".git"]
PATHS = strategies.lists(strategies.sampled_from(NAMES + ODD), min_size=1, max_size=5).map("/".join)
PLACES = strategies.lists(strategies.sampled_from(NAMES), min_size=1, max_size=2).map("/".join)
READS: list[tuple[str, dict[str, Any]]] = [
    ("read_file", {}),
    ("list_files", {"deep": True}),
    ("search_files", {"text": "owner"}),
]


class Workspaces(RuleBasedStateMachine):
    """Somebody makes folders, files and links to anywhere; the tools are called with any path."""

    @initialize()
    def begin(self) -> None:
        self.top = Path(tempfile.mkdtemp())
        self.outside = self.top / "outside.txt"
        self.outside.write_text(OUTSIDE)
        (self.top / "outside").mkdir()
        (self.top / "outside/a").write_text(OUTSIDE)
        prepare(self.top / "workspaces")
        os.environ["CELERIAC_WORKSPACES"] = str(self.top / "workspaces")
        settings.cache_clear()
        (self.top / "project").mkdir()
        self.files = Files(self.top / "project")

    def teardown(self) -> None:
        os.environ.pop("CELERIAC_WORKSPACES", None)
        settings.cache_clear()
        if hasattr(self, "top"):
            shutil.rmtree(self.top)

    def place(self, path: str) -> Path | None:
        """Where a person would make something under that path, if it is free and inside."""
        place = self.files.folder / path.strip("/")
        if not place.parent.is_dir() or place.is_symlink() or place.exists():
            return None
        inside = place.parent.resolve().is_relative_to(self.files.folder)
        return place if inside and place.name not in ("", ".", "..") else None

    ways: Bundle[str] = Bundle("ways")  # that may lead somewhere

    @rule(target=ways, path=PLACES, to=PATHS, is_absolute=strategies.booleans())
    def somebody_makes_a_link(self, path: str, to: str, is_absolute: bool) -> Any:
        if (place := self.place(path)) is not None:
            place.symlink_to(self.top / to.strip("/") if is_absolute else to or ".")
            return path
        return multiple()

    @rule(target=ways, path=PLACES, to=strategies.sampled_from(["", "", "outside", "outside.txt"]))
    def somebody_makes_a_link_out(self, path: str, to: str) -> Any:
        if (place := self.place(path)) is not None:
            place.symlink_to(self.top / to)
            return path
        return multiple()

    @rule(target=ways, path=PLACES)
    def somebody_makes_a_hard_link(self, path: str) -> Any:
        if (place := self.place(path)) is not None:
            place.hardlink_to(self.outside)
            return path
        return multiple()

    @rule(path=PLACES)
    def somebody_makes_a_folder(self, path: str) -> None:
        if (place := self.place(path)) is not None:
            place.mkdir()

    @rule(path=PLACES)
    def somebody_makes_a_pipe(self, path: str) -> None:
        if (place := self.place(path)) is not None:
            os.mkfifo(place)

    @rule(path=PATHS, change=strategies.sampled_from(CHANGES))
    def the_agent_tries_any_path(self, path: str, change: tuple[str, dict[str, Any]]) -> None:
        for call in (*READS, change):
            self.try_to(path, call)

    @rule(path=ways, change=strategies.sampled_from(CHANGES))
    def the_agent_tries_a_way(self, path: str, change: tuple[str, dict[str, Any]]) -> None:
        for inside in ("", "/a", "/outside.txt"):
            for call in (*READS, change):
                self.try_to(path + inside, call)

    def try_to(self, path: str, call: tuple[str, dict[str, Any]]) -> None:
        tool, arguments = call
        try:
            told = self.files.call(tool, path=path, **arguments)
        except ToolError:
            return
        assert OUTSIDE not in str(told)

    @invariant()
    def nothing_outside_has_changed(self) -> None:
        if not hasattr(self, "top"):
            return
        assert self.outside.read_text() == OUTSIDE
        assert [path.name for path in (self.top / "outside").iterdir()] == ["a"]
        assert (self.top / "outside/a").read_text() == OUTSIDE
        assert sorted(path.name for path in self.top.iterdir()) == [
            "outside",
            "outside.txt",
            "project",
            "workspaces",
        ]


TestNoSequenceOfLinksAndCallsLeadsOut = Workspaces.TestCase
TestNoSequenceOfLinksAndCallsLeadsOut.settings = hypothesis.settings(
    max_examples=20, stateful_step_count=20
)


@hypothesis.given(strategies.text(max_size=30))
def test_a_path_is_taken_as_names_inside_or_refused(path: str) -> None:
    try:
        parts = parts_of(path)
    except ToolError:
        return
    assert all(part not in ("", ".", "..") and "/" not in part for part in parts)
