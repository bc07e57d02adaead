"""Budgets at the console: whose are shown, how full they are, who waits, and who may top up."""

from collections.abc import Iterator
from decimal import Decimal
from html import unescape
from typing import Any

import pytest

from celeriac import Agent
from celeriac.budget import Scope
from celeriac.reports import Budget
from celeriac.scripted import ScriptedModel, Turn
from celeriac.states import Phase
from celeriac_api.console.budgets import WIDTH, Bar, state_of
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Form, Visitor, Visitors
from tests.family import Family

TOP_UP = "/budgets/user/alice/tokens/top-up"
TALKER = Agent("talker", ScriptedModel([Turn(text="done", input_tokens=100, output_tokens=20)]))


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [TALKER])
    yield family
    family.close()


def limit(family: Family, scope: Scope, subject: str, measure: str, hard: int, **more: Any) -> None:
    family.client.set_budget(scope, subject, measure, hard_limit=hard, **more)


def shown(visitor: Visitor, query: str = "") -> set[str]:
    """The budgets on the page, by the ids of their boxes."""
    page = visitor.read(f"/budgets?{query}")
    return {each.partition('"')[0] for each in page.split('class="panel budget" id="budget-')[1:]}


def test_one_sees_ones_own_and_those_of_ones_threads_and_runs(
    visitors: Visitors, family: Family
) -> None:
    run_id = family.start("talker", user_id="alice", thread_id="chat")
    family.start("talker", user_id="bob", thread_id="bobs")
    limit(family, "tenant", "default", "usd", 100)
    limit(family, "user", "alice", "tokens", 10)
    limit(family, "user", "bob", "tokens", 10)
    limit(family, "thread", "chat", "steps", 10)
    limit(family, "thread", "bobs", "steps", 10)
    limit(family, "run", run_id, "seconds", 10)
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")
    rival = visitors.signed_in("alice", "admin", tenant="rival")
    own = {"user-alice-tokens", "thread-chat-steps", f"run-{run_id}-seconds"}

    assert shown(alice) == own
    assert shown(alice, "scope=thread&subject=") == {"thread-chat-steps"}
    assert shown(olga) == own | {"tenant-default-usd", "user-bob-tokens", "thread-bobs-steps"}
    assert shown(olga, "scope=user&subject=bob") == {"user-bob-tokens"}
    assert shown(rival) == set()
    assert alice.get("/budgets?scope=user&subject=bob").status_code == 403
    assert alice.get("/budgets?scope=tenant").status_code == 403
    assert alice.get("/budgets?scope=galaxy").status_code == 422


def test_a_run_that_waits_for_room_is_named_and_goes_on_after_a_top_up(
    api: Api, visitors: Visitors, family: Family
) -> None:
    limit(family, "user", "alice", "tokens", 10, soft_limit=5)
    run_id = family.start("talker", user_id="alice")
    family.step(run_id)
    assert family.run(run_id).phase == Phase.WAITING_BUDGET
    olga = visitors.signed_in("olga", "operator")

    page = unescape(olga.read("/budgets"))
    form = olga.form("/budgets", TOP_UP)
    told = [olga.send(form, amount="9000") for _ in range(2)]

    assert "1 run waits for room" in page
    assert f'href="/runs/{run_id}"' in page
    assert "waited for" in page
    assert [(each.status_code, each.headers["location"]) for each in told] == [
        (303, "/budgets?scope=user&subject=alice")
    ] * 2
    assert api.rows("SELECT hard_limit FROM celeriac.budgets") == [(Decimal(9010),)]
    assert api.rows("SELECT amount, by FROM celeriac.budget_changes WHERE amount > 0") == [
        (Decimal(9000), "olga")
    ]


def test_whoever_may_not_top_up_has_nothing_to_press_and_is_refused(
    api: Api, visitors: Visitors, family: Family
) -> None:
    limit(family, "user", "alice", "tokens", 10)
    olga = visitors.signed_in("olga", "operator")
    form = olga.form("/budgets", TOP_UP)

    def send(visitor: Visitor, form: Form = form) -> int:
        csrf = visitor.form("/budgets", "/sign-out").fields["csrf"]
        return visitor.send(form, csrf=csrf, amount="1").status_code

    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    rival = visitors.signed_in("olga", "admin", tenant="rival")
    assert TOP_UP not in alice.read("/budgets")
    assert send(alice) == 403  # his own, which he sees, but not his to raise
    assert send(bob) == 404
    assert send(rival) == 404
    assert olga.send(form, csrf=None, amount="1").status_code == 403
    for amount in ("", "-1", "0", "1e9", "lots", "1" * 30):
        assert olga.send(form, amount=amount).status_code == 422, amount
    assert api.rows("SELECT hard_limit FROM celeriac.budgets") == [(Decimal(10),)]


def test_a_waiting_runs_page_shows_the_budget_that_its_user_may_see(
    visitors: Visitors, family: Family
) -> None:
    limit(family, "user", "bob", "steps", 0)  # the first one of those that stop his run
    limit(family, "tenant", "default", "tokens", 10)
    runs = {user: family.start("talker", user_id=user) for user in ("alice", "bob")}
    for run_id in runs.values():
        family.step(run_id)
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    olga = visitors.signed_in("olga", "operator")

    def boxes(visitor: Visitor, user: str) -> int:
        return visitor.read(f"/runs/{runs[user]}").count('class="panel budget"')

    # What all of a tenant have used is no business of one of them.
    assert (boxes(alice, "alice"), boxes(bob, "bob")) == (0, 1)
    assert (boxes(olga, "alice"), boxes(olga, "bob")) == (1, 1)


@pytest.mark.parametrize(
    ("used", "reserved", "soft", "hard", "bar", "state"),
    [
        (0, 0, None, 100, Bar(0, 0, None, None), "open"),
        (25, 50, 80, 100, Bar(250, 500, 800, None), "open"),
        (75, 10, 80, 100, Bar(750, 100, 800, None), "nearly used up"),
        (100, 0, None, 100, Bar(1000, 0, None, None), "used up"),
        (200, 0, 80, 100, Bar(1000, 0, 400, 500), "used up"),
        (5, 5, None, None, Bar(500, 500, None, None), "open"),
        (0, 0, None, 0, Bar(0, 0, None, None), "used up"),
        (0, 0, None, None, Bar(0, 0, None, None), "open"),
    ],
)
def test_a_bar_is_as_long_as_what_is_gone(
    used: int, reserved: int, soft: int | None, hard: int | None, bar: Bar, state: str
) -> None:
    budget = Budget(
        "user", "alice", "tokens", None if soft is None else Decimal(soft),
        None if hard is None else Decimal(hard), "pause", Decimal(used), Decimal(reserved),
        Decimal(0), 0,
    )  # fmt: skip

    assert WIDTH == 1000
    assert (Bar.of(budget), state_of(budget)) == (bar, state)
