"""Starting the run that undoes another one."""

from celeriac.errors import NotAllowed
from celeriac.ids import RunId, UserId, new_run_id, new_thread_id
from celeriac_storage import rollbacks
from celeriac_storage.database import Database
from celeriac_storage.rollbacks import Wish
from celeriac_storage.starting import Started


def start(
    database: Database, run_id: RunId, from_step: int, by: UserId, *, is_published: bool
) -> tuple[Wish, Started, str]:
    """Start the rollback: what was asked for, where it stands, and its queue.

    Raises as `rollbacks.request`, after recording a refusal for lack of rights.
    """
    from celeriac_storage.admitting import word

    wish = Wish(
        run_id,
        from_step,
        by,
        new_run_id(),
        new_thread_id(),
        word(f"Roll back run {run_id} from step {from_step} on."),
        is_published,
    )
    try:
        with database.begin() as connection:
            return wish, *rollbacks.request(connection, wish)
    except NotAllowed as refused:
        with database.begin() as connection:
            rollbacks.record_denial(connection, wish, refused)
        raise
