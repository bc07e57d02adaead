"""The digest of a workspace: the same for the same files, another one for any difference."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies

from celeriac.workspace.confinement import opened_root
from celeriac.workspace.digests import State, digest_of, workspace_states


def fill(folder: Path) -> None:
    """Unicode names, an empty folder, links, an executable, and odd bytes in names."""
    (folder / "ünï").mkdir(parents=True)
    (folder / "ünï/ñ.txt").write_text("one")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("../anywhere")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "line\nbreak").write_text("two")
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9")).write_text("three")


def digest(folder: Path) -> str:
    with opened_root(folder) as root:
        return digest_of(workspace_states(root))


# features: 004-28
def test_two_equal_folders_have_one_digest(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    (tmp_path / "two/ünï/ñ.txt").chmod(0o600)  # what a checkout elsewhere may have otherwise
    os.utime(tmp_path / "two/ünï/ñ.txt", (0, 0))
    for skipped in (".git", "node_modules", "__pycache__"):
        (tmp_path / "two" / skipped).mkdir()
        (tmp_path / "two" / skipped / "x").write_text("not part of it")

    assert digest(tmp_path / "one") == digest(tmp_path / "two")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "ünï/ñ.txt").write_text("onf"),
        lambda folder: (folder / "ünï/ñ.txt").rename(folder / "ünï/n.txt"),
        lambda folder: (folder / "run.sh").chmod(0o644),
        lambda folder: (folder / "empty").rmdir(),
        lambda folder: (folder / "empty/x").touch(),
        lambda folder: (folder / "new").mkdir(),
        lambda folder: (folder / "link").unlink(),
        lambda folder: ((folder / "link").unlink(), (folder / "link").symlink_to("../other")),
        lambda folder: ((folder / "link").unlink(), (folder / "link").write_text("../anywhere")),
        lambda folder: (folder / "line\nbreak").unlink(),
    ],
)
def test_any_difference_gives_another_digest(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    fill(tmp_path)
    before = digest(tmp_path)

    change(tmp_path)

    assert digest(tmp_path) != before


def test_the_digest_is_fixed(tmp_path: Path) -> None:
    """Collectors elsewhere compute it too, so it must never change."""
    (tmp_path / "a").write_text("x")

    content = hashlib.sha256(b"x").hexdigest()
    assert digest(tmp_path) == hashlib.sha256(f"a\0file\0{content}\0\0".encode()).hexdigest()


STATES = strategies.builds(
    State,
    strategies.sampled_from(["file", "link", "other"]),
    strategies.sampled_from(["", "0" * 64, "1" * 64]),
    strategies.sampled_from([0o644, 0o755]),
    strategies.sampled_from(["", "target"]),
)


@given(strategies.dictionaries(strategies.text("ab/\n", min_size=1), STATES | strategies.none()))
def test_the_order_of_paths_does_not_matter(states: dict[str, State | None]) -> None:
    turned = dict(reversed(states.items()))

    assert digest_of(turned) == digest_of(states)


@given(STATES)
def test_a_state_reads_back_as_it_was_stored(state: State) -> None:
    made = State(state.kind, state.sha256, state.permissions, state.target)

    if (state.kind == "file") == (not state.target) and (state.kind == "file" or not state.sha256):
        assert State.from_json(made.to_json()) == State(
            made.kind,
            made.sha256,
            made.permissions if made.kind == "file" else 0,
            made.target,
        )
