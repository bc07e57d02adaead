"""Schedules and timers at the console: when what starts, what came of it, and who changes it."""

from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any, get_args

import pytest

from celeriac import Agent
from celeriac.client import NewSchedule
from celeriac.schedule import CatchUp, Overlap
from celeriac.scripted import ScriptedModel, call, say
from celeriac.sleeping import sleep
from celeriac_api.console.schedules import CATCH_UPS, OVERLAPS
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Form, Visitor, Visitors
from tests.family import Family

HOSTILE = "<script>window.owned = 1</script>\u202e{{ 7*7 }}"

talker = Agent("talker", ScriptedModel([say("done")]))
sleeper = Agent(
    "sleeper", ScriptedModel([call("sleep", seconds=3600), say("awake")]), tools=[sleep]
)


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [talker, sleeper])
    yield family
    assert family.violations() == []
    family.close()


def add(family: Family, name: str, user: str = "alice", agent: str = "talker", **more: Any) -> None:
    new = NewSchedule(agent, "30 2 * * *", more.pop("input", "hello"), **more)
    family.client.add_schedule(name, new, user_id=user, by=user)


def form(visitor: Visitor, name: str, act: str) -> Form:
    return visitor.form("/schedules", f"/schedules/{name}/{act}")


def test_next_times_stand_in_the_zone_of_their_schedule(
    api: Api, alice: Visitor, family: Family
) -> None:
    add(family, "nightly", time_zone="Asia/Tokyo")

    page = alice.read("/schedules")
    told = api.person("alice").get("/v1/schedules/nightly").json()

    assert page.count("02:30 JST") == 3 == len(told["next_times"])
    assert "Asia/Tokyo" in page
    assert "T17:30:00+00:00" in page  # what a program reads
    assert "Nothing yet." in page


def test_a_schedule_is_triggered_paused_resumed_and_removed_once_each(
    api: Api, alice: Visitor, family: Family
) -> None:
    add(family, "nightly")

    trigger = form(alice, "nightly", "trigger")
    told = [alice.send(trigger) for _ in range(2)]
    assert [(each.status_code, each.headers["location"]) for each in told] == [
        (303, "/schedules#schedule-nightly")
    ] * 2
    ((run_id, user),) = api.rows("SELECT run_id, user_id FROM celeriac.runs")
    assert user == "alice"
    page = alice.read("/schedules")
    assert f'href="/runs/{run_id}"' in page
    assert "by alice" in page

    assert alice.send(form(alice, "nightly", "trigger")).status_code == 303
    assert ">skipped<" in alice.read("/schedules")  # the first has not ended

    alice.send(form(alice, "nightly", "pause"))
    assert ">paused<" in alice.read("/schedules")
    alice.send(form(alice, "nightly", "resume"))
    assert ">active<" in alice.read("/schedules")
    assert alice.send(form(alice, "nightly", "remove")).headers["location"] == "/schedules"
    assert "nightly" not in alice.read("/schedules")
    acts = "SELECT actor, action FROM celeriac.audit WHERE action LIKE 'schedule.%%' ORDER BY 2"
    assert {actor for actor, _ in api.rows(acts)} == {"alice"}
    assert {"schedule.pause", "schedule.resume", "schedule.remove"} <= {
        action for _, action in api.rows(acts)
    }


def test_anothers_schedule_does_not_exist_and_is_not_changed(
    api: Api, visitors: Visitors, family: Family
) -> None:
    add(family, "nightly", "alice")
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    olga = visitors.signed_in("olga", "operator")
    rival = visitors.signed_in("alice", "admin", tenant="rival")
    before = api.rows("SELECT * FROM celeriac.schedules")

    for visitor in (bob, rival):
        assert "nightly" not in visitor.read("/schedules")
        csrf = visitor.form("/schedules", "/sign-out").fields["csrf"]
        for act in ("pause", "trigger", "remove"):
            assert visitor.send(form(alice, "nightly", act), csrf=csrf).status_code == 404
    assert alice.send(form(alice, "nightly", "remove"), csrf=None).status_code == 403

    assert api.rows("SELECT * FROM celeriac.schedules") == before
    assert api.rows("SELECT FROM celeriac.runs") == []
    assert len(api.denials()) == 6
    assert olga.send(form(olga, "nightly", "pause")).status_code == 303


def test_timers_are_those_of_whoever_looks_the_next_one_first(
    api: Api, visitors: Visitors, family: Family
) -> None:
    later = family.start("talker", user_id="alice", delay=timedelta(hours=2))
    asleep = family.start("sleeper", user_id="alice")
    of_bob = family.start("talker", user_id="bob", delay=timedelta(minutes=10))
    for _ in range(2):
        family.step(asleep)
    alice, olga = visitors.signed_in("alice"), visitors.signed_in("olga", "operator")

    def listed(visitor: Visitor) -> list[str]:
        page = visitor.read("/schedules").partition('id="timers-title"')[2]
        return [each.partition('"')[0] for each in page.split('href="/runs/')[1:]]

    assert listed(alice) == [asleep, later]
    assert listed(olga) == [of_bob, asleep, later]
    page = alice.read("/schedules")
    assert "begins then" in page
    assert "sleeps, 0.0" in page
    told = api.person("alice").get("/v1/timers").json()["timers"]
    assert [(each["run_id"], each["timer_id"]) for each in told] == [
        (asleep, "0.0"),
        (later, "start"),
    ]
    assert api.person("alice", tenant="rival").get("/v1/timers").json() == {"timers": []}
    family.client.cancel(later)
    assert listed(alice) == [asleep]


def test_what_a_schedule_says_is_never_markup(api: Api, alice: Visitor, family: Family) -> None:
    add(family, "hostile", input={HOSTILE: HOSTILE})
    named = {"schedule_id": HOSTILE, "agent": "talker", "input": "x", "cron": "@daily"}

    page = alice.read("/schedules")

    assert api.person("alice").post("/v1/schedules", json=named).status_code == 422
    assert "<script>window" not in page
    assert "\u202e" not in page
    assert unescape(page).count("<script>window.owned = 1</script>⟨U+202E⟩{{ 7*7 }}") == 2


def test_every_rule_has_its_words() -> None:
    assert OVERLAPS.keys() == {*get_args(Overlap)}
    assert CATCH_UPS.keys() == {*get_args(CatchUp)}
