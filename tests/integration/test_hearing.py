"""Who waits for a model hears that its run is to stop, whoever else waited for that run."""

import threading

from celeriac_storage import requests
from celeriac_storage.database import Database
from celeriac_tasks.hearing import Hearing
from tests.steps_by_hand import ALICE, Hand


def test_the_end_of_another_wait_for_the_same_run_ends_no_hearing(database: Database) -> None:
    """As of a step that has lost its claim, and whose run this process has claimed again."""
    hand = Hand(database)
    run_id = hand.start()
    hand.claim(run_id)
    hearing, is_told = Hearing(database), threading.Event()

    with hearing.waiting(run_id, is_told.set) as wait:
        with hearing.waiting(run_id, lambda: None):
            pass
        with database.begin() as connection:
            requests.request_cancel(connection, run_id, ALICE)

        assert is_told.wait(20)
    assert wait.is_over
    hearing.close()
