"""The policy between what a model proposes and what is kept: it decides, and says why.

Agent("concierge", ..., memory=MemoryPolicy())

Without more it keeps what the user has asked for in words of their own, and refuses what is
sensitive, what nobody asked for, and what would change how the agent works, unless persons with
permission have approved exactly that.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, cast

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidAgent
from celeriac.memory.asking import ASKS_TO_FORGET, ASKS_TO_REMEMBER
from celeriac.memory.candidate import (
    DEFAULT_NAMESPACE,
    MAX_EXPIRES_DAYS,
    MemoryCandidate,
    MemoryKind,
    Origin,
    is_key,
    is_owner,
    text_of,
)
from celeriac.memory.embedding import Embedder, checked_embedder
from celeriac.memory.instructions import reads_like_an_order
from celeriac.memory.sensitive import kinds_of_secret


class Reason(StrEnum):
    """Why a candidate is kept, or is not. Programs go by these."""

    EXPLICIT_REQUEST = "explicit_request"
    APPROVED = "approved"

    INVALID_OWNER = "invalid_owner"
    INVALID_KEY = "invalid_key"
    INVALID_NAMESPACE = "invalid_namespace"
    INVALID_VALUE = "invalid_value"
    INVALID_KIND = "invalid_kind"
    INVALID_FLAG = "invalid_flag"
    INVALID_EXPIRY = "invalid_expiry"
    TOO_LARGE = "too_large"
    SENSITIVE = "sensitive"
    INCIDENTAL = "incidental"
    SOURCE = "source"
    PROCEDURAL = "procedural"
    DISGUISED = "disguised"
    POLICY = "policy"
    CONFLICT = "conflict"
    FULL = "full"

    @property
    def allows(self) -> bool:
        return self in (Reason.EXPLICIT_REQUEST, Reason.APPROVED)


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """What came of a candidate. `why` never quotes it."""

    reason: Reason
    why: str

    @property
    def store(self) -> bool:
        """Whether it is kept."""
        return self.reason.allows


@dataclass(frozen=True)
class MemoryPolicy:
    """What an agent may remember of its users, and how much of it a model is shown.

    `namespaces`: where it may keep something; it recalls from these alone. `origins`: whose words
    count; a web page's or a tool's do not. `asks` and `asks_back`: patterns for words that ask to
    remember, and for a sentence that asks to forget (`celeriac.memory.asking`).
    `governors`: who approves what is procedural, by role (`celeriac principals`).
    `also_refuse`: a function from the candidate to why it is refused, or None; it can only refuse,
    and must not reach a server. `most_memories` of one user, `most_characters` of one memory.
    `recall_tokens` (estimated, see `celeriac.token_count`) and `recall_most` bound what each model
    call is shown without asking; 0 tokens: nothing, and there is only the tool `recall`.
    `embedder`: by whose vectors memories are found too that say the same in other words.

    Raises `InvalidAgent` for what cannot be meant.
    """

    namespaces: Sequence[str] = (DEFAULT_NAMESPACE,)
    origins: Sequence[str] = (Origin.USER, Origin.PERSON)
    governors: Sequence[str] = ("memory-governance",)
    asks: str = ASKS_TO_REMEMBER
    asks_back: str = ASKS_TO_FORGET
    also_refuse: Callable[[MemoryCandidate], str | None] | None = None
    most_memories: int = 1000
    most_characters: int = 4000
    recall_tokens: int = 1000
    recall_most: int = 20
    embedder: Embedder | None = None

    def __post_init__(self) -> None:
        for name in ("namespaces", "origins", "governors"):
            given = getattr(self, name)
            if isinstance(given, str) or not given:
                raise InvalidAgent(f"{name}={given!r}: give a list of texts that is not empty")
            object.__setattr__(self, name, tuple(map(str, given)))
        if wrong := [each for each in self.namespaces if not is_key(each)]:
            raise InvalidAgent(f"{wrong[0]!r} cannot be the namespace of a memory")
        if unknown := set(self.origins) - set(Origin):
            raise InvalidAgent(f"{min(unknown)!r} is no origin; there are {', '.join(Origin)}")
        for name in ("most_memories", "most_characters", "recall_most", "recall_tokens"):
            number = getattr(self, name)
            least = 0 if name == "recall_tokens" else 1
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidAgent(f"{name}={number!r} is no whole number from {least} on")
        for name in ("asks", "asks_back"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise InvalidAgent(f"{name} is no pattern: {error}") from error

        if self.embedder is not None:
            checked_embedder(self.embedder)

    def evaluate(self, candidate: MemoryCandidate) -> MemoryDecision:
        """Decide. The same candidate gets the same decision; nothing is read or written."""
        # Size before all that reads it: what looks for secrets is not linear.
        rules = (
            _malformed,
            self._too_large,
            _sensitive,
            self._unwanted,
            _procedural,
            self._incidental,
        )
        for rule in rules:
            if (refusal := rule(candidate)) is not None:
                return refusal
        if candidate.kind == MemoryKind.PROCEDURAL:
            return MemoryDecision(Reason.APPROVED, "people have approved it")
        return MemoryDecision(Reason.EXPLICIT_REQUEST, "the user asked for it")

    def to_json(self) -> dict[str, JsonValue]:
        """All of it but the code of `also_refuse` and of the embedder, which has a name."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        embedder = values.pop("embedder")
        if embedder is not None:  # a policy that has none is what it was before there were any
            values["embedder"] = embedder.name
        plain = {name: list(each) if isinstance(each, tuple) else each
                 for name, each in values.items()}  # fmt: skip
        return {**plain, "also_refuse": self.also_refuse is not None}

    @property
    def version(self) -> str:
        """sha256 of its JSON form, 64 hex digits."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    def _too_large(self, candidate: MemoryCandidate) -> MemoryDecision | None:
        if len(text_of(candidate.value)) <= self.most_characters:
            return None
        return MemoryDecision(
            Reason.TOO_LARGE, f"it is longer than {self.most_characters} characters"
        )

    def _unwanted(self, candidate: MemoryCandidate) -> MemoryDecision | None:
        if candidate.namespace not in self.namespaces:
            return MemoryDecision(
                Reason.INVALID_NAMESPACE,
                f"this agent keeps nothing there; its namespaces are {', '.join(self.namespaces)}",
            )
        if self.also_refuse is not None and (why := self.also_refuse(candidate)) is not None:
            return MemoryDecision(Reason.POLICY, why)
        return None

    def _incidental(self, candidate: MemoryCandidate) -> MemoryDecision | None:
        if candidate.kind == MemoryKind.PROCEDURAL:
            return None  # people have read it, with where it comes from
        if candidate.source.origin not in self.origins:
            return MemoryDecision(
                Reason.SOURCE,
                f"it comes from the {candidate.source.origin}, and only what the user says counts",
            )
        if not candidate.explicit_user_request:
            return MemoryDecision(Reason.INCIDENTAL, "the user did not ask to have it remembered")
        return None


def _malformed(candidate: MemoryCandidate) -> MemoryDecision | None:
    value, days = candidate.value, candidate.expires_days
    if not is_owner(candidate.owner_id):
        return MemoryDecision(Reason.INVALID_OWNER, "it has no owner")
    if not is_key(candidate.key):
        return MemoryDecision(
            Reason.INVALID_KEY,
            "its key must be a short name such as answer-style, without slashes or spaces",
        )
    if not is_key(candidate.namespace):
        return MemoryDecision(Reason.INVALID_NAMESPACE, "its namespace must be a short name")
    if candidate.kind not in list(MemoryKind):
        return MemoryDecision(Reason.INVALID_KIND, f"its kind is none of {', '.join(MemoryKind)}")
    if value is None or value in ({}, []) or (isinstance(value, str) and not value.strip()):
        return MemoryDecision(Reason.INVALID_VALUE, "there is nothing in it")
    for flag in (candidate.explicit_user_request, candidate.sensitive):
        if not isinstance(flag, bool):
            return MemoryDecision(Reason.INVALID_FLAG, "a flag of it is neither true nor false")
    if days is not None and not _is_time(days):
        return MemoryDecision(Reason.INVALID_EXPIRY, "it would never be kept, or too long")
    return None


def _is_time(days: object) -> bool:
    is_number = isinstance(days, int | float) and not isinstance(days, bool)
    return is_number and 0 < cast(float, days) <= MAX_EXPIRES_DAYS


def _sensitive(candidate: MemoryCandidate) -> MemoryDecision | None:
    found = kinds_of_secret(f"{candidate.text} {candidate.namespace}")
    if found:
        return MemoryDecision(Reason.SENSITIVE, f"it holds what must not be kept: {found[0]}")
    if candidate.sensitive:
        return MemoryDecision(Reason.SENSITIVE, "it is said to be sensitive")
    return None


def _procedural(candidate: MemoryCandidate) -> MemoryDecision | None:
    if candidate.kind == MemoryKind.PROCEDURAL:
        if candidate.approval_id is None:
            return MemoryDecision(
                Reason.PROCEDURAL, "it changes how the agent works, which people must approve"
            )
        return None
    if reads_like_an_order(f"{candidate.key.replace('-', ' ')} {text_of(candidate.value)}"):
        return MemoryDecision(
            Reason.DISGUISED,
            "it tells the agent what to do, so it is procedural; say it as a fact about the user, "
            "or propose it as procedural, for people to decide",
        )
    return None
