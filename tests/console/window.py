"""A browser window that is signed in, and that notes whatever a page should not do."""

from types import TracebackType
from typing import Self

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from tests.browser import PAGE_MILLISECONDS, SCREENSHOTS

DESKTOP = (1180, 900)
PHONE = (390, 844)

_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


# Pages fetch themselves every now and then, in case they have missed something.
_FETCH_NOTHING_BY_TIME = """
const later = window.setTimeout;
window.setTimeout = (what, milliseconds, ...more) =>
  milliseconds >= 2000 ? 0 : later(what, milliseconds, ...more);
"""


class Window:
    """One window of its own, with no other's cookies. If it `polls` not, pages learn only from the
    events that they are told of: one that is lost is not made up for."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        size: tuple[int, int] = DESKTOP,
        scheme: str = "light",
        *,
        polls: bool = True,
    ) -> None:
        self.url = url
        self.trouble: list[str] = []
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            is_mobile=size == PHONE,
            has_touch=size == PHONE,
        )
        self._context.set_default_timeout(PAGE_MILLISECONDS)
        self._context.add_init_script(_NOTE_VIOLATIONS)
        if not polls:
            self._context.add_init_script(_FETCH_NOTHING_BY_TIME)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(f"dialog {dialog.message}"))
        self.page.on("request", self._note_request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.assert_no_trouble()
        self._context.close()

    def sign_in(self, token: str, path: str = "/runs") -> Page:
        """Paste the token; the page that it leads to."""
        self.page.goto(self.url + path)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("button", name="Sign out").wait_for()
        return self.page

    def shoot(self, name: str, part: str | None = None) -> None:
        """What is in view; or this part of the page alone."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        shown = self.page if part is None else self.page.locator(part)
        shown.screenshot(path=SCREENSHOTS / f"{name}.png")

    def assert_no_trouble(self) -> None:
        """No error, no dialog, nothing that the page's policy had to stop, no other site."""
        assert self.page.evaluate("window.violations") == []
        assert self.trouble == [], self.trouble

    def assert_no_horizontal_scroll(self) -> None:
        too_wide = self.page.evaluate(
            """() => [...document.querySelectorAll("main *, header *")]
              .filter((each) => !each.closest(".scroll *"))  // scrolls by itself
              .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
              .map((each) => each.outerHTML.slice(0, 120))"""
        )
        assert too_wide == []
        width = self.page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= self.page.evaluate("innerWidth")

    def _note_message(self, message: ConsoleMessage) -> None:
        # A form that is refused, which is a page all the same, is an error to the browser; a page
        # that is left while it fetches itself is one to htmx.
        expected = ("Failed to load resource", "htmx:sendAbort", "htmx:afterRequest")
        if message.type == "error" and not message.text.startswith(expected):
            self.trouble.append(message.text)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(self.url):
            self.trouble.append(f"a request to {request.url}")
