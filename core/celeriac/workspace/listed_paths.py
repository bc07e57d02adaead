"""Whether lists of changed paths can be of one workspace, as a walk over it finds them."""

import os
from collections.abc import Iterator, Sequence

from celeriac.errors import InvalidReceipt
from celeriac.workspace.confinement import (
    MAX_NAME_BYTES,
    MAX_PATH_BYTES,
    TEMPORARY_PREFIX,
    is_of_git,
)
from celeriac.workspace.digests import SKIPPED_FOLDERS

MAX_PATHS = 10_000  # in the lists of one attestation together
MAX_LISTED_BYTES = 2_000_000  # of all of them


def check_paths(created: Sequence[str], modified: Sequence[str], deleted: Sequence[str]) -> None:
    """Raise `InvalidReceipt` that names the first thing wrong."""
    listed = [*created, *modified, *deleted]
    if len(listed) > MAX_PATHS:
        raise InvalidReceipt(
            f"the attestation lists {len(listed)} paths; {MAX_PATHS} are allowed. Let a call do "
            "less, or keep what it makes in a folder that the digest skips"
        )
    size = sum(len(_encoded(path)) for path in listed)
    if size > MAX_LISTED_BYTES:
        raise InvalidReceipt(
            f"the attestation lists paths of {size} bytes; {MAX_LISTED_BYTES} are allowed"
        )
    for path in listed:
        if (problem := _problem(path)) is not None:
            raise InvalidReceipt(f"the attestation lists {path!r}, {problem}")
    if len(set(listed)) != len(listed):
        raise InvalidReceipt("the attestation lists a path twice")
    for name, paths in (("created", created), ("modified", modified), ("deleted", deleted)):
        if [*paths] != in_order(paths):
            raise InvalidReceipt(f"the attestation's {name} is not sorted by the paths' bytes")
    for what, paths in (
        ("after the call", [*created, *modified]),
        ("before the call", [*modified, *deleted]),
    ):
        if (nested := _below_a_file(paths)) is not None:
            raise InvalidReceipt(
                f"the attestation contradicts itself: {what}, {nested[0]!r} cannot have stood "
                f"there beside {nested[1]!r}"
            )


def in_order(paths: Iterator[str] | Sequence[str] | set[str]) -> list[str]:
    """Sorted by their bytes, as the digest takes them in."""
    return sorted(paths, key=_encoded)


def _encoded(path: str) -> bytes:
    """The path's bytes; a lone surrogate that stands for no byte counts as itself."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return path.encode(errors="surrogatepass")


def _problem(path: str) -> str | None:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        return "which is no path inside"
    if len(_encoded(path)) > MAX_PATH_BYTES or any(
        len(_encoded(part)) > MAX_NAME_BYTES for part in parts
    ):
        return "which is too long for a path"
    if any(is_of_git(part) or part in SKIPPED_FOLDERS for part in parts) or any(
        part.startswith(TEMPORARY_PREFIX) for part in parts
    ):
        return "which the digest does not take in"
    return None


def _below_a_file(paths: Sequence[str]) -> tuple[str, str] | None:
    """A listed path stands for a file, a link or an empty folder: nothing can be inside it."""
    known = set(paths)
    for path in paths:
        place = path
        while "/" in place:
            place = place.rpartition("/")[0]
            if place in known:
                return path, place
    return None
