"""Tools that another process executes: a browser, a device, a service that calls back, a person.

@external_tool
def scan_parcel(shelf: str) -> str:
    \"\"\"Ask the warehouse to scan the parcel on a shelf, and tell its number.\"\"\"
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar, overload

from celeriac.approval import Approval
from celeriac.errors import InvalidAgent
from celeriac.rollback import Rollback, RollbackName, Undo
from celeriac.tools import Tool, tool

P = ParamSpec("P")
R = TypeVar("R")


@overload
def external_tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def external_tool(
    *,
    name: str | None = None,
    version: str = "1",
    exclusive: bool = False,
    mutates_workspace: bool = False,
    verifies: bool = False,
    rollback: RollbackName | Rollback | Undo = Rollback.OUT_OF_BAND,
    approval: Approval | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def external_tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    exclusive: bool = False,
    mutates_workspace: bool = False,
    verifies: bool = False,
    rollback: RollbackName | Rollback | Undo = Rollback.OUT_OF_BAND,
    approval: Approval | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare a tool whose calls no worker executes.

    The function says what the model is told of it: its name, docstring and type hints. Its body is
    never called. The run requests the call, with all such calls beside it unless `exclusive`, and
    is paused until their results are submitted (`Client.submit`, `celeriac submit`), for as long as
    it takes and holding nothing. Its effect is `external`: what the other process does with a call
    is recorded only when it tells. The other parameters are those of `tool`.

    With `mutates_workspace` a result counts only with a receipt that says what the call did to the
    files there (`celeriac.workspace.receipts`); such calls are requested one at a time.

    Raises `InvalidAgent` as `tool` does, and if the function takes a `ToolContext`.
    """
    declare = tool(
        effect="external",
        name=name,
        version=version,
        exclusive=exclusive,
        mutates_workspace=mutates_workspace,
        verifies=verifies,
        rollback=rollback,
        approval=approval,
    )

    def make(function: Callable[P, R]) -> Tool[P, R]:
        declared = declare(function)
        try:
            return replace(declared, flags=replace(declared.flags, elsewhere=True))
        except InvalidAgent as error:
            raise InvalidAgent(f"tool {declared.name!r}: {error}") from None

    return make if function is None else make(function)
