"""Snapshots of a workspace: which of its files are kept, and keeping them."""

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from celeriac.errors import ToolError
from celeriac.workspace.confinement import (
    MAX_DEPTH,
    MAX_PATH_BYTES,
    TEMPORARY_PREFIX,
    is_of_git,
    kind_of,
    names_in,
    opened_folder,
)
from celeriac.workspace.digests import PERMISSIONS
from celeriac.workspace.secret_files import is_secret
from celeriac.workspace.shadow import ShadowRepository

MAX_KEPT_BYTES = 5_000_000  # of one file
MAX_KEPT_FILES = 50_000
"""A workspace with more of them is kept in part; what is left out cannot be taken back."""

LeftOut = Literal[
    "ignored", "secret", "too_large", "too_many", "too_deep", "hard_linked", "unreadable"
]


@dataclass(frozen=True, slots=True)
class Snapshot:
    commit: str
    left_out: dict[LeftOut, int]
    """How many entries are not kept, by the reason; an ignored folder counts once."""
    permissions: dict[str, int]
    """Of each path that is kept. git itself remembers only whether a file may be executed."""


def take(shadow: ShadowRepository, root: int, message: str) -> Snapshot:
    """Keep the workspace as it is now. Raises `WorkspaceAway` if that fails."""
    kept, left_out = _files_to_keep(shadow, root)
    shadow.index(list(kept), gone=shadow.indexed() - kept.keys())
    return Snapshot(shadow.commit(message), dict(left_out), kept)


def is_kept(shadow: ShadowRepository, parts: tuple[str, ...], size: int) -> bool:
    """Whether a file of that path and size would be kept."""
    if is_secret(parts) or size > MAX_KEPT_BYTES:
        return False
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return not shadow.ignored(above)


def _files_to_keep(shadow: ShadowRepository, root: int) -> tuple[dict[str, int], Counter[LeftOut]]:
    """All files that are kept, level by level, so that git is asked once for each level."""
    kept: dict[str, int] = {}
    left_out: Counter[LeftOut] = Counter()
    level: list[tuple[str, ...]] = [()]
    while level:
        entries = [entry for folder in level for entry in _entries(root, folder, left_out)]
        ignored = shadow.ignored(["/".join(parts) for parts, _ in entries]) if entries else set()
        level = []
        for parts, mode in entries:
            path = "/".join(parts)
            if path in ignored:
                left_out["ignored"] += 1
            elif stat.S_ISDIR(mode):
                level.append(parts)
            elif len(kept) < MAX_KEPT_FILES:
                kept[path] = mode & PERMISSIONS
            else:
                left_out["too_many"] += 1
    return kept, left_out


def _entries(
    root: int, folder: tuple[str, ...], left_out: Counter[LeftOut]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """The folders, files and links in a folder that may be kept, each with its mode."""
    try:
        with opened_folder(root, folder) as opened:
            for name in names_in(opened):
                parts = (*folder, name)
                found = kind_of(opened, name)
                if found is None or is_of_git(name) or name.startswith(TEMPORARY_PREFIX):
                    continue
                if reason := _reason_to_leave_out(found, opened, parts):
                    left_out[reason] += 1
                elif stat.S_ISDIR(found.st_mode) or _is_file_or_link(found):
                    yield parts, found.st_mode
    except ToolError:  # somebody has removed the folder meanwhile, or may not open it
        left_out["unreadable"] += 1


def _is_file_or_link(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)


def _reason_to_leave_out(
    found: os.stat_result, folder: int, parts: tuple[str, ...]
) -> LeftOut | None:
    if is_secret(parts, is_folder=stat.S_ISDIR(found.st_mode)):
        return "secret"
    if len(parts) > MAX_DEPTH or len(os.fsencode("/".join(parts))) > MAX_PATH_BYTES:
        return "too_deep"
    if not stat.S_ISREG(found.st_mode):
        return None
    if found.st_nlink > 1:
        return "hard_linked"
    if found.st_size > MAX_KEPT_BYTES:
        return "too_large"
    return None if os.access(parts[-1], os.R_OK, dir_fd=folder) else "unreadable"
