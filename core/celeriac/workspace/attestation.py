"""What a process that executes tools elsewhere says about its workspace, and checking that.

The collector, in that process:

    before = collect(folder)
    ...                             # execute the call
    attestation = attest(before, collect(folder), root="checkout-7", nonce=nonce)

`nonce` and `root` come with the call, so that an attestation is of this call and this workspace. An
attestation is evidence, not truth: it is made by the process whose work it describes. `check` finds
what contradicts itself or the last known state; it cannot find a consistent lie.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from celeriac.codec import JsonValue
from celeriac.errors import InvalidReceipt
from celeriac.evidence import Standing
from celeriac.workspace.confinement import opened_root
from celeriac.workspace.digests import State, digest_of, digest_of_state, workspace_states
from celeriac.workspace.listed_paths import check_paths, in_order

ALGORITHM: Final = "celeriac-workspace-1"
"""How digests are made (`digests.digest_of`). Another algorithm would have another name."""
EMPTY: Final = digest_of({})
"""The digest of a workspace in which there is nothing."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_TEXT_CHARACTERS = 1000  # of a root, a nonce or the name of a collector
_LISTS = ("created", "modified", "deleted")
_TEXTS = ("algorithm", "root", "nonce", "before_digest", "after_digest", "collector")


@dataclass(frozen=True, slots=True)
class Collected:
    """A workspace at one moment: what stands at each path."""

    states: Mapping[str, State | None]

    @property
    def digest(self) -> str:
        return digest_of(self.states)

    def to_json(self) -> JsonValue:
        return {
            path: {"folder": True} if state is None else state.to_json()
            for path, state in self.states.items()
        }

    @classmethod
    def from_json(cls, stored: JsonValue) -> "Collected":
        """Raises `ValueError` if this is not what `to_json` made."""
        if not isinstance(stored, dict):
            raise ValueError("this is no collected workspace")
        states = {
            path: None if state == {"folder": True} else State.from_json(state)
            for path, state in stored.items()
        }
        return cls(states)


@dataclass(frozen=True, slots=True)
class Attestation:
    """What became of a workspace during one call."""

    root: str
    nonce: str
    before_digest: str
    after_digest: str
    created: Sequence[str]
    modified: Sequence[str]
    deleted: Sequence[str]
    collector: str = "celeriac"
    """Who made it. For people only: nothing is decided by it."""
    algorithm: str = ALGORITHM
    contents: Mapping[str, tuple[Standing, Standing]] | None = None
    """Of each listed path the digests of what stood there before and after, None for nothing. It
    may be left out. Then nobody can tell that a file which was changed twice is what it was."""

    @property
    def is_change(self) -> bool:
        return self.before_digest != self.after_digest

    def to_json(self) -> dict[str, JsonValue]:
        texts: dict[str, JsonValue] = {name: getattr(self, name) for name in _TEXTS}
        told = {**texts, **{name: [*getattr(self, name)] for name in _LISTS}}
        if self.contents is not None:
            told["contents"] = {path: [*standing] for path, standing in self.contents.items()}
        return told


def collect(folder: Path) -> Collected:
    """Read the whole workspace, following no link. Raises `ToolError` if a file cannot be read: a
    digest that left it out would say that it is unchanged."""
    with opened_root(folder) as root:
        return Collected(workspace_states(root))


def attest(before: Collected, after: Collected, *, root: str, nonce: str) -> Attestation:
    """What differs between two moments. An empty folder that comes or goes counts as a path."""
    old, new = before.states, after.states
    changed = {
        path for path in old.keys() | new.keys() if _standing(old, path) != _standing(new, path)
    }
    return Attestation(
        root=root,
        nonce=nonce,
        before_digest=before.digest,
        after_digest=after.digest,
        created=in_order(changed - old.keys()),
        modified=in_order(changed & old.keys() & new.keys()),
        deleted=in_order(changed - new.keys()),
        contents={path: (_standing(old, path), _standing(new, path)) for path in changed},
    )


def _standing(states: Mapping[str, State | None], path: str) -> Standing:
    return digest_of_state(states[path]) if path in states else None


def read_attestation(given: JsonValue) -> Attestation:
    """The attestation that JSON stands for, if it agrees with itself: something has changed exactly
    if the digests differ, and exactly if a path is listed. Raises `InvalidReceipt` naming what is
    wrong with it."""
    if not isinstance(given, dict):
        raise InvalidReceipt("an attestation is a JSON object")
    if unknown := given.keys() - {*_TEXTS, *_LISTS, "contents"}:
        raise InvalidReceipt(f"an attestation has no {', '.join(sorted(unknown))}")
    for name in _TEXTS:
        text = given.get(name)
        if not isinstance(text, str) or not 0 < len(text) <= MAX_TEXT_CHARACTERS:
            raise InvalidReceipt(f"the attestation's {name} is missing, no text, or too long")
    for name in _LISTS:
        paths = given.get(name)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise InvalidReceipt(f"the attestation's {name} is no list of paths")
    fields: dict[str, Any] = dict(given)
    attestation = Attestation(**{**fields, "contents": _contents(fields.get("contents"))})
    _check_words(attestation)
    return attestation


def check(attestation: Attestation, *, root: str, nonce: str, last_digest: str | None) -> None:
    """Raise `InvalidReceipt` unless it is of this workspace and call, and continues from the digest
    that was last known (None: from any)."""
    if attestation.root != root:
        raise InvalidReceipt(
            f"the attestation is of workspace {attestation.root!r}, and the call is of {root!r}"
        )
    if attestation.nonce != nonce:
        raise InvalidReceipt("the attestation is of another call: its nonce is not the call's")
    if (found := drift(attestation, last_digest)) is not None:
        raise InvalidReceipt(found)


def drift(attestation: Attestation, last_digest: str | None) -> str | None:
    """Why it does not continue from the digest that was last known; None if it does, or if none
    was known."""
    if last_digest is None or attestation.before_digest == last_digest:
        return None
    return (
        f"the workspace was {attestation.before_digest[:12]}… before the call and "
        f"{last_digest[:12]}… after the last one: somebody else has changed it in between"
    )


def _contents(given: object) -> dict[str, tuple[Standing, Standing]] | None:
    if given is None:
        return None
    wrong = InvalidReceipt("the attestation's contents are not two digests or null for each path")
    if not isinstance(given, dict):
        raise wrong
    for pair in given.values():
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_standing, pair)):
            raise wrong
    return {path: (before, after) for path, (before, after) in given.items()}


def _is_standing(given: object) -> bool:
    return given is None or (isinstance(given, str) and _DIGEST.fullmatch(given) is not None)


def _check_words(attestation: Attestation) -> None:
    if attestation.algorithm != ALGORITHM:
        raise InvalidReceipt(
            f"the digests were made by {attestation.algorithm!r}; only {ALGORITHM} is known here"
        )
    for name in ("before_digest", "after_digest"):
        if not _DIGEST.fullmatch(getattr(attestation, name)):
            raise InvalidReceipt(f"the attestation's {name} is not 64 lower-case hex digits")
    check_paths(attestation.created, attestation.modified, attestation.deleted)
    is_listed = any(getattr(attestation, name) for name in _LISTS)
    if attestation.is_change != is_listed:
        said = "it lists paths, and its digests are the same"
        if attestation.is_change:
            said = "its digests differ, and it lists no path"
        raise InvalidReceipt(f"the attestation contradicts itself: {said}")
    _check_against_nothing(attestation)
    if attestation.contents is not None:
        _check_contents(attestation, attestation.contents)


def _check_against_nothing(attestation: Attestation) -> None:
    """In an empty workspace there is nothing to change or delete."""
    if (attestation.before_digest == EMPTY and (attestation.modified or attestation.deleted)) or (
        attestation.after_digest == EMPTY and (attestation.modified or attestation.created)
    ):
        raise InvalidReceipt("the attestation contradicts itself: one of its digests is of nothing")


def _check_contents(
    attestation: Attestation, contents: Mapping[str, tuple[Standing, Standing]]
) -> None:
    """The lists and the contents say the same."""
    by_list = {
        "created": [path for path, (before, _) in contents.items() if before is None],
        "deleted": [path for path, (_, after) in contents.items() if after is None],
        "modified": [path for path, standing in contents.items() if None not in standing],
    }
    is_same = all(set(getattr(attestation, name)) == set(paths) for name, paths in by_list.items())
    if not is_same or any(before == after for before, after in contents.values()):
        raise InvalidReceipt(
            "the attestation contradicts itself: its contents are not of its lists"
        )
