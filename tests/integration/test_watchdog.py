"""A worker gives up only when messages wait while it has room for them and takes none."""

import threading
from collections.abc import Iterator

import pytest
from celery import Celery

from celeriac.ids import new_run_id
from celeriac.settings import load_settings
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from celeriac_tasks.watchdog import Watchdog

CHECK_SECONDS = 0.05
SILENCE_SECONDS = 0.3
CALM_SECONDS = 4 * SILENCE_SECONDS  # whoever has not given up by then will not
DEADLINE_SECONDS = 10.0

NOBODY = "consumed-by-nobody"


@pytest.fixture
def app(broker_url: str) -> Celery:
    return make_app(load_settings(broker_url=broker_url, queues=NOBODY))


class Guarded:
    """A watchdog over queues that nobody consumes, and what it was told and has done."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.has_free_slots = True
        self.given_up = threading.Event()
        self.times_given_up = 0
        self.checked = threading.Event()
        self.watchdog = Watchdog(
            app,
            [f"{NOBODY}-else", NOBODY],
            has_free_slots=self._look,
            give_up=self._give_up,
            check_seconds=CHECK_SECONDS,
            silence_seconds=SILENCE_SECONDS,
        )

    def publish(self) -> None:
        Publisher(self._app).publish(new_run_id(), 0, NOBODY)
        assert Broker(self._app).queue_length(NOBODY) == 1

    def gives_up(self, seconds: float = DEADLINE_SECONDS) -> bool:
        """Whether it does so in time; it has looked at least once by then."""
        self.checked.clear()
        given_up = self.given_up.wait(seconds)
        assert given_up or self.checked.is_set(), "the watchdog sleeps"
        return given_up

    def _look(self) -> bool:
        self.checked.set()
        return self.has_free_slots

    def _give_up(self) -> None:
        self.times_given_up += 1
        self.given_up.set()


@pytest.fixture
def guarded(app: Celery) -> Iterator[Guarded]:
    guarded = Guarded(app)
    guarded.watchdog.start()
    yield guarded
    guarded.watchdog.stop()


def test_with_free_slots_and_a_message_waiting_the_worker_gives_up_once(guarded: Guarded) -> None:
    guarded.publish()

    assert guarded.gives_up()
    threading.Event().wait(2 * CHECK_SECONDS + SILENCE_SECONDS)
    assert guarded.times_given_up == 1


def test_without_messages_the_worker_stays_however_long_it_is_idle(guarded: Guarded) -> None:
    assert not guarded.gives_up(CALM_SECONDS)

    guarded.publish()
    assert guarded.gives_up()


def test_a_worker_without_free_slots_stays_however_long_messages_wait(guarded: Guarded) -> None:
    guarded.has_free_slots = False
    guarded.publish()
    assert not guarded.gives_up(CALM_SECONDS)

    guarded.has_free_slots = True
    assert guarded.gives_up()


def test_a_worker_that_takes_messages_stays_however_many_wait(guarded: Guarded) -> None:
    guarded.publish()
    beat = threading.Event()

    def take_messages() -> None:
        while not beat.wait(CHECK_SECONDS):
            guarded.watchdog.note_message()

    consumer = threading.Thread(target=take_messages, daemon=True)
    consumer.start()
    assert not guarded.gives_up(CALM_SECONDS)

    beat.set()
    consumer.join()
    assert guarded.gives_up(), "the consumer fell silent"


def test_a_stopped_watchdog_ends_nobody(guarded: Guarded) -> None:
    guarded.watchdog.stop()
    guarded.publish()

    assert not guarded.given_up.wait(CALM_SECONDS)


def test_a_broker_that_is_away_is_no_silence_of_the_worker() -> None:
    with_no_broker = make_app(load_settings(broker_url="redis://127.0.0.1:1/0", queues=NOBODY))
    guarded = Guarded(with_no_broker)
    guarded.watchdog.start()
    try:
        assert not guarded.gives_up(CALM_SECONDS)
    finally:
        guarded.watchdog.stop()
