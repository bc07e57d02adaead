"""Memories at the console: whose are shown, where they come from, and who has them forgotten."""

from collections.abc import Iterator
from html import unescape

import pytest

from celeriac.memory.candidate import MemoryKind, Origin
from celeriac.memory.policy import Reason
from celeriac_api.console.memories import ORIGINS, REASONS
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Visitor, Visitors
from tests.rememberer import ASKS, Rememberer, wish

SEAT = "/memories/default/seat?user_id=alice"
FORGET_SEAT = "/memories/default/seat/forget?user_id=alice"
HOSTILE = "<script>window.owned = 1</script>\u202e{{ 7*7 }}"


@pytest.fixture
def rememberer(database: Database, broker_url: str) -> Iterator[Rememberer]:
    rememberer = Rememberer(database, broker_url)
    yield rememberer
    rememberer.close()


def live(api: Api) -> list[tuple[str, str]]:
    return [
        (user, key)
        for user, key in api.rows(
            "SELECT user_id, memory_key FROM celeriac.memories WHERE deleted_at IS NULL"
            " ORDER BY 1, 2"
        )
    ]


def test_a_memory_is_shown_with_its_source_and_the_decision_about_it(
    api: Api, alice: Visitor, rememberer: Rememberer
) -> None:
    run_id = rememberer.talk(ASKS, wish())
    ((policy,),) = api.rows("SELECT policy_version FROM celeriac.memory_decisions")

    listed, shown = (unescape(alice.read(path)) for path in ("/memories", SEAT))

    assert f'href="{SEAT}"' in listed
    assert "Prefers aisle seats" in listed
    for fact in (
        "Prefers aisle seats",
        "semantic",
        "version 1",
        REASONS[Reason.EXPLICIT_REQUEST],
        ORIGINS[Origin.USER],
        f'href="/runs/{run_id}"',
        policy,
    ):
        assert fact in shown, fact


def test_memories_are_searched_within_what_one_may_see(
    visitors: Visitors, rememberer: Rememberer
) -> None:
    client = rememberer.client
    client.remember("seat", "Prefers aisle seats", user_id="alice")
    client.remember("trip", "Went to Kyoto", user_id="alice", kind=MemoryKind.EPISODIC)
    client.remember("seat", "Prefers window seats", user_id="bob")
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")
    texts = ("aisle", "Kyoto", "window")

    def listed(visitor: Visitor, query: str) -> set[str]:
        page = visitor.read(f"/memories?{query}")
        return {each for each in texts if f">{each}" in page or f" {each}" in page}

    assert listed(alice, "") == {"aisle", "Kyoto"}
    assert listed(olga, "") == set(texts)
    assert listed(olga, "user_id=bob&kind=&search=") == {"window"}
    assert listed(olga, "search=seats") == {"aisle", "window"}
    assert listed(alice, "search=seats") == {"aisle"}
    assert listed(alice, "kind=episodic") == {"Kyoto"}
    assert listed(alice, "search=%25") == set()  # no pattern
    assert alice.get("/memories?user_id=bob").status_code == 403
    assert alice.get("/memories/decisions?user_id=bob").status_code == 403
    assert alice.get("/memories?kind=secret").status_code == 400
    assert alice.get("/memories/decisions?only=all").status_code == 422


def test_what_was_refused_is_listed_with_its_reason_and_without_its_content(
    api: Api, visitors: Visitors
) -> None:
    api.person("alice").put(
        "/v1/memories/default/card", json={"value": "my card is 4111 1111 1111 1111"}
    )
    api.person("alice").put("/v1/memories/default/seat", json={"value": "aisle"})
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")

    refused, kept = (alice.read(f"/memories/decisions?only={each}") for each in ("refused", "kept"))

    assert (">card<" in refused, ">seat<" in refused) == (True, False)
    assert (">card<" in kept, ">seat<" in kept) == (False, True)
    assert REASONS[Reason.SENSITIVE] in refused
    assert "4111 1111" not in refused
    assert ">card<" not in bob.read("/memories/decisions")


def test_forgetting_asks_once_more_and_is_done_once(api: Api, visitors: Visitors) -> None:
    for user in ("alice", "bob"):
        api.person(user).put("/v1/memories/default/seat", json={"value": "aisle"})
    alice = visitors.signed_in("alice")
    form = alice.form(SEAT, FORGET_SEAT)

    told = [alice.send(form) for _ in range(2)]

    assert [(each.status_code, each.headers["location"]) for each in told] == [
        (303, "/memories?user_id=alice")
    ] * 2
    assert live(api) == [("bob", "seat")]
    assert alice.get(SEAT).status_code == 404
    assert ">seat<" not in alice.read("/memories")
    assert ">seat<" in alice.read("/memories/decisions")
    # The same form about another memory is another request.
    assert alice.send(form, idempotency_key="another").status_code == 404


def test_anothers_memory_does_not_exist_and_is_not_touched(api: Api, visitors: Visitors) -> None:
    api.person("alice").put("/v1/memories/default/seat", json={"value": "aisle"})
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    rival = visitors.signed_in("alice", "admin", tenant="rival")
    form = alice.form(SEAT, FORGET_SEAT)

    for visitor in (bob, rival):
        csrf = visitor.form("/memories", "/sign-out").fields["csrf"]
        assert visitor.get(SEAT).status_code == 404
        assert visitor.send(form, csrf=csrf).status_code == 404
        assert ">seat<" not in visitor.read("/memories") + visitor.read("/memories/decisions")
    assert alice.send(form, csrf=None).status_code == 403
    assert live(api) == [("alice", "seat")]
    assert {each[:2] for each in api.denials()} == {
        ("bob", "http.show_memory"),
        ("bob", "http.forget"),
        ("alice", "http.show_memory"),
        ("alice", "http.forget"),
    }


def test_an_operator_has_it_forgotten_for_its_owner(api: Api, visitors: Visitors) -> None:
    api.person("alice").put("/v1/memories/default/seat", json={"value": "aisle"})
    olga = visitors.signed_in("olga", "operator")

    assert olga.send(olga.form(SEAT, FORGET_SEAT)).status_code == 303

    assert live(api) == []
    assert api.rows("SELECT actor, object FROM celeriac.audit WHERE action = 'memory.forget'") == [
        ("olga", "alice/default/seat")
    ]


def test_what_is_remembered_is_never_markup(api: Api, alice: Visitor) -> None:
    api.person("alice").put("/v1/memories/default/über", json={"value": HOSTILE})

    page = alice.read("/memories")
    address = page.partition('<a class="row" href="')[2].partition('"')[0]
    page += alice.read(address.replace("&amp;", "&"))

    assert "<script>window" not in page
    assert "&lt;script&gt;window" in page
    assert "⟨U+202E⟩{{ 7*7 }}" in page
    assert "\u202e" not in page


def test_every_reason_and_every_origin_has_its_words() -> None:
    assert REASONS.keys() == {*Reason}
    assert ORIGINS.keys() == {*Origin}
