"""What a tool declares about its calls, besides its effect."""

from dataclasses import asdict, dataclass

from celeriac.codec import JsonValue
from celeriac.states import EffectKind


@dataclass(frozen=True)
class ToolFlags:
    exclusive: bool = False
    """No other call of the run may overlap with it, whichever worker executes it."""
    stateful: bool = False
    """A call builds on what earlier calls left behind, so calls go one by one in their order."""
    mutates_workspace: bool = False
    """Changes files in the run's workspace."""
    pagination: bool = False
    """Returns one page and how to ask for the next."""
    elsewhere: bool = False
    """Another process executes the calls and submits their results."""
    verifies: bool = False
    """Runs the project's tests: its result tells `exit_code` and `output` (`celeriac.evidence`)."""
    child: bool = False
    """A call is answered by a run of another agent."""
    handoff: bool = False
    """That run goes on with the conversation, and its answer is the run's own."""
    sleeps: bool = False
    """A call only lets time pass."""

    def to_json(self) -> dict[str, JsonValue]:
        """The flags as an agent registers them; the newer ones only if they are set, so that older
        hashes stay what they are."""
        return {
            name: is_set
            for name, is_set in asdict(self).items()
            if is_set or name not in ("verifies", "child", "handoff", "sleeps")
        }

    def contradiction(
        self, effect: EffectKind, *, takes_context: bool, is_async: bool
    ) -> str | None:
        """What of a tool's declaration cannot be true at once, and what to change; else None."""
        if self.elsewhere and takes_context:
            return (
                "it has a ToolContext parameter, but another process executes its calls and never "
                "this function; drop the parameter, or declare it with @tool"
            )
        if self.verifies and effect is not EffectKind.EXTERNAL:
            return (
                f'effect="{effect}", but verifies=True: tests run code, which may do anything; '
                'declare "external"'
            )
        if effect is EffectKind.TRANSACTIONAL:
            return self._contradiction_of_transactional(takes_context, is_async)
        if effect is EffectKind.NONE and self.mutates_workspace:
            return 'effect="none" reads only, but mutates_workspace=True; declare "external"'
        if effect is EffectKind.NONE and self.stateful:
            return 'effect="none" leaves nothing behind to build on, but stateful=True; drop one'
        if effect is EffectKind.EXTERNAL and self.pagination:
            return _REPEATED.format(effect)
        return None

    def _contradiction_of_transactional(self, takes_context: bool, is_async: bool) -> str | None:
        if is_async:
            return (
                'effect="transactional" writes through ctx.connection, which is synchronous and '
                "belongs to one thread, so it cannot be an async function; use a plain def"
            )
        if not takes_context:
            return (
                'effect="transactional" writes through ctx.connection, but no parameter is a '
                "ToolContext; add one, or declare another effect"
            )
        if self.mutates_workspace:
            return (
                'effect="transactional" is undone by a rollback, which leaves files as they are, '
                'but mutates_workspace=True; declare "external"'
            )
        return _REPEATED.format(EffectKind.TRANSACTIONAL) if self.pagination else None


_REPEATED = (
    'pagination=True asks for page after page, which effect="{}" would repeat; '
    'declare effect="none" or drop it'
)
