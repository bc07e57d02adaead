"""Who may decide which calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from celeriac.approval import Requirement
from celeriac.codec import JsonValue
from celeriac.conditions import When
from celeriac.errors import InvalidInput
from celeriac.ids import UserId

Permissions: TypeAlias = Mapping[str, Sequence[When]]
"""By the name of a tool, or `*` for all others, conditions that its arguments must fulfil."""


@dataclass(frozen=True)
class Principal:
    """A person as far as decisions go.

    `permissions`: by the name of a tool, or `*` for all others, the conditions that the arguments
    must fulfil for this person to decide the call; of a tool that is not there, none may be
    decided. Somebody who was never registered has no role and no limit.
    """

    user_id: UserId
    roles: tuple[str, ...] = ()
    permissions: Permissions = field(default_factory=lambda: {"*": ()})
    version: int = 0  # counts changes; 0: never registered
    is_disabled: bool = False

    def objection(
        self, requirement: Requirement, tool: str, arguments: JsonValue, requested_by: str
    ) -> str | None:
        """Why this person may not decide the call with these arguments, or None."""
        if self.is_disabled:
            return f"{self.user_id} is disabled"
        if self.user_id == requested_by and not requirement.allow_self:
            return f"{self.user_id} owns the run, and somebody else must decide"
        if requirement.roles and not set(requirement.roles) & set(self.roles):
            asked = " or ".join(requirement.roles)
            return f"{self.user_id} has the roles {_listed(self.roles)}; {asked} is asked for"
        limits = self.permissions.get(tool, self.permissions.get("*"))
        if limits is None:
            return f"{self.user_id} may not decide calls of {tool}"
        for limit in limits:
            if limit.holds(arguments) is not True:
                return f"{self.user_id} may decide calls of {tool} only with {limit}"
        return None


def permissions_to_json(permissions: Permissions) -> dict[str, JsonValue]:
    """`{"refund": [["amount", "<=", "500"]], "*": []}`."""
    return {tool: [limit.to_json() for limit in limits] for tool, limits in permissions.items()}


def permissions_from_json(stored: JsonValue) -> Permissions:
    """Raises `InvalidInput` for what `permissions_to_json` does not write."""
    if not isinstance(stored, dict) or not all(
        tool and isinstance(limits, list) for tool, limits in stored.items()
    ):
        raise InvalidInput(
            f"{stored!r} are no permissions; by the name of a tool, or *, they list conditions: "
            '{"refund": [["amount", "<=", "500"]], "*": []}'
        )
    return {
        tool: [When.from_json(limit) for limit in cast(list[JsonValue], limits)]
        for tool, limits in stored.items()
    }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
