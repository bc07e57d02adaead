"""How much of a conversation a model is shown."""

from dataclasses import dataclass

from celeriac.errors import InvalidAgent

LEAST_TOKENS = 500


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The most that one model call is sent: instructions, tools and messages together.

    What does not fit is left out of the call and of nothing else: the newest messages go first, a
    call and its results go together, and the latest thing that the user said, and what opened the
    run, stay (`docs/context.md`). Raises `InvalidAgent` for fewer than `LEAST_TOKENS` tokens.
    """

    max_tokens: int = 100_000  # as `token_count` estimates them

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int):
            raise InvalidAgent(f"max_tokens is {self.max_tokens!r}; it must be a whole number")
        if self.max_tokens < LEAST_TOKENS:
            raise InvalidAgent(
                f"max_tokens is {self.max_tokens}; below {LEAST_TOKENS} no conversation is left"
            )
