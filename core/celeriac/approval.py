"""Who must agree before a tool is called: declared with the tool, judged from plain JSON.

@tool(
    rollback="out_of_band",
    approval=Approval(
        roles=["refunds"],
        unless=When("amount", "<=", "50"),
        rules=[Rule(When("amount", ">", "1000"), roles=["finance"], quorum=2)],
        immutable=["order_id"],
        blast_radius="{amount} leave our account for the customer of order {order_id}",
    ),
)

Nothing here reads a clock or a server. An `Approval` survives being written as JSON, so an edit can
be judged by a process that has none of the agent's code (`docs/approvals.md`).
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self, cast

from celeriac import seconds
from celeriac.codec import JsonValue, dumps
from celeriac.conditions import When, conditions, value_at
from celeriac.errors import InvalidAgent
from celeriac.rollback import Rollback

OnReject = Literal["tell", "end"]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Rule:
    """A stronger review for arguments that fulfil all of `when`, or may fulfil them.

    What it leaves out stays as the approval says. Roles replace the roles before; the quorum can
    only rise, the time only shrink, and questions are added.
    """

    when: When | Sequence[When]
    roles: Sequence[str] = ()
    quorum: int = 1
    checklist: Sequence[str] = ()
    expires_seconds: float | None = None

    def __post_init__(self) -> None:
        _freeze(self, "roles", "checklist")
        object.__setattr__(self, "when", conditions(self.when))
        if not self.when:
            raise InvalidAgent("a rule without a condition: say when it applies")
        _check_review(self.quorum, self.roles, self.checklist, self.expires_seconds)

    @property
    def conditions(self) -> tuple[When, ...]:
        """All of its conditions: a single one that was given is one of them."""
        return cast(tuple[When, ...], self.when)

    def applies(self, arguments: JsonValue) -> bool:
        """Unless one of its conditions certainly does not hold."""
        return all(each.holds(arguments) is not False for each in self.conditions)


@dataclass(frozen=True)
class Requirement:
    """The review that one call with its arguments needs; copied to the call when it is proposed."""

    roles: tuple[str, ...]  # a reviewer has one of them; none: any other person
    quorum: int  # different persons that must approve
    checklist: tuple[str, ...]  # questions that each of them answers
    expires_seconds: float | None
    allow_self: bool  # whether the user who owns the run may decide
    on_reject: OnReject
    immutable: tuple[str, ...]  # paths that an edit may not change
    reason: str  # why a person is asked

    def to_json(self) -> dict[str, JsonValue]:
        return cast("dict[str, JsonValue]", {**asdict(self), **_lists(self)})

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        given = {each.name: stored[each.name] for each in fields(cls)}
        return cls(**{**given, **_tuples(given, "roles", "checklist", "immutable")})


@dataclass(frozen=True)
class Approval:
    """What must be decided by a person before the tool is called.

    Without more, each call needs one person other than the user who owns the run. `unless`: calls
    whose arguments certainly fulfil all of these conditions need nobody. `rules` ask for more where
    they apply, in their order.

    `roles`: a reviewer has one of these (`celeriac principals`). `quorum`: how many different
    persons. `checklist`: questions that each reviewer must answer. `expires_seconds`: how long a
    proposal stands; it then expires, and is never approved by that. `allow_self`: the user who owns
    the run may decide. `on_reject`: `"tell"` the model and go on, or `"end"` the run. `immutable`:
    paths of arguments that an edit may not change.

    The rest is shown to the reviewer. `blast_radius` and `intent` may name arguments in braces;
    `permissions_touched` and `data_lineage` say what the call uses and where its data come from.

    Raises `InvalidAgent` for what nobody could ever fulfil.
    """

    roles: Sequence[str] = ()
    quorum: int = 1
    checklist: Sequence[str] = ()
    expires_seconds: float | None = None
    allow_self: bool = False
    unless: When | Sequence[When] = ()
    rules: Sequence[Rule] = ()
    on_reject: OnReject = "tell"
    immutable: Sequence[str] = ()
    intent: str = ""
    permissions_touched: Sequence[str] = ()
    blast_radius: str = ""
    data_lineage: Sequence[str] = ()

    def __post_init__(self) -> None:
        _freeze(self, "roles", "checklist", "rules", "immutable", "permissions_touched")
        _freeze(self, "data_lineage")
        object.__setattr__(self, "unless", conditions(self.unless))
        _check_review(self.quorum, self.roles, self.checklist, self.expires_seconds)
        if self.on_reject not in ("tell", "end"):
            raise InvalidAgent(f"on_reject={self.on_reject!r} is neither 'tell' nor 'end'")

    def requirement(self, arguments: JsonValue, rollback: Rollback) -> Requirement | None:
        """The review that a call with these arguments needs, or None if it needs none."""
        spared = cast(tuple[When, ...], self.unless)
        if spared and all(each.holds(arguments) is True for each in spared):
            return None
        return self.strictest(arguments, rollback)

    def strictest(self, arguments: JsonValue, rollback: Rollback) -> Requirement:
        """The same for a call that is proposed already: an edit cannot get around every review."""
        found = Requirement(
            tuple(self.roles),
            self.quorum,
            tuple(self.checklist),
            self.expires_seconds,
            self.allow_self,
            self.on_reject,
            tuple(self.immutable),
            "the tool asks for it",
        )
        for rule in self.rules:
            if rule.applies(arguments):
                found = _strengthened(found, rule)
        if rollback is Rollback.NONE and found.quorum < 2 and not found.checklist:
            found = replace(
                found, quorum=2, reason=f"{found.reason}; it cannot be taken back, so two decide"
            )
        return found

    def problem_with(self, parameters: Collection[str]) -> str | None:
        """What of it no call with these parameters could fulfil, or None."""
        paths = [*self.immutable, *(each.path for each in self._allconditions())]
        for path in paths:
            if path.partition(".")[0] not in parameters:
                return f"its approval looks at {path!r}, which is no parameter"
        for text in (self.intent, self.blast_radius):
            for name in _PLACEHOLDER.findall(text):
                if name not in parameters:
                    return f"its approval shows {{{name}}}, which is no parameter"
        return None

    def to_json(self) -> dict[str, JsonValue]:
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        rules: list[JsonValue] = [
            {
                "when": [each.to_json() for each in rule.conditions],
                "roles": list(rule.roles),
                "quorum": rule.quorum,
                "checklist": list(rule.checklist),
                "expires_seconds": rule.expires_seconds,
            }
            for rule in self.rules
        ]
        unless = [each.to_json() for each in cast(tuple[When, ...], self.unless)]
        return cast(
            "dict[str, JsonValue]", {**stored, **_lists(self), "rules": rules, "unless": unless}
        )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        rules = [
            Rule(**{**rule, "when": [When.from_json(each) for each in rule["when"]]})
            for rule in stored["rules"]
        ]
        unless = [When.from_json(each) for each in stored["unless"]]
        return cls(**{**stored, "rules": rules, "unless": unless})

    @property
    def policy_version(self) -> str:
        """sha256 of the JSON form, 64 hex digits: the version of the policy."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    def _allconditions(self) -> list[When]:
        unless = cast(tuple[When, ...], self.unless)
        return [*unless, *(each for rule in self.rules for each in rule.conditions)]


def rendered(template: str, arguments: JsonValue) -> str:
    """`template` with the arguments put in for their names in braces."""

    def shown(found: re.Match[str]) -> str:
        value = value_at(arguments, found[1])
        return value if isinstance(value, str) else dumps(value)

    return _PLACEHOLDER.sub(shown, template).strip()


def _strengthened(before: Requirement, rule: Rule) -> Requirement:
    times = [each for each in (before.expires_seconds, rule.expires_seconds) if each is not None]
    return replace(
        before,
        roles=tuple(rule.roles) or before.roles,
        quorum=max(before.quorum, rule.quorum),
        checklist=tuple(dict.fromkeys([*before.checklist, *rule.checklist])),
        expires_seconds=min(times, default=None),
        reason=" and ".join(str(each) for each in rule.conditions),
    )


def _check_review(
    quorum: object, roles: Sequence[object], checklist: Sequence[object], expires: float | None
) -> None:
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 1 <= quorum <= 100:
        raise InvalidAgent(f"quorum={quorum!r} is no number of persons from 1 to 100")
    if not all(isinstance(each, str) and each.strip() for each in [*roles, *checklist]):
        raise InvalidAgent("a role or a question of the checklist is empty")
    if expires is not None and (wrong := seconds.problem("expires_seconds", expires)):
        raise InvalidAgent(wrong)


def _freeze(declared: object, *names: str) -> None:
    for name in names:
        given = getattr(declared, name)
        if isinstance(given, str):
            raise InvalidAgent(f"{name}={given!r} is one text; give a list of them")
        object.__setattr__(declared, name, tuple(given))


def _lists(declared: Any) -> dict[str, JsonValue]:
    values = {each.name: getattr(declared, each.name) for each in fields(declared)}
    return {name: list(value) for name, value in values.items() if isinstance(value, tuple)}


def _tuples(given: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: tuple(given[name]) for name in names}
