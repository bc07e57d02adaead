"""The page of a plan's run shows it as a picture and as a table, each step with its state."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from celeriac.plan import Plan, PlanStep, result_of
from celeriac.plan.progress import StepState
from celeriac.plan.standing import Node
from celeriac.states import RunStatus
from celeriac_api.console.plan_picture import BOX_HEIGHT, BOX_WIDTH, MOST_BOXES, picture_of
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Visitor, Visitors
from tests.console.window import DESKTOP, PHONE, Window
from tests.family import Family
from tests.plan_desk import LAYERS, broken, calls, runner, writer

SEEN_MILLISECONDS = 30_000  # of what the page is told of, however slow the machine is
HOSTILE = "</title></text><script>window.owned = 1</script>\u202e{{ 7*7 }}"


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    calls.clear()
    broken.clear()
    family = Family(database.url, broker_url, [runner, writer])
    yield family
    assert family.violations() == []
    family.close()


def start(family: Family, plan: Plan) -> str:
    return family.client.start_plan(plan, runner="plans", user_id="alice").run_id


def box(page: str, step: str) -> str:
    return page.partition(f'id="box-{step}">')[2].partition("</svg>")[0]


def row(page: str, step: str) -> str:
    return page.partition(f'<tr id="plan-step-{step}">')[2].partition("</tr>")[0]


def nodes(**needs: str) -> list[Node]:
    """Steps by layer, each by the letters of those that it needs."""
    layers: dict[str, int] = {}
    for step, of_step in needs.items():
        layers[step] = 1 + max((layers[need] for need in of_step), default=-1)
    made = [
        Node(step, layers[step], [*needs[step]], "tool look", StepState.WAITING) for step in needs
    ]
    return sorted(made, key=lambda node: node.layer)


def test_each_step_has_its_state_its_run_and_what_it_needs(
    visitors: Visitors, family: Family
) -> None:
    broken.add("a is there")
    run_id = start(family, Plan(LAYERS, goal=HOSTILE))
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    assert ">waiting<" in box(alice.read(f"/runs/{run_id}"), "a")

    family.go_on()

    page = alice.read(f"/runs/{run_id}")
    report = family.client.plan(run_id)
    for step, state in zip("abcd", ("completed", "completed", "failed", "skipped"), strict=True):
        assert f'class="stands" x="11" y="53">{state}<' in box(page, step)
        assert f">{state}<" in row(page, step)
    (made_by,) = {step.run_id for step in report.steps if step.id == "a"}
    assert f'<a href="/runs/{made_by}" aria-label="Step a, tool look, completed">' in box(page, "a")
    assert f'href="/runs/{made_by}"' in row(page, "a")
    assert "href" not in box(page, "d")
    assert "<td>a, b</td>" in row(page, "c")
    assert f'<code title="{report.hash}">' in page
    assert "a is there is broken" in page.partition('id="plan"')[2].partition("</section>")[0]
    assert "<script>window" not in page
    assert "\u202e" not in page
    assert bob.get(f"/runs/{run_id}").status_code == 404


def test_what_is_left_is_done_by_another_run_and_each_leads_to_the_other(
    visitors: Visitors, family: Family
) -> None:
    broken.add("a is there")
    run_id = start(family, Plan(LAYERS))
    alice, bob = visitors.signed_in("alice"), visitors.signed_in("bob")
    at = f"/runs/{run_id}"
    assert f"{at}/plan/retry" not in alice.read(at)
    family.go_on()
    form = alice.form(at, f"{at}/plan/retry")
    csrf = bob.form("/runs", "/sign-out").fields["csrf"]

    assert bob.send(form, csrf=csrf).status_code == 404
    assert alice.send(form, csrf=None).status_code == 403
    assert family.client.plan(run_id).continued_by is None
    broken.clear()
    (later,) = {alice.send(form).headers["Location"] for _ in range(2)}
    family.go_on()

    assert later == f"/runs/{family.client.plan(run_id).continued_by}"
    assert f'Goes on in</dt><dd><a href="{later}">' in alice.read(at)
    assert f"{at}/plan/retry" not in alice.read(at)
    assert f'Does what is left of</dt><dd><a href="{at}">' in alice.read(later)
    assert ">completed before<" in box(alice.read(later), "a")
    assert ">completed<" in box(alice.read(later), "d")


def test_a_fork_and_its_origin_lead_to_each_other(visitors: Visitors, family: Family) -> None:
    origin = family.start("writer", "x", user_id="alice")
    family.go_on()
    fork = family.client.fork(origin, at=0).run_id
    alice = visitors.signed_in("alice")

    assert f'Goes on in</dt><dd><a href="/runs/{fork}">' in alice.read(f"/runs/{origin}")
    assert f'Fork of</dt><dd><a href="/runs/{origin}">' in alice.read(f"/runs/{fork}")


def test_a_run_that_executes_no_plan_shows_none(alice: Visitor, family: Family) -> None:
    run_id = family.start("writer", "x", user_id="alice")

    assert 'id="plan"' not in alice.read(f"/runs/{run_id}")


def test_boxes_and_lines_keep_clear_of_one_another() -> None:
    picture = picture_of(nodes(a="", b="", c="ab", d="c", e="ad", f="ae", g="b"))

    assert picture is not None
    for box in picture.boxes:
        assert 0 <= box.x <= picture.width - BOX_WIDTH
        assert 0 <= box.y <= picture.height - BOX_HEIGHT
        for other in picture.boxes:
            assert other is box or abs(box.x - other.x) >= BOX_WIDTH or box.y != other.y
    # A line that passes a layer comes down beside its boxes.
    passing = [line for line in picture.lines if not line.has_end]
    assert len(passing) == 3  # of a, through the layers of c, d and e; b's ends at c and g
    for line in passing:
        *_, x, y, _, _ = line.path.split()
        beside = [box for box in picture.boxes if box.y == float(y)]
        assert beside
        assert not any(box.x <= float(x) <= box.x + BOX_WIDTH for box in beside)


def test_a_plan_too_large_to_be_drawn_is_a_table(alice: Visitor, family: Family) -> None:
    many = [PlanStep(f"s{n}", tool="look", arguments={"what": "x"}) for n in range(MOST_BOXES + 1)]
    run_id = start(family, Plan(many))

    page = alice.read(f"/runs/{run_id}")

    assert '<svg class="graph"' not in page
    assert page.count('<tr id="plan-step-') == len(many)
    assert '<details id="plan-table" open>' in page


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_plan_is_watched_at_every_width(
    api: Api, family: Family, browser: Browser, size: tuple[int, int], scheme: str
) -> None:
    rooms = ("north", "south", "cellar")
    found: Any = {"text": result_of("search-north", "found")}
    broken.add("the south room")
    run_id = start(
        family,
        Plan(
            [
                *(PlanStep(f"search-{each}", tool="look", arguments={"what": f"the {each} room"},
                           on_failure="skip") for each in rooms),
                PlanStep("compare", tool="send", arguments=found,
                         needs=["search-north", "search-cellar"]),
                PlanStep("book", tool="book", arguments={"what": "a van"}, needs=["search-south"]),
                PlanStep("write", agent="writer", arguments=result_of("compare"),
                         needs=["compare", "search-cellar"]),
            ],
            goal="Find the room for the seed potatoes, and tell the customer",
        ),
    )  # fmt: skip
    with Window(browser, api.url, size, scheme, polls=False) as window:
        page = window.sign_in(api.token("alice"), f"/runs/{run_id}")
        expect(page.locator("#box-search-north .stands")).to_have_text("waiting")

        family.go_on(but=["writer"])

        of_write = page.locator("#box-write .stands")
        expect(of_write).to_have_text("running", timeout=SEEN_MILLISECONDS)
        expect(page.locator("#box-search-south .stands")).to_have_text("failed")
        window.shoot("console-plan" if size == DESKTOP else "page-plan-phone", "#plan")
        window.assert_no_horizontal_scroll()
        scrolls = page.locator("#plan .scroll").first
        assert scrolls.evaluate("(each) => each.scrollWidth > each.clientWidth") == (size == PHONE)

        family.go_on()

        expect(page.locator("#run .status")).to_contain_text("completed", timeout=SEEN_MILLISECONDS)
        expect(of_write).to_have_text("completed", timeout=SEEN_MILLISECONDS)
        assert family.run(run_id).status == RunStatus.COMPLETED
        page.locator("#box-write a").click()
        expect(page.locator("h1")).to_contain_text("Run")
        expect(page.locator("#run")).to_contain_text("writer")
