"""Why a run cannot have the id that somebody chose for it."""

from sqlalchemy import Connection

from celeriac.errors import CeleriacError, InvalidInput, RunExists
from celeriac.ids import RunId
from celeriac_storage import inbox
from celeriac_storage.new_run import NewRun


def not_to_be_had(connection: Connection, new: NewRun) -> CeleriacError:
    """Why no run was created under this id. Of another tenant's run it tells nothing: whoever has
    learned its id hears what they would hear of any id that is not for them. Of another user's, it
    tells no more than that the id is taken."""
    listener = inbox.listener_under(connection, new.run_id, new.tenant_id)
    is_ours = connection.exec_driver_sql(
        "SELECT FROM celeriac.runs WHERE run_id = %s AND tenant_id = %s",
        (new.run_id, new.tenant_id),
    ).fetchone()
    if listener is not None or is_ours is not None:
        told, owner = listener or (None, None)
        return run_exists(new.run_id, told if owner == new.user_id else None)
    own = f"{new.run_id.partition('@')[0]}@{new.tenant_id}"
    return InvalidInput(
        f"a run of tenant {new.tenant_id} cannot be called {new.run_id}, and nothing was written: "
        f"an id that is chosen there ends in its name, such as {own}; or leave the id out"
    )


def run_exists(run_id: RunId, listener: RunId | None = None) -> RunExists:
    """The id is taken: by a run, or by an input that was told to the run `listener` instead."""
    if listener is not None:
        return RunExists(
            f"what run {run_id} was to start from was told to run {listener} instead, and nothing "
            f"was written now: look at that with `celeriac show {listener}`, or choose another id"
        )
    return RunExists(
        f"run {run_id} exists already and was left as it is; choose another id, or look at "
        f"it with `celeriac show {run_id}`"
    )
