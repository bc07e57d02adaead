"""How many tokens a message takes, estimated without a network: bytes of UTF-8 over three.

The tokenizers of most current models cannot be had offline. English prose has four to five bytes to
a token, JSON and code about three, Chinese and Japanese three to four; so this is too many for
prose by a third to a half, and close for the rest. `model_calls` has what the provider counted
beside each estimate that was recorded.
"""

from typing import TYPE_CHECKING

from celeriac.codec import JsonValue, dumps

if TYPE_CHECKING:  # memories are counted where no model's library is loaded
    from pydantic_ai.messages import ModelMessage

BYTES_PER_TOKEN = 3
TOKENS_PER_MESSAGE = 4  # what providers add around each
TOKENS_PER_FILE = 1600  # a large image; other files cannot be told without their provider


def text_tokens(text: str) -> int:
    """The estimate for a text, rounded up."""
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def json_tokens(value: JsonValue) -> int:
    """The estimate for a value that is sent as JSON, such as a tool's schema."""
    return text_tokens(value if isinstance(value, str) else dumps(value))


def message_tokens(message: "ModelMessage") -> int:
    """The estimate for one message of a conversation."""
    return TOKENS_PER_MESSAGE + sum(
        _tokens(value)
        for part in message.parts
        for value in (
            getattr(part, "content", None),
            getattr(part, "args", None),
            getattr(part, "tool_name", None),
        )
    )


def _tokens(value: object) -> int:
    match value:
        case None:
            return 0
        case str():
            return text_tokens(value)
        case bool() | int() | float():
            return text_tokens(str(value))
        case dict() | list() if not _holds_file(value):
            return text_tokens(dumps(value))
        case list():
            return sum(_tokens(item) for item in value)
        case _:
            text = getattr(value, "content", None)  # a text with marks of its own
            return text_tokens(text) if isinstance(text, str) else TOKENS_PER_FILE


def _holds_file(value: object) -> bool:
    """Whether it holds anything that JSON does not have."""
    if isinstance(value, dict):
        return any(_holds_file(item) for item in value.values())
    if isinstance(value, list):
        return any(_holds_file(item) for item in value)
    return not isinstance(value, str | int | float | None)
