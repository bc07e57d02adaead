"""What a workflow's code is told that does not do what its log says."""

from celeriac.codec import JsonValue, dumps
from celeriac.workflows.entry import Asked, End, EndKind

MAX_SHOWN_CHARACTERS = 200  # of one entry's arguments


def diverged(workflow: str, logged: Asked, does: str, *, is_retry: bool) -> End:
    """The code of today `does` something else than what was `logged` as next; with `is_retry` in
    the first turn of a run that retries another one."""
    # An undo is not asked for again, once what has failed is made anew.
    because = (
        "If the run that failed has asked for that only because it failed, as for what takes "
        "something back, no code can go on from it: `celeriac cancel` this run, and start a new "
        "one. Else let workers"
        if is_retry
        else "Let workers"
    )
    message = (
        f"the code of workflow {workflow} does not do again what its log says: entry "
        f"{logged.number} of the log is {named(logged)}, and there the code {does}. {because} "
        "have code that does the same up to there, with ctx.version(...) where it is to differ, "
        "and `celeriac retry` the run"
    )
    error: dict[str, JsonValue] = {"kind": "diverged", "message": message, "entry": logged.number}
    return End(EndKind.DIVERGED, error=error)


def named(asked: Asked) -> str:
    """`activity ship {"sku": "A-1"}`"""
    said = f"{asked.kind} {asked.name}"
    if asked.arguments is None:
        return said
    shown = dumps(asked.arguments)
    if len(shown) > MAX_SHOWN_CHARACTERS:
        shown = shown[:MAX_SHOWN_CHARACTERS] + "…"
    return f"{said} {shown}"
