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
from typing import Final, cast

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.workspace.confinement import opened_root
from celeriac.workspace.digests import State, digest_of, workspace_states

ALGORITHM: Final = "celeriac-workspace-1"
"""How digests are made (`digests.digest_of`). Another algorithm would have another name."""
MAX_PATHS = 10_000  # in the three lists together
_DIGEST = re.compile(r"[0-9a-f]{64}")
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

    @property
    def is_change(self) -> bool:
        return self.before_digest != self.after_digest

    def to_json(self) -> dict[str, JsonValue]:
        texts: dict[str, JsonValue] = {name: getattr(self, name) for name in _TEXTS}
        return {**texts, **{name: [*getattr(self, name)] for name in _LISTS}}


def collect(folder: Path) -> Collected:
    """Read the whole workspace, following no link. Raises `ToolError` if a file cannot be read: a
    digest that left it out would say that it is unchanged."""
    with opened_root(folder) as root:
        return Collected(workspace_states(root))


def attest(before: Collected, after: Collected, *, root: str, nonce: str) -> Attestation:
    """What differs between two moments. An empty folder that comes or goes counts as a path."""
    old, new = before.states, after.states
    return Attestation(
        root=root,
        nonce=nonce,
        before_digest=before.digest,
        after_digest=after.digest,
        created=sorted(new.keys() - old.keys()),
        modified=sorted(path for path in old.keys() & new.keys() if old[path] != new[path]),
        deleted=sorted(old.keys() - new.keys()),
    )


def read_attestation(given: JsonValue) -> Attestation:
    """The attestation that JSON stands for, if it agrees with itself: something has changed exactly
    if the digests differ, and exactly if a path is listed. Raises `InvalidInput` naming what is
    wrong with it."""
    if not isinstance(given, dict):
        raise InvalidInput("an attestation is a JSON object")
    if unknown := given.keys() - {*_TEXTS, *_LISTS}:
        raise InvalidInput(f"an attestation has no {', '.join(sorted(unknown))}")
    for name in _TEXTS:
        if not isinstance(given.get(name), str) or not given[name]:
            raise InvalidInput(f"the attestation's {name} is missing or no text")
    for name in _LISTS:
        paths = given.get(name)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise InvalidInput(f"the attestation's {name} is no list of paths")
    attestation = Attestation(**cast("dict[str, str]", given))
    _check_words(attestation)
    return attestation


def check(attestation: Attestation, *, root: str, nonce: str, last_digest: str | None) -> None:
    """Raise `InvalidInput` unless it is of this workspace and call, and continues from the digest
    that was last known (None: from any)."""
    if attestation.root != root:
        raise InvalidInput(
            f"the attestation is of workspace {attestation.root!r}, and the call is of {root!r}"
        )
    if attestation.nonce != nonce:
        raise InvalidInput("the attestation is of another call: its nonce is not the call's")
    if last_digest is not None and attestation.before_digest != last_digest:
        raise InvalidInput(
            f"the workspace was {attestation.before_digest[:12]}… before the call and "
            f"{last_digest[:12]}… after the last one: somebody else has changed it in between"
        )


def _check_words(attestation: Attestation) -> None:
    if attestation.algorithm != ALGORITHM:
        raise InvalidInput(
            f"the digests were made by {attestation.algorithm!r}; only {ALGORITHM} is known here"
        )
    for name in ("before_digest", "after_digest"):
        if not _DIGEST.fullmatch(getattr(attestation, name)):
            raise InvalidInput(f"the attestation's {name} is not 64 lower-case hex digits")
    listed = [path for name in _LISTS for path in getattr(attestation, name)]
    if len(listed) > MAX_PATHS:
        raise InvalidInput(f"the attestation lists {len(listed)} paths; {MAX_PATHS} are allowed")
    if len(set(listed)) != len(listed):
        raise InvalidInput("the attestation lists a path twice")
    if outside := [path for path in listed if _leads_out(path)]:
        raise InvalidInput(f"the attestation lists {outside[0]!r}, which is no path inside")
    if attestation.is_change != bool(listed):
        said = "it lists paths, and its digests are the same"
        if attestation.is_change:
            said = "its digests differ, and it lists no path"
        raise InvalidInput(f"the attestation contradicts itself: {said}")


def _leads_out(path: str) -> bool:
    return any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path
