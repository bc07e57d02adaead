"""The caller's trace, as W3C Trace Context writes it: what a run's steps are told to belong to."""

import re
import sys

_FORM = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def checked(given: str | None) -> str | None:
    """`given` if it is a traceparent, else None: a wrong one is ignored, as the recommendation has
    it (Trace Context, section 3.2.2)."""
    if given is None or _FORM.fullmatch(given) is None or given.startswith("ff"):
        return None
    return given


def current() -> str | None:
    """That of the span in which the caller is; None without one.

    Nothing is imported: whoever is in a span has OpenTelemetry loaded.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
