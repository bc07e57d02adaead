"""Memories, budgets, threads, schedules and families of runs in a browser, at every width."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser

from celeriac import Agent
from celeriac.client import NewSchedule
from celeriac.memory.candidate import MemoryKind
from celeriac.scripted import ScriptedModel, Turn
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.window import DESKTOP, PHONE, Window
from tests.family import Family
from tests.rememberer import ASKS, Rememberer, wish

ANSWERS = ["Kyoto, when the cherry trees are in bloom.", "Near the river Kamo, in a ryokan.", "No."]


def answer(messages: Sequence[Any]) -> Turn:
    """The next answer of its thread."""
    said = sum(type(message).__name__ == "ModelResponse" for message in messages)
    return Turn(text=ANSWERS[said % len(ANSWERS)], input_tokens=7_000, output_tokens=800)


TALKER = Agent("talker", ScriptedModel(answer))
LOOKS = [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]


@pytest.fixture
def scene(database: Database, broker_url: str) -> Iterator[Rememberer]:
    rememberer = Rememberer(database, broker_url)
    client = rememberer.client
    rememberer.talk(ASKS, wish())
    client.remember("trip", "The last trip went to Kyoto, in April.", user_id="alice",
                    kind=MemoryKind.EPISODIC, expires_days=365)  # fmt: skip
    client.remember("diet", {"vegetarian": True, "allergies": ["peanuts"]}, user_id="alice")
    client.remember("card", "my card is 4111 1111 1111 1111", user_id="alice")
    client.remember("seat", "Prefers window seats", user_id="bob")
    family = Family(database.url, broker_url, [TALKER])
    run_id = family.start(
        "talker", "Where shall I go in spring?", user_id="alice", thread_id="journeys"
    )
    client.set_budget("tenant", "default", "usd", hard_limit=100, soft_limit=80)
    client.set_budget("user", "alice", "tokens", hard_limit=16_000, soft_limit=9_000)
    client.set_budget("thread", "journeys", "seconds", hard_limit=90, on_exceeded="fail")
    client.set_budget("run", run_id, "steps", hard_limit=2, soft_limit=1)
    family.go_on()
    for text in ("And where do I stay?", "Is it far from the station?"):
        family.start("talker", text, user_id="alice", thread_id="journeys")
        family.go_on()
    client.add_schedule(
        "morning-news",
        NewSchedule("talker", "30 7 * * mon-fri", "What is new?", "Europe/Berlin", overlap="queue"),
        user_id="alice",
    )
    client.add_schedule(
        "monthly-report", NewSchedule("talker", "0 3 1 * *", {"report": "monthly"}), user_id="bob"
    )
    for _ in range(2):
        client.trigger_schedule("morning-news", by="alice")
    client.pause_schedule("monthly-report", by="bob")
    client.start("talker", "And next year?", user_id="alice", delay=timedelta(days=300))
    client.say(family.start("talker", "And the way back?", user_id="alice", thread_id="home"),
               "By night train, please.", by="alice")  # fmt: skip
    yield rememberer
    family.close()
    rememberer.close()


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_every_page_fits(api: Api, browser: Browser, size: tuple[int, int], scheme: str) -> None:
    with Window(browser, api.url, size, scheme) as window:
        page = window.sign_in(api.token("olga", "operator"))
        for name, path in {
            "memories": "/memories",
            "memory": "/memories/default/seat?user_id=alice",
            "decisions": "/memories/decisions",
            "budgets": "/budgets",
            "threads": "/threads",
            "schedules": "/schedules",
            "thread": "/threads/journeys",
        }.items():
            response = page.goto(window.url + path)
            assert response is not None
            assert response.status == 200, path
            window.shoot(f"page-{name}-{size[0]}-{scheme}")
            for fold in page.locator("summary").all():
                fold.click()
            window.assert_no_horizontal_scroll()
