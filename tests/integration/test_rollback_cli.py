"""`celeriac rollback`, and how a run and what undoes it are shown."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import Result

from celeriac.ids import RunId
from celeriac.scripted import Turn
from celeriac_storage.database import Database
from tests.integration.conftest import Cli
from tests.undo_shop import MAIL, TAKE, Shop, Tools
from tests.waiting import eventually

MakeShop = Callable[[Sequence[Turn]], Shop]


@pytest.fixture
def shops(database: Database, broker_url: str) -> Iterator[MakeShop]:
    with ExitStack() as stack:

        def make(turns: Sequence[Turn]) -> Shop:
            shop = Shop(database, broker_url, Tools(), turns)
            stack.callback(shop.close)
            return shop

        yield make


@pytest.fixture
def shop(shops: MakeShop) -> Iterator[Shop]:
    shop = shops([TAKE, MAIL])
    yield shop
    assert shop.violations() == []


def read(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_rollback_is_started_shown_and_settled(shop: Shop, cli: Cli) -> None:
    run_id = shop.done()

    started = read(cli("rollback", run_id, "--as", "alice", "--json"))
    assert list(started) == ["run_id"]
    rollback = RunId(started["run_id"])
    shop.go_on(rollback)

    waited = cli("rollback", run_id)
    assert (waited.exit_code, f"is being rolled back by run {rollback}" in waited.stderr) == (
        1,
        True,
    )
    shown = cli("show", rollback).stdout
    assert f"celeriac resolve {rollback} 0.0 --committed JSON" in " ".join(shown.split())
    assert read(cli("resolve", rollback, "0.0", "--not-done", "--as", "bob", "--json")) == {
        "run_id": rollback,
        "status": "queued",
    }
    shop.go_on(rollback)

    original, undone = read(cli("show", run_id, "--json")), read(cli("show", rollback, "--json"))
    assert (original["kind"], original["rollbacks"]) == ("agent", [rollback])
    assert (undone["kind"], undone["rolls_back"]) == ("rollback", run_id)
    assert [each["rolls_back"]["call_id"] for each in undone["effects"]] == ["2.0", "0.0"]
    assert original["effects"][0]["rolled_back_by"] == {"run_id": rollback, "call_id": "0.1"}
    assert original["effects"][1]["rolled_back_by"] is None
    assert [each["tool"] for each in undone["result"]["not_undone"]] == ["mail"]
    for text, of in (("rolls back", rollback), (f"by 0.1 of run {rollback}", run_id)):
        assert text in cli("show", of).stdout


def test_only_a_part_is_undone_and_what_is_left_is_told(shop: Shop, cli: Cli) -> None:
    run_id = shop.done()

    started = read(cli("rollback", run_id, "--from", "2", "--json"))
    cli("cancel", started["run_id"])

    assert cli("rollback", run_id, "--from", "99").exit_code == 1
    assert "its steps are 0 to 4" in cli("rollback", run_id, "--from", "99").stderr
    assert "there is no run nosuch" in cli("rollback", "nosuch").stderr
    assert "nothing is left to undo" in cli("rollback", run_id, "--from", "3").stderr


@pytest.mark.parametrize(
    ("turns", "exit_code", "status"),
    [([TAKE], 0, "completed"), ([TAKE, MAIL], 1, "needs_attention")],
)
def test_who_waits_sees_the_rollback_and_whether_it_is_completed(
    shops: MakeShop, cli: Cli, turns: list[Turn], exit_code: int, status: str
) -> None:
    shop = shops(turns)
    run_id = shop.done()

    def undo() -> None:
        query = "SELECT run_id FROM celeriac.runs WHERE kind = 'rollback'"
        (found,) = eventually(lambda: shop.rows(query), what="a rollback")
        shop.go_on(found.run_id)

    with ThreadPoolExecutor(1) as worker:
        done = worker.submit(undo)
        waited = cli("rollback", run_id, "--wait", "--json")
        done.result()

    assert waited.exit_code == exit_code
    shown = json.loads(waited.stdout)
    assert (shown["rolls_back"], shown["status"]) == (run_id, status)
