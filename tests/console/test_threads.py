"""Threads at the console: a conversation as it was said, and what is said there."""

from collections.abc import Iterator, Sequence
from html import unescape
from typing import Any

import pytest

from celeriac import Agent, tool
from celeriac.ids import DEFAULT_TENANT, ThreadId, UserId
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from celeriac_storage.erasing import Scope, erase
from tests.api.server import Api
from tests.console.visitor import Visitor, Visitors
from tests.family import Family

HOSTILE = "<script>window.owned = 1</script>\u202e{{ 7*7 }}"


@tool(effect="none")
def look(what: str) -> str:
    """Look at something."""
    return f"{what} is fine"


def answer(messages: Sequence[Any]) -> Turn:
    """Looks once in each run, and then says how much it was told."""
    *_, last = messages
    told = [part.content for part in last.parts if type(part).__name__ == "UserPromptPart"]
    if not told:
        return say(f"All is fine {HOSTILE}")
    return Turn(text=f"Let me see, {told[-1]}", calls=(ToolCall("look", {"what": "it"}),))


talker = Agent("talker", ScriptedModel(answer), tools=[look])
specialist = Agent("specialist", ScriptedModel([say("From now on it is me.")]))
clerk = Agent(
    "clerk",
    ScriptedModel([call("hand_off_to_specialist", input="please answer")]),
    tools=[specialist.as_handoff()],
)


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [talker, clerk, specialist])
    yield family
    assert family.violations() == []
    family.close()


def conversation(visitor: Visitor, thread_id: str, query: str = "") -> str:
    page = visitor.read(f"/threads/{thread_id}{query}")
    return unescape(page.partition('id="talk"')[2].partition('id="latest"')[0])


def places(page: str, *texts: str) -> list[int]:
    return [page.index(text) for text in texts]


def test_threads_are_listed_to_whoever_may_see_them(visitors: Visitors, family: Family) -> None:
    family.start("talker", "good morning", user_id="alice", thread_id="first")
    family.start("talker", "good evening", user_id="alice", thread_id="first")
    family.start("talker", HOSTILE, user_id="bob", thread_id="second")
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")
    rival = visitors.signed_in("alice", "admin", tenant="rival")

    def listed(visitor: Visitor, query: str = "") -> set[str]:
        page = visitor.read(f"/threads{query}")
        assert "<script>window" not in page
        return {each for each in ("first", "second") if f'href="/threads/{each}"' in page}

    assert listed(alice) == {"first"}
    assert listed(olga) == {"first", "second"}
    assert listed(olga, "?user_id=bob") == {"second"}
    assert listed(rival) == set()
    assert alice.get("/threads?user_id=bob").status_code == 403
    page = alice.read("/threads")
    assert "good evening" in page
    assert "good morning" not in page
    assert "2 runs" in page


def test_pages_of_the_list_follow_each_other(api: Api, visitors: Visitors, family: Family) -> None:
    threads = [f"t{number:02}" for number in range(52)]
    for each in threads:
        family.start("talker", user_id="alice", thread_id=each)
    alice = visitors.signed_in("alice")

    first = alice.read("/threads")
    address = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = alice.read(address)
    told = api.person("alice").get("/v1/threads?limit=2").json()

    assert [each for each in threads if f'"/threads/{each}"' in first] == threads[2:]
    assert [each for each in threads if f'"/threads/{each}"' in second] == threads[:2]
    assert [each["thread_id"] for each in told["threads"]] == ["t51", "t50"]
    assert told["threads"][0]["last_run"]["thread_id"] == "t51"


def test_a_conversation_stands_as_it_was_said(visitors: Visitors, family: Family) -> None:
    first = family.start("talker", "good morning", user_id="alice", thread_id="chat")
    family.go_on()
    second = family.start("talker", "good evening", user_id="alice", thread_id="chat")
    family.client.say(second, "are you there?", by="alice")
    alice = visitors.signed_in("alice")

    page = conversation(alice, "chat")

    assert "asks for" in page
    assert "not heard yet" in page
    assert "waits for a worker" in page
    found = places(
        page, f"/runs/{first}", "good morning", "Let me see, good morning", "look", "All is fine",
        f"/runs/{second}", "good evening", "are you there?",
    )  # fmt: skip
    assert found == sorted(found)
    family.go_on()
    page = conversation(alice, "chat")
    assert "not heard yet" not in page
    assert page.count("All is fine") == 2


def test_a_conversation_that_is_handed_on_is_one(visitors: Visitors, family: Family) -> None:
    family.start("clerk", "help me", user_id="alice", thread_id="chat")
    family.go_on()

    page = conversation(visitors.signed_in("alice"), "chat")

    found = places(page, "help me", "handed on", "please answer", "From now on it is me.")
    assert found == sorted(found)
    assert 'ours"><span class="speaker">alice</span><p class="wrote">please answer' not in page


def test_a_long_thread_is_read_page_by_page(visitors: Visitors, family: Family) -> None:
    texts = [f"question {number:02}" for number in range(23)]
    for each in texts:
        family.start("talker", each, user_id="alice", thread_id="chat")
        family.go_on()
    alice = visitors.signed_in("alice")

    latest = conversation(alice, "chat")
    cursor = latest.partition('rel="prev" href="/threads/chat')[2].partition('"')[0]
    before = conversation(alice, "chat", cursor)

    assert [each for each in texts if f"see, {each}" in latest] == texts[3:]
    assert [each for each in texts if f"see, {each}" in before] == texts[:3]


def test_what_is_said_starts_a_run_or_reaches_the_one_that_goes_on(
    api: Api, visitors: Visitors, family: Family
) -> None:
    family.start("talker", "good morning", user_id="alice", thread_id="chat")
    family.go_on()
    alice = visitors.signed_in("alice")
    at = "/threads/chat/messages"
    form = alice.form("/threads/chat", at)

    told = [alice.send(form, text="and\r\nnow?") for _ in range(2)]
    again = alice.send(alice.form("/threads/chat", at), text="quick!")

    assert [each.status_code for each in (*told, again)] == [303] * 3
    assert api.rows("SELECT input, user_id FROM celeriac.runs ORDER BY created_at") == [
        ("good morning", "alice"),
        ("and\nnow?", "alice"),
    ]
    assert api.rows("SELECT body -> 'parts' -> 0 ->> 'content' FROM celeriac.inbox") == [
        ("quick!",)
    ]
    family.go_on()
    assert "Let me see, quick!" in conversation(alice, "chat")


def test_an_operator_speaks_for_the_threads_user(
    api: Api, visitors: Visitors, family: Family
) -> None:
    family.start("talker", "good morning", user_id="alice", thread_id="chat")
    family.go_on()
    olga = visitors.signed_in("olga", "operator")

    for text in ("hi", "are you there?"):
        form = olga.form("/threads/chat", "/threads/chat/messages")
        assert olga.send(form, text=text).status_code == 303

    assert api.rows("SELECT author FROM celeriac.inbox") == [("olga",)]
    assert api.rows("SELECT user_id, status FROM celeriac.runs ORDER BY created_at") == [
        ("alice", RunStatus.COMPLETED),
        ("alice", RunStatus.QUEUED),
    ]


def test_what_is_refused_is_still_there_to_be_sent_again(
    api: Api, visitors: Visitors, family: Family
) -> None:
    family.start("talker", "good morning", user_id="alice", thread_id="chat")
    alice = visitors.signed_in("alice")
    family.go_on()
    form = alice.form("/threads/chat", "/threads/chat/messages")

    refused = alice.send(form, text=f"hello {HOSTILE}", agent="nobody")

    assert refused.status_code == 422
    assert "hello &lt;script&gt;" in refused.text
    assert "<script>window" not in refused.text
    assert len(api.rows("SELECT FROM celeriac.runs")) == 1


def test_anothers_thread_does_not_exist_and_nothing_is_said_there(
    api: Api, visitors: Visitors, family: Family
) -> None:
    family.start("talker", "good morning", user_id="alice", thread_id="chat")
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    rival = visitors.signed_in("alice", "admin", tenant="rival")
    form = alice.form("/threads/chat", "/threads/chat/messages")

    for visitor in (bob, rival):
        csrf = visitor.form("/threads", "/sign-out").fields["csrf"]
        assert visitor.get("/threads/chat").status_code == 404
        assert visitor.send(form, csrf=csrf, text="mine now").status_code == 404
    assert alice.send(form, csrf=None, text="x").status_code == 403
    assert api.rows("SELECT FROM celeriac.inbox") == []
    assert len(api.rows("SELECT FROM celeriac.runs")) == 1
    assert {each[:2] for each in api.denials()} == {
        ("bob", "http.show_thread"),
        ("bob", "http.start_run"),
        ("alice", "http.show_thread"),
        ("alice", "http.start_run"),
    }


def test_of_an_erased_conversation_nothing_is_left(visitors: Visitors, family: Family) -> None:

    family.start("talker", "my secret", user_id="alice", thread_id="chat")
    family.go_on()
    erase(family.database, Scope(DEFAULT_TENANT, thread_id=ThreadId("chat")), UserId("ada"))
    alice = visitors.signed_in("alice")

    page = conversation(alice, "chat")

    assert "is erased" in page
    assert "my secret" not in page + alice.read("/threads")
