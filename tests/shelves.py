"""Tools about a shelf, for tests of what goes on around calls."""

from celeriac import Approval, tool


@tool(effect="none")
def glance(shelf: str) -> str:
    """Look at a shelf."""
    return shelf


@tool(effect="external", approval=Approval())
def throw_away(shelf: str) -> str:
    """Throw away what is on a shelf."""
    return shelf
