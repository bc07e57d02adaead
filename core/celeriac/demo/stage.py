"""What the demo plays on: a stack of its own in a fresh folder, and a shop in it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celeriac.client import Client
from celeriac.demo.examples import ORDER_DESK
from celeriac.demo.holds import Holds
from celeriac.demo.notifications import NotificationService
from celeriac.demo.shop import Shop, load_order_desk
from celeriac.stack.service import Line
from celeriac.stack.stack import Stack
from celeriac_storage.database import Database

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Stage:
    stack: Stack
    client: Client
    database: Database
    shop: Shop
    notifications: NotificationService
    holds: Holds


@contextmanager
def set_up(
    data: Path,
    *,
    give_up: threading.Event,
    on_change: Callable[[Sequence[Line]], None] = lambda _: None,
) -> Iterator[Stage]:
    """Start everything in the folder `data`, which does not exist yet; at the end, end it all.

    The folder is left. Raises `StackFailed`, also when `give_up` is set before all are ready.
    """
    folder = data.resolve() / "shop"
    hurry = threading.Event()
    hurry.set()  # a worker may be held at a test point, which would take all of its grace
    holds = Holds(folder / "points")
    with ExitStack() as ending:
        notifications = ending.enter_context(NotificationService(folder))
        stack = Stack(
            data,
            workers=WORKERS,
            agents=str(ORDER_DESK),
            environment={**holds.environment, "ORDER_DESK_NOTIFY_URL": notifications.address},
            on_change=on_change,
        )
        ending.callback(stack.stop, hurry=hurry)
        # Meanwhile: its imports take as long as the servers do.
        thread = ending.enter_context(ThreadPoolExecutor(1))
        order_desk = thread.submit(load_order_desk)
        stack.start(give_up, hurry)
        folder.mkdir(mode=0o700)
        holds.make()
        notifications.start(give_up)
        database = Database(stack.database_url, connections=2, pre_ping=True)
        ending.callback(database.close)
        # It publishes nothing itself: the scheduler hears of each order at its commit.
        client = ending.enter_context(Client(stack.database_url))
        order_desk.result()["prepare"](stack.database_url)
        yield Stage(stack, client, database, Shop(database), notifications, holds)
