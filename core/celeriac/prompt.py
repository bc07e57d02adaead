"""What a person says, as the message log keeps it.

Made without pydantic-ai, which takes half a second to import: whoever starts a run or says a word
needs nothing else of it. A test compares this with what `celeriac.messages` makes of the same text.
"""

from typing import Any

from celeriac.codec import JsonValue

# A prompt with this mark does not open a run. Message metadata is never sent to a model.
DURING_RUN: dict[str, Any] = {"during_run": True}


def prompt_body(text: str, *, opens_run: bool = True) -> dict[str, JsonValue]:
    """The stored form of the prompt that opens a run, or (`opens_run=False`) of a word during
    one."""
    body: dict[str, JsonValue] = {"kind": "request", "parts": [{"content": sendable_text(text)}]}
    if not opens_run:
        body["metadata"] = dict(DURING_RUN)
    return body


def sendable_text(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD.

    No provider can be sent one: the HTTP client fails to encode it, on every attempt, so a tool's
    stray half of an emoji would stop its run for good. The effect's own row keeps it as it was.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
