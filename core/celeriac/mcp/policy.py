"""What the tools of an MCP server are taken for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from celeriac import seconds
from celeriac.approval import Approval
from celeriac.errors import InvalidAgent
from celeriac.mcp.offer import OfferedTool
from celeriac.recovery import Recovery
from celeriac.states import EffectKind
from celeriac.tools import DEFAULT_TIMEOUT_SECONDS

MAX_RESULT_BYTES = 200_000


@dataclass(frozen=True, kw_only=True)
class ServerPolicy:
    """By default nothing that a server says of itself is believed: each tool may change something
    elsewhere, and what came of a lost call is for a person.

    `effects` and `idempotent` say it of single tools, by the server's own names for them, and go
    before anything else.
    """

    trusts_annotations: bool = False
    """Believe `readOnlyHint`, `idempotentHint` and `destructiveHint`."""
    trusts_errors: bool = False
    """Believe that a result which is an error means that nothing was changed."""
    effects: Mapping[str, Literal["none", "external"]] = field(default_factory=dict)
    idempotent: Collection[str] = ()
    """Tools that do a thing once however often they are called with the same arguments: a lost call
    is made again."""
    approval: Approval | None = None
    """Who must agree before a tool is called that may change something; with trusted annotations
    not before one that says that it destroys nothing."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_result_bytes: int = MAX_RESULT_BYTES
    """What is longer is cut."""

    def __post_init__(self) -> None:
        if wrong := seconds.problem(
            "timeout_seconds", self.timeout_seconds, most=seconds.MAX_CALL_SECONDS
        ):
            raise InvalidAgent(wrong)
        if self.max_result_bytes < 1:
            raise InvalidAgent(f"max_result_bytes={self.max_result_bytes!r} must be above 0")
        for name, effect in self.effects.items():
            if effect not in ("none", "external"):
                raise InvalidAgent(f"effects[{name!r}]={effect!r} is none of 'none', 'external'")

    @property
    def named(self) -> list[str]:
        """The tools that it says something of."""
        return [*self.effects, *self.idempotent]

    def kind(self, tool: OfferedTool) -> EffectKind:
        if tool.name in self.effects:
            return EffectKind(self.effects[tool.name])
        return EffectKind.NONE if self._believes(tool, "readOnlyHint") else EffectKind.EXTERNAL

    def recovery(self, tool: OfferedTool) -> Recovery:
        if self.kind(tool) is EffectKind.NONE:
            return Recovery()
        is_idempotent = tool.name in self.idempotent or self._believes(tool, "idempotentHint")
        return Recovery(on_unknown="resend" if is_idempotent else "ask")

    def approval_of(self, tool: OfferedTool) -> Approval | None:
        is_harmless = self.kind(tool) is EffectKind.NONE or self._believes(
            tool, "destructiveHint", says=False
        )
        return None if is_harmless else self.approval

    def _believes(self, tool: OfferedTool, hint: str, *, says: bool = True) -> bool:
        return self.trusts_annotations and tool.annotations.get(hint) is says
