"""What pydantic found wrong, in words for people."""

from collections.abc import Mapping
from typing import Any


def reason(problem: Mapping[str, Any]) -> str:
    """The message of one of `ValidationError.errors()`; a validator's own without its class."""
    message: str = problem["msg"]
    return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
