"""A workflow's page shows its log, and tells its code what it waits to hear of."""

from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from celeriac import ToolError, WorkflowContext, tool, workflow
from celeriac.errors import ActivityFailed
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Visitor, Visitors
from tests.console.window import DESKTOP, PHONE, Window
from tests.family import Family

HOSTILE = "<script>window.owned = 1</script>\u202e{{ 7*7 }}"


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(effect="none")
def refuse(why: str) -> str:
    """Never do it."""
    raise ToolError(why)


@workflow(tools=[double, refuse])
async def ship_order(ctx: WorkflowContext, number: int) -> Any:
    await ctx.gather(ctx.activity(double, number=number), ctx.activity(double, number=5))
    with suppress(ActivityFailed):
        await ctx.activity(refuse, why=HOSTILE)
    return await ctx.wait_event("paid")


@workflow(tools=[double])
async def count_down(ctx: WorkflowContext, number: int) -> None:
    if number:
        await ctx.activity(double, number=number)
        ctx.continue_as_new(number - 1)
    await ctx.wait_event("done")


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    family = Family(database.url, broker_url, [ship_order, count_down])
    yield family
    assert family.violations() == []
    family.close()


def entries(visitor: Visitor, run_id: str) -> list[str]:
    log = visitor.read(f"/runs/{run_id}").partition('id="log"')[2].partition("</table>")[0]
    return [unescape(each) for each in log.split('<tbody id="entry-')[1:]]


def test_the_log_says_what_was_asked_for_and_what_came_of_it(
    visitors: Visitors, family: Family
) -> None:
    run_id = family.start("ship_order", 4, user_id="alice")
    family.go_on()
    alice = visitors.signed_in("alice")

    log = entries(alice, run_id)

    assert len(log) == 4
    for entry, name, state in zip(
        log, ("double", "double", "refuse", "paid"), ("completed", "completed", "failed", "open"),
        strict=True,
    ):  # fmt: skip
        assert f">{name}<" in entry
        assert f">{state}<" in entry
    assert "waited for" in log[3]
    ((of_double,),) = family.rows(
        "SELECT made_by FROM celeriac.activities WHERE run_id = %s AND number = 0", run_id
    )
    assert f'href="/runs/{of_double}"' in log[0]
    ((worker,),) = family.rows("SELECT worker_id FROM celeriac.runs WHERE run_id = %s", of_double)
    assert f'<td class="worker">{worker}</td>' in log[0]
    back = f'entry 0 of the log of <a href="/runs/{run_id}?generation=0#entry-0">{run_id}</a>'
    assert back in alice.read(f"/runs/{of_double}")
    assert "<script>window.owned = 1</script>⟨U+202E⟩{{ 7*7 }}" in log[2]
    assert "<script>window" not in alice.read(f"/runs/{run_id}")


def test_the_logs_from_before_it_began_again_are_there(visitors: Visitors, family: Family) -> None:
    run_id = family.start("count_down", 2, user_id="alice")
    alice = visitors.signed_in("alice")
    family.go_on()
    at = f"/runs/{run_id}"

    logs = [entries(alice, f"{run_id}?generation={each}") for each in range(3)]

    assert [[f">{word}<" in entry for word in ("double", "done")] for (entry,) in logs] == [
        [True, False], [True, False], [False, True],
    ]  # fmt: skip
    assert entries(alice, run_id) == logs[2]
    assert f'rel="prev" href="{at}?generation=1"' in alice.read(at)
    assert f'href="{at}">The present log' in alice.read(f"{at}?generation=0")
    assert 'rel="prev"' not in alice.read(f"{at}?generation=0")
    assert entries(alice, f"{run_id}?generation=2000000000") == logs[2]
    (made_by,) = (row[0] for row in family.rows(
        "SELECT made_by FROM celeriac.activities WHERE run_id = %s AND generation = 1", run_id
    ))  # fmt: skip
    assert f'href="{at}?generation=1#entry-0"' in alice.read(f"/runs/{made_by}")


def test_activities_are_listed_only_if_asked_for(visitors: Visitors, family: Family) -> None:
    run_id = family.start("ship_order", 4, user_id="alice")
    family.go_on()
    alice = visitors.signed_in("alice")
    ((of_double,),) = family.rows(
        "SELECT made_by FROM celeriac.activities WHERE run_id = %s AND number = 0", run_id
    )

    listed = [
        [f'id="row-{each}"' in alice.read(f"/runs{query}") for each in (run_id, of_double)]
        for query in ("", "?activities=false", "?activities=true")
    ]

    assert listed == [[True, False], [True, False], [True, True]]
    assert 'name="activities" value="true" checked' in alice.read("/runs?activities=true")


def test_its_code_is_told_once_what_it_waits_for(
    api: Api, visitors: Visitors, family: Family
) -> None:
    run_id = family.start("ship_order", 4, user_id="alice")
    family.go_on()
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    at = f"/runs/{run_id}"
    form = alice.form(at, f"{at}/events")

    csrf = bob.form("/runs", "/sign-out").fields["csrf"]
    assert bob.send(form, csrf=csrf).status_code == 404
    assert alice.send(form, csrf=None).status_code == 403
    assert alice.send(form, data="{no JSON").status_code == 422
    assert api.rows("SELECT FROM celeriac.mailbox") == []
    told = [alice.send(form, data='{"cents": 250}') for _ in range(2)]

    assert [each.status_code for each in told] == [303, 303]
    assert api.rows("SELECT name, body, sent_by FROM celeriac.mailbox") == [
        ("paid", {"cents": 250}, "alice")
    ]
    family.go_on()
    assert family.run(run_id).status == RunStatus.COMPLETED
    assert family.run(run_id).result == {"cents": 250}
    assert f"{at}/events" not in alice.read(at).replace(f"{at}/events?", "")


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_log_is_read_and_its_code_told_at_every_width(
    api: Api, family: Family, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    run_id = family.start("ship_order", 4, user_id="alice")
    family.go_on()
    with Window(browser, api.url, size, scheme) as window:
        page = window.sign_in(api.token("alice"), f"/runs/{run_id}")
        page.locator("#log-title").scroll_into_view_if_needed()
        window.shoot(f"page-workflow-{size[0]}-{scheme}")
        for fold in page.locator("summary").all():
            fold.click()
        window.assert_no_horizontal_scroll()
        assert page.evaluate("window.owned") is None
        page.get_by_label("It waits to hear of paid").fill('{"cents": 250}')

        page.get_by_role("button", name="It has happened").click()

        expect(page.locator("#entry-3")).to_contain_text("completed")
        family.go_on()
        expect(page.locator("#run .status")).to_contain_text("completed")
        expect(page.get_by_role("button", name="It has happened")).to_have_count(0)
