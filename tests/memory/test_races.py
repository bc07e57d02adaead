"""Who changes a memory at the same time as others: one does, and the rest are told."""

# features: 000-21, 000-20
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from celeriac import Client
from celeriac.reports import Remembered
from celeriac_storage.audit import audit
from celeriac_storage.database import Database

AT_ONCE = 8


def race(database: Database, replaces_version: int | None) -> list[Remembered]:
    together = Barrier(AT_ONCE)
    with Client(database.url) as client:

        def remember(number: int) -> Remembered:
            together.wait(60)
            return client.remember(
                "seat", f"Row {number}", user_id="alice", replaces_version=replaces_version
            )

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(remember, range(AT_ONCE)))


def test_of_those_who_remember_the_same_key_at_once_one_does(database: Database) -> None:
    for replaced in (None, 1, 2):
        done = race(database, replaced)

        assert sorted(each.reason for each in done) == [
            *["conflict"] * (AT_ONCE - 1),
            "explicit_request",
        ]
        assert {each.version for each in done} == {(replaced or 0) + 1}
    assert audit(database) == []
