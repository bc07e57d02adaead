"""How an entry of a workflow's log is named, by the run that makes it and by the timer that it
waits for: `GENERATION.NUMBER`."""

from celeriac.ids import CallId

ENTRY_ID = "(entry.generation || '.' || entry.number)"
"""In SQL, that of the row called `entry`."""

GENERATION_OF_CHILD = "split_part(child.parent_call_id, '.', 1)::int"
"""In SQL, the generation of the entry that the run called `child` makes."""


def entry_id(generation: int, number: int) -> CallId:
    return CallId(f"{generation}.{number}")


def entry_of(id_: CallId) -> tuple[int, int]:
    """Its generation and its number."""
    generation, number = id_.split(".")
    return int(generation), int(number)
