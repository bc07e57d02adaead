"""The console in a browser: what a person sees and does there."""

# features: 000-28, 004-45, 004-46, 004-50
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from sqlalchemy import Connection

from celeriac import Approval, Rule, When
from celeriac.ids import RunId
from celeriac.reports import Approval as Proposal
from celeriac.states import RunStatus
from celeriac_storage import timelines
from celeriac_storage.database import Database
from celeriac_storage.timelines import Timeline
from tests.api.server import Api
from tests.browser import PAGE_MILLISECONDS
from tests.console.window import PHONE, Window
from tests.crash.stack import Stack
from tests.review_desk import Desk, Ledger, refund_tool

WAITING = 3  # the step in which `waiter` waits at its gate
SEEN_MILLISECONDS = 30_000  # of what other processes do first

HOSTILE = (
    "</textarea></script><script>window.owned = 1</script>"
    "<img src=x onerror='window.owned = 1'><a href='javascript:window.owned = 1'>x</a>"
    "\u202e{{ 7*7 }}\u202d"
)
POLICY = Approval(
    roles=["cashier"],
    rules=[
        Rule(When("amount", ">", "500"), roles=["cashier"], quorum=2,
             checklist=["Has the customer sent it back?"]),
    ],
    blast_radius="{amount} leave our account for the customer of order {order_id}",
    intent="Refund {amount} for order {order_id}",
    permissions_touched=["payments:write"],
    data_lineage=["the order O-1 in the shop's database"],
    immutable=["order_id"],
)  # fmt: skip


class Counter:
    """A refund desk whose proposals wait, and windows at which people decide about them."""

    def __init__(self, api: Api, database: Database, broker_url: str, browser: Browser) -> None:
        self.api = api
        self.ledger = Ledger()
        self._made = (database, broker_url)
        self._browser = browser
        self._desks: list[Desk] = []

    def propose(self, **arguments: str) -> tuple[Desk, Proposal]:
        call = {"order_id": "O-1", "amount": "80.00", "note": "It came\nbroken.", **arguments}
        desk = Desk(
            *self._made, self.ledger, [refund_tool(self.ledger, POLICY)], [("refund", call)]
        )
        self._desks.append(desk)
        for name in ("carl", "cora"):
            desk.client.set_principal(name, roles=["cashier"])
        _, (proposal,) = desk.propose()
        return desk, proposal

    def window(self, **how: object) -> Window:
        return Window(self._browser, self.api.url, **how)  # type: ignore[arg-type]  # size, scheme

    def close(self) -> None:
        for desk in self._desks:
            desk.close()


@pytest.fixture
def counter(api: Api, database: Database, broker_url: str, browser: Browser) -> Iterator[Counter]:
    counter = Counter(api, database, broker_url, browser)
    yield counter
    counter.close()


def at_proposal(page: Page, url: str, proposal: Proposal) -> None:
    page.goto(f"{url}/approvals/{proposal.approval_id}")


@pytest.mark.crash
def test_a_failover_is_watched_while_it_happens(api: Api, stack: Stack, browser: Browser) -> None:
    stack.start_scheduler()
    workers = stack.start_workers(2)
    run_id = stack.client.start("waiter", "go", run_id="order-1001").run_id
    stack.wait_for_call(run_id, "wait_at")
    victim = stack.holder(run_id, workers)
    (survivor,) = (worker for worker in workers if worker is not victim)
    with Window(browser, api.url) as window:
        page = window.sign_in(api.token("olga", "operator"), f"/runs/{run_id}")
        now = page.locator("#now")
        expect(now).to_contain_text("in progress")
        expect(now).to_contain_text(f"pid {victim.pid}")
        arguments = page.locator("#now details").first
        arguments.get_by_text("arguments").click()

        victim.kill_group()

        failover = page.locator(".failover")
        expect(failover).to_contain_text(f"pid {victim.pid}", timeout=SEEN_MILLISECONDS)
        expect(failover).to_contain_text("noticed by its lifeline")
        expect(failover).to_contain_text(f"pid {survivor.pid}", timeout=SEEN_MILLISECONDS)
        expect(failover).to_contain_text("ms after the verdict", timeout=SEEN_MILLISECONDS)
        expect(now).to_contain_text(f"pid {survivor.pid}", timeout=SEEN_MILLISECONDS)
        expect(arguments).to_have_attribute("open", "")  # what was opened stays so
        window.shoot("console-failover")
        stack.wait_for_call(run_id, "wait_at", times=2)

        stack.open_gate("gate")

        expect(page.locator("#run .status")).to_contain_text("completed", timeout=SEEN_MILLISECONDS)
        expect(page.locator(".step")).to_have_count(stack.completed(run_id).step)
        expect(page.locator(f"#step-{WAITING}")).to_contain_text(f"pid {survivor.pid}")
        expect(page.locator(f"#step-{WAITING}")).to_contain_text("wait_at")
        expect(page.locator("#now")).to_have_count(0)
        expect(page.locator(".acts button[type=submit], .acts .say")).to_have_count(0)


_NEWS_WHILE_IT_FETCHES = """() => {
  const news = () => htmx.trigger("#live", "news");
  const counts = document.body.dataset;
  const count = (what) => () => { counts[what] = 1 + Number(counts[what] ?? 0); };
  document.addEventListener("htmx:beforeRequest", count("asked"));
  document.addEventListener("htmx:afterSettle", count("settled"));
  document.addEventListener("htmx:afterSwap", () => {
    news();  // when the first answer is there, and its request not over yet: it waits
    setTimeout(news);  // while the second request is made, before the first has settled
  }, { once: true });
  news();
}"""


def test_news_that_comes_while_a_page_fetches_itself_is_fetched_too(counter: Counter) -> None:
    """However it falls between the end of one request and the begin of another."""
    _, proposal = counter.propose()
    at, held = f"/runs/{proposal.run_id}", list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    with counter.window(polls=False) as window:
        page = window.sign_in(counter.api.token("carl", "operator"), at)
        page.route(window.url + at, hold)
        page.evaluate(_NEWS_WHILE_IT_FETCHES)

        for number in (1, 2, 3):
            expect(page.locator("body")).to_have_attribute("data-asked", str(number))
            if number > 1:
                expect(page.locator("body")).to_have_attribute("data-settled", str(number - 1))
            held.pop().continue_()
        expect(page.locator("body")).to_have_attribute("data-settled", "3")
        page.unroute(window.url + at)


def test_an_event_between_the_page_and_its_stream_is_not_lost(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever commits while a page is rendered comes after what the page follows from."""
    desk, proposal = counter.propose()
    read = timelines.read_timeline

    def read_late(connection: Connection, run_id: RunId, limit: int) -> Timeline:
        if desk.client.get(run_id).status != RunStatus.CANCELLED:
            desk.client.cancel(run_id)
        return read(connection, run_id, limit)

    monkeypatch.setattr(timelines, "read_timeline", read_late)
    with counter.window(polls=False) as window:
        page = window.sign_in(counter.api.token("carl", "operator"), f"/runs/{proposal.run_id}")

        expect(page.locator("#run .status")).to_contain_text("cancelled", timeout=SEEN_MILLISECONDS)


def test_approving_from_the_inbox_by_keyboard(counter: Counter) -> None:
    desk, proposal = counter.propose()
    with counter.window() as window:
        page = window.sign_in(counter.api.token("carl"), "/approvals")
        expect(page.locator("[data-row]")).to_have_count(1)
        window.shoot("console-approvals")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Proposal refund")).to_be_visible()
        window.shoot("console-approval")
        page.keyboard.press("a")
        expect(page.get_by_role("button", name="Approve as it is shown")).to_be_focused()
        assert desk.client.approval(proposal.approval_id).status == "pending"

        page.keyboard.press("Enter")

        expect(page.locator("#state")).to_contain_text("This is approved")
        expect(page.locator("#state")).to_contain_text("1 of 1 approval: carl")
    assert desk.go_on(proposal.run_id).status == RunStatus.COMPLETED
    assert counter.ledger.amounts() == ["80.00"]


def test_editing_with_an_amount_that_is_none_and_then_with_one(counter: Counter) -> None:
    desk, proposal = counter.propose()
    with counter.window() as window:
        page = window.sign_in(counter.api.token("carl"))
        at_proposal(page, window.url, proposal)
        page.keyboard.press("e")
        expect(page.get_by_label("note text")).to_be_focused()
        amount = page.get_by_label("amount text")
        amount.fill("lots")
        expect(page.locator(".field.changed")).to_have_count(1)
        expect(page.locator(".field.changed .was")).to_contain_text("80.00")
        expect(page.get_by_label("order_id")).to_have_attribute("readonly", "")

        page.get_by_role("button", name="Approve with these changes").click()

        problem = page.locator("#problem")
        expect(problem).to_contain_text("The tool cannot take these arguments")
        expect(problem).to_contain_text("amount")
        expect(amount).to_have_value("lots")
        assert desk.client.approval(proposal.approval_id).status == "pending"
        amount.fill("40.00")
        page.locator("#edit-reason").fill("half of it was used")
        window.shoot("console-edit")

        page.get_by_role("button", name="Approve with these changes").click()

        expect(page.locator(".diff .changed")).to_have_count(1)
        expect(page.locator(".diff .changed")).to_contain_text("80.00")
        expect(page.locator(".diff .changed")).to_contain_text("40.00")
        expect(page.locator("#state")).to_contain_text("This is approved")
        window.shoot("console-edited")
    assert desk.go_on(proposal.run_id).status == RunStatus.COMPLETED
    ((_, done, _),) = counter.ledger.entries
    assert (str(done["amount"]), done["note"]) == ("40.00", "It came\nbroken.")


def test_rejecting_with_a_reason_and_the_other_window_learns_of_it(counter: Counter) -> None:
    desk, proposal = counter.propose()
    with counter.window(size=PHONE, scheme="dark") as other, counter.window() as window:
        watching = other.sign_in(counter.api.token("cora"))
        at_proposal(watching, other.url, proposal)
        other.shoot("console-phone")
        page = window.sign_in(counter.api.token("carl"))
        at_proposal(page, window.url, proposal)
        page.keyboard.press("r")
        expect(page.get_by_label("Reject, because")).to_be_focused()
        page.keyboard.type("the order is too old")

        page.get_by_role("button", name="Reject").click()

        expect(page.locator("#state")).to_contain_text("This is rejected")
        expect(page.get_by_text("rejected it after")).to_contain_text("the order is too old")
        expect(watching.locator("#state")).to_contain_text("This is rejected")
        watching.get_by_role("button", name="Approve as it is shown").click()
        expect(watching.locator("#problem")).to_contain_text("cannot be decided")
    assert desk.go_on(proposal.run_id).status == RunStatus.COMPLETED
    assert counter.ledger.entries == []


def test_a_quorum_and_its_questions(counter: Counter) -> None:
    desk, proposal = counter.propose(amount="900.00")
    question = "Has the customer sent it back?"
    with counter.window() as first, counter.window() as second:
        for window, name in ((first, "carl"), (second, "cora")):
            page = window.sign_in(counter.api.token(name))
            at_proposal(page, window.url, proposal)
            answer = page.locator("#approve-form").get_by_label(question)
            page.get_by_role("button", name="Approve as it is shown").click()
            expect(answer).to_be_focused()  # the browser itself asks for it
            answer.fill(f"Yes, says {name}.")
            page.get_by_role("button", name="Approve as it is shown").click()
            expect(page.locator("#state")).to_contain_text(
                f": {name}" if name == "carl" else "2 of"
            )
        expect(first.page.locator("#state")).to_contain_text(
            "2 of 2 approvals: carl, cora", timeout=PAGE_MILLISECONDS
        )
        first.page.reload()
        expect(first.page.get_by_text("Yes, says cora.")).to_be_visible()
    assert desk.go_on(proposal.run_id).status == RunStatus.COMPLETED


def test_a_reviewer_without_the_role_sees_why_and_has_nothing_to_press(counter: Counter) -> None:
    _, proposal = counter.propose()
    with counter.window() as window:
        page = window.sign_in(counter.api.token("olga", "operator"), "/approvals")
        expect(page.locator(".rows")).to_contain_text("not yours to decide")
        at_proposal(page, window.url, proposal)

        expect(page.locator("#objection")).to_contain_text("cashier is asked for")
        expect(page.locator(".decide")).to_have_count(0)
    with counter.window() as window:
        page = window.sign_in(counter.api.token("bob"))
        at_proposal(page, window.url, proposal)
        expect(page.get_by_role("alert")).to_contain_text("not yours to see")


def test_nothing_that_a_model_or_a_tool_wrote_does_anything(counter: Counter) -> None:
    desk, proposal = counter.propose(note=HOSTILE, order_id=HOSTILE)
    with counter.window() as window:
        page = window.sign_in(counter.api.token("carl", "operator"), "/approvals")
        expect(page.locator(".rows")).to_contain_text("<script>window.owned = 1</script>")
        at_proposal(page, window.url, proposal)
        shown = page.locator("#arguments")
        expect(shown).to_contain_text("<img src=x onerror='window.owned = 1'>")
        expect(shown).to_contain_text("⟨U+202E⟩{{ 7*7 }}")
        page.get_by_text("Change the arguments").click()
        page.get_by_label("amount text").fill("40.00")
        window.shoot("console-hostile")
        page.get_by_role("button", name="Approve with these changes").click()
        expect(page.locator(".diff .changed")).to_have_count(1)  # and no other was touched
        assert desk.go_on(proposal.run_id).status == RunStatus.COMPLETED
        page.goto(f"{window.url}/runs/{proposal.run_id}")
        for fold in page.locator("summary").all():
            fold.click()
        expect(page.locator(".timeline")).to_contain_text("<img src=x")
        page.goto(f"{window.url}/runs?search=%3Cscript%3Ewindow.owned=1%3C/script%3E")
        assert page.evaluate("window.owned") is None
    ((_, done, _),) = counter.ledger.entries
    assert done["note"] == HOSTILE


def test_a_link_from_another_site_leads_to_the_page_for_who_is_signed_in(
    counter: Counter,
) -> None:
    _, proposal = counter.propose()
    with counter.window() as window:
        page = window.sign_in(counter.api.token("carl"))
        elsewhere = window.url.replace("127.0.0.1", "localhost")  # of another site to a browser
        page.goto(f"{elsewhere}/healthz")
        page.evaluate("path => location.assign(path)", f"{window.url}/approvals")

        expect(page.locator("[data-row]")).to_contain_text("Refund 80.00")
        page.goto(f"{elsewhere}/healthz")
        page.evaluate("path => location.assign(path)", f"{elsewhere}/approvals")
        expect(page.get_by_label("Token")).to_be_visible()  # there, nobody is signed in
        page.goto(window.url)
        page.wait_for_load_state("networkidle")
        # That page's icon is fetched when the browser likes.
        window.trouble = [each for each in window.trouble if elsewhere not in each]
    assert proposal.status == "pending"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(counter: Counter, scheme: str) -> None:
    _, proposal = counter.propose(note="a-word-without-an-end-" * 20)
    with counter.window(size=PHONE, scheme=scheme) as window:
        page = window.sign_in(counter.api.token("carl", "operator"))
        for name, path in {
            "runs": "/runs",
            "run": f"/runs/{proposal.run_id}",
            "approvals": "/approvals",
            "approval": f"/approvals/{proposal.approval_id}",
            "unsettled": "/unsettled",
            "workers": "/workers",
        }.items():
            page.goto(window.url + path)
            window.shoot(f"console-phone-{scheme}-{name}")
            for fold in page.locator("summary").all():
                fold.click()
            window.assert_no_horizontal_scroll()
