"""How long something may take or wait, as a person declares it: what PostgreSQL can hold."""

MIN_SECONDS = 0.001  # a timeout of less would be one of 0 ms, which is none
MAX_SECONDS = 10 * 365 * 86_400.0
MAX_CALL_SECONDS = 20 * 86_400.0  # a statement's timeout is at most 2,147,483,647 ms


def problem(
    name: str, value: object, *, least: float = MIN_SECONDS, most: float = MAX_SECONDS
) -> str | None:
    """What is wrong with a number of seconds, or None."""
    if not isinstance(value, bool) and isinstance(value, int | float) and least <= value <= most:
        return None
    return f"{name}={value!r} is not a number of seconds from {least:g} to {most:.0f}"
