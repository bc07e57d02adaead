"""What a server's answer is to the model: JSON or text, and not too much of it."""

from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, dumps, stored_form

if TYPE_CHECKING:
    from mcp.types import CallToolResult


def read_result(answer: "CallToolResult", max_bytes: int) -> JsonValue:
    """The structured content if there is any, else the text. Pictures, sounds and files are only
    named, and what is longer than `max_bytes` is cut."""
    structured = answer.structured_content
    if structured is not None and not answer.is_error:
        value = stored_form(structured)
        written = dumps(value)
        return value if len(written.encode()) <= max_bytes else _cut(written, max_bytes)
    return _cut("\n".join(_text(part) for part in answer.content), max_bytes)


def _text(part: Any) -> str:
    match part.type:
        case "text":
            return str(part.text)
        case "resource" if hasattr(part.resource, "text"):
            return str(part.resource.text)
        case "resource_link":
            return f"[a link to {part.uri}]"
        case kind:
            about = getattr(part, "mime_type", None) or kind
            return f"[{about}, which is left out]"


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode(errors="replace")
    if len(data) <= max_bytes:
        return text
    return f"{data[:max_bytes].decode(errors='ignore')}… [cut: it has {len(data)} bytes]"
