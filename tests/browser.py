"""The system's Chromium, for tests of pages."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, sync_playwright

from tests.processes import ROOT

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = Path(os.environ.get("CELERIAC_TEST_SCREENSHOTS", ROOT / "build/screenshots"))
"""Kept to be looked at. `docs/images` for those in the docs."""

PAGE_MILLISECONDS = 15_000


@pytest.fixture
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM,
                args=[
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-quic",
                    "--no-first-run",
                    "--disable-background-networking",
                    "--disable-component-update",
                    "--disable-sync",
                ],
            )
        except Error as error:
            pytest.skip(f"Chromium does not start: {error}")
        yield browser
        browser.close()
