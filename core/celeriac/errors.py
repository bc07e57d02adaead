"""Everything that Celeriac raises on purpose.

    CeleriacError
    ├── InvalidInput            the caller's words cannot be used; nothing was written
    │   ├── InvalidAgent        an Agent or tool that cannot be registered
    │   ├── InvalidArguments    what the model or an editor gave a tool; nothing was executed
    │   ├── UnknownAgent
    │   ├── UnknownRun
    │   └── UnknownCall
    ├── Conflict                the words are fine, the state of the run does not allow it
    │   ├── RunExists
    │   ├── ThreadBusy
    │   └── WrongOwner
    ├── Fenced                  this claim no longer holds its step; nothing was written
    ├── Unavailable             a server does not answer; trying later may help
    │   ├── DatabaseUnavailable
    │   └── BrokerUnavailable
    ├── SchemaMismatch          the database is not migrated, or is newer than this code
    ├── NoConnection            a tool asked for a connection that its effect does not give it
    └── ToolError               raised by a tool: it failed and certainly changed nothing

A message says what happened and with which values, why, and what to do now.
"""


class CeleriacError(Exception):
    """Base of all errors here."""


class InvalidInput(CeleriacError):
    """The caller's words cannot be used. Checked before anything is written."""


class InvalidAgent(InvalidInput):
    """An agent or a tool contradicts itself, so that it cannot be registered."""


class InvalidArguments(InvalidInput):
    """A tool cannot take these arguments. The model reads the message; nothing was executed."""


class UnknownAgent(InvalidInput):
    """No agent of that name is known here or to any worker."""


class UnknownRun(InvalidInput):
    """There is no run of that id."""


class UnknownCall(InvalidInput):
    """The run has no tool call of that id."""


class Conflict(CeleriacError):
    """The run or thread is in a state that does not allow this. Nothing was changed."""


class RunExists(Conflict):
    """A run of that id exists already and was left as it is."""


class ThreadBusy(Conflict):
    """The thread has an active run and `on_busy` is `reject`."""


class WrongOwner(Conflict):
    """The thread belongs to another user."""


class Fenced(CeleriacError):
    """This claim no longer holds its step: another worker does. The whole transaction rolled
    back.
    """


class Unavailable(CeleriacError):
    """A server does not answer. The message says which one, at what address, and what to do."""


class DatabaseUnavailable(Unavailable):
    """PostgreSQL does not answer."""


class BrokerUnavailable(Unavailable):
    """The broker does not answer."""


class SchemaMismatch(CeleriacError):
    """The database's schema is older or newer than this code expects."""


class NoConnection(CeleriacError):
    """`ctx.connection` was read in a tool that does not declare `effect="transactional"`.

    Not a ToolError: the tool may have changed something before it asked.
    """


class ToolError(CeleriacError):
    """Raise it in a tool that failed and certainly changed nothing; the model reads the message.

    Any other exception from a tool with `effect="external"` leaves the outcome unknown, because it
    may have come after the change, and the run waits for a person (`docs/effects.md`).
    """
