"""Memories, budgets, threads, schedules and families of runs in a browser, at every width."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from celeriac import Agent
from celeriac.client import NewSchedule
from celeriac.memory.candidate import MemoryKind
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.test_browser import HOSTILE
from tests.console.window import DESKTOP, PHONE, Window
from tests.family import Family
from tests.rememberer import ASKS, Rememberer, wish

ANSWERS = ["Kyoto, when the cherry trees are in bloom.", "Near the river Kamo, in a ryokan.", "No."]


def answer(messages: Sequence[Any]) -> Turn:
    """The next answer of its thread."""
    said = sum(type(message).__name__ == "ModelResponse" for message in messages)
    return Turn(text=ANSWERS[said % len(ANSWERS)], input_tokens=7_000, output_tokens=800)


talker = Agent("talker", ScriptedModel(answer))
guide = Agent("guide", ScriptedModel([say("done")]))
planner = Agent(
    "planner",
    ScriptedModel([Turn(calls=tuple(ToolCall("guide", {"input": n}) for n in "ab")), say("done")]),
    tools=[guide.as_tool()],
)
agency = Agent(
    "agency", ScriptedModel([call("planner", input="plan it"), say("done")]),
    tools=[planner.as_tool()],
)  # fmt: skip
LOOKS = [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [talker, guide, planner, agency])
    yield family
    family.close()


@pytest.fixture
def scene(database: Database, broker_url: str, family: Family) -> Iterator[Rememberer]:
    rememberer = Rememberer(database, broker_url)
    client = rememberer.client
    rememberer.talk(ASKS, wish())
    client.remember("trip", "The last trip went to Kyoto, in April.", user_id="alice",
                    kind=MemoryKind.EPISODIC, expires_days=365)  # fmt: skip
    client.remember("diet", {"vegetarian": True, "allergies": ["peanuts"]}, user_id="alice")
    client.remember("card", "my card is 4111 1111 1111 1111", user_id="alice")
    client.remember("seat", "Prefers window seats", user_id="bob")
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
    family.start("agency", "A week in Japan", user_id="bob", run_id="a-week")
    family.go_on(but=["guide"])
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
            "family": "/runs/a-week",
            "thread": "/threads/journeys",
        }.items():
            response = page.goto(window.url + path)
            assert response is not None
            assert response.status == 200, path
            window.shoot(f"page-{name}-{size[0]}-{scheme}")
            for fold in page.locator("summary").all():
                fold.click()
            window.assert_no_horizontal_scroll()


def test_a_memory_is_forgotten_by_keyboard(api: Api, scene: Rememberer, browser: Browser) -> None:
    with Window(browser, api.url) as window:
        page = window.sign_in(api.token("alice"), "/memories")
        expect(page.locator("[data-row]")).to_have_count(3)
        page.keyboard.press("/")
        page.keyboard.type("kyoto")
        expect(page.locator("[data-row]")).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Memory trip")).to_be_visible()
        window.shoot("console-memory")
        page.keyboard.press("f")
        expect(page.locator("#forget summary")).to_be_focused()
        assert len(scene.client.memories("alice")) == 3  # no key does it
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Forget trip for good")).to_be_focused()

        page.keyboard.press("Enter")

        expect(page.get_by_role("heading", name="Memories")).to_be_visible()
        expect(page.locator("[data-row]")).to_have_count(2)
    assert {each.key for each in scene.client.memories("alice")} == {"seat", "diet"}


def test_what_is_typed_stays_while_the_bar_beside_it_moves(
    api: Api, scene: Rememberer, browser: Browser
) -> None:
    box = "#budget-user-alice-tokens"
    with Window(browser, api.url) as window:
        page = window.sign_in(api.token("olga", "operator"), "/budgets")
        page.locator(f"{box} summary").click()
        page.locator(f"{box}-amount").fill("2500")
        scene.client.top_up_budget("user", "alice", "tokens", 1)

        expect(page.locator(box)).to_contain_text("left of 16,001")  # the page fetched itself
        expect(page.locator(f"{box}-amount")).to_have_value("2500")
        window.shoot("console-budgets")
        page.locator(f"{box}-form button").click()

        expect(page.locator(box)).to_contain_text("left of 18,501")
    (budget,) = scene.client.budgets("user", "alice")
    assert budget.hard_limit == 18_501


def test_a_word_is_said_and_the_answer_comes_by_itself(
    api: Api, scene: Rememberer, browser: Browser, family: Family
) -> None:
    scene.client.top_up_budget("user", "alice", "tokens", 100_000)
    with Window(browser, api.url, PHONE, "dark") as window:
        page = window.sign_in(api.token("alice"), "/threads/journeys")
        window.shoot("console-thread")
        page.goto(f"{window.url}/threads/home")
        expect(page.locator(".unheard")).to_contain_text("By night train, please.")

        family.go_on()

        expect(page.locator(".unheard")).to_have_count(0)
        expect(page.locator(".theirs")).to_have_count(1)
        page.get_by_label("Say something").fill("Thank you.")
        page.get_by_role("button", name="Say it").click()
        expect(page.locator(".ours").last).to_contain_text("Thank you.")
        family.go_on()
        expect(page.locator(".exchange").last).to_contain_text("completed")


def test_nothing_that_anybody_wrote_does_anything(
    api: Api, scene: Rememberer, browser: Browser, family: Family
) -> None:
    client = scene.client
    client.remember("hostile", HOSTILE, user_id="alice")
    family.start("talker", HOSTILE, user_id="alice", thread_id="hostile")
    client.say(family.start("guide", HOSTILE, user_id="alice", thread_id="spoken"), HOSTILE)
    client.add_schedule(
        "hostile", NewSchedule("talker", "@daily", {HOSTILE: HOSTILE}), user_id="alice"
    )
    shown = "<script>window.owned = 1</script>"
    with Window(browser, api.url) as window:
        page = window.sign_in(api.token("alice"))
        for path, where in {
            "/memories": "#memories",
            "/memories/default/hostile?user_id=alice": "#value",
            "/threads": "#threads",
            "/threads/hostile": "#talk",
            "/threads/spoken": ".unheard",
            "/schedules": "#schedule-hostile",
        }.items():
            page.goto(window.url + path)
            for fold in page.locator("summary").all():
                fold.click()
            expect(page.locator(where)).to_contain_text(shown)
            expect(page.locator(where)).to_contain_text("⟨U+202E⟩{{ 7*7 }}")
            assert page.evaluate("window.owned") is None, path
