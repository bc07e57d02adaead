"""Flower's page in a browser: what a person sees who looks for a run after a kill."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import PAGE_MILLISECONDS, SCREENSHOTS
from tests.crash.stack import Stack
from tests.flower.server import CREDENTIALS, FlowerServer, name_of

WAITING = 3  # the step in which `waiter` waits at its gate

WIDTH, HEIGHT = 1280, 680


@pytest.mark.browser
@pytest.mark.crash
def test_the_page_shows_the_steps_of_a_run_and_who_made_them(
    stack: Stack, flower: FlowerServer, browser: Browser
) -> None:
    stack.start_scheduler()
    workers = stack.start_workers(2)
    flower.wait_until_online(workers)
    stack.completed(stack.start("counter"))
    run_id = stack.client.start("waiter", "go", run_id="order-1001").run_id
    stack.wait_for_call(run_id, "wait_at")
    victim = stack.holder(run_id, workers)
    (survivor,) = (worker for worker in workers if worker is not victim)
    victim.kill_group()
    stack.wait_for_call(run_id, "wait_at", times=2)
    stack.open_gate("gate")
    steps = len(stack.completed(run_id).steps)
    username, password = CREDENTIALS
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        http_credentials={"username": username, "password": password},
    )
    page.set_default_timeout(PAGE_MILLISECONDS)

    page.goto(f"{flower.url}/tasks")
    page.get_by_role("searchbox").fill(run_id)

    rows = page.locator("#tasks-table tbody tr")
    expect(rows).to_have_count(steps, timeout=PAGE_MILLISECONDS)
    recovered = rows.filter(has_text=f"{run_id}:{WAITING}")
    expect(recovered).to_contain_text(f"('{run_id}', {WAITING})")
    expect(recovered).to_contain_text("SUCCESS")
    expect(recovered).to_contain_text(name_of(survivor))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "flower-tasks.png")

    page.goto(f"{flower.url}/workers")
    dead = page.locator("#workers-table tbody tr").filter(has_text=name_of(victim))
    expect(dead).to_contain_text("Offline", timeout=PAGE_MILLISECONDS)
    page.screenshot(path=SCREENSHOTS / "flower-workers.png")
