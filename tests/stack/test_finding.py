"""How commands find a stack: what was named comes first, and nothing is taken from a dead one."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from celeriac.cli.environment import Environment, database_url, require_broker
from celeriac.cli.group import WrongUsage
from celeriac.settings import Settings
from celeriac.stack.description import Description
from celeriac.stack.folder import Folder

STACK = Description(
    database_url="postgresql://celeriac:secret@127.0.0.1:15001/celeriac",
    broker_url="redis://:secret@127.0.0.1:15002/0",
    api_url=None,
    flower_url=None,
    services=[],
)
ELSEWHERE = "postgresql://somebody@elsewhere/else"


@pytest.fixture(autouse=True)
def _in_a_new_terminal(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    for name in ("DATABASE_URL", "BROKER_URL", "DATABASE_DIRECT_URL"):
        monkeypatch.delenv(f"CELERIAC_{name}", raising=False)
    monkeypatch.setenv("CELERIAC_DATA", str(data))


@pytest.fixture
def held(data: Path) -> Iterator[Folder]:
    """A folder held as a running stack holds it."""
    folder = Folder(data)
    folder.hold()
    yield folder
    folder.release()


@pytest.fixture
def running(held: Folder) -> Folder:
    held.describe(STACK.to_json())
    return held


def urls(settings: Settings) -> list[str | None]:
    return [
        url.get_secret_value() if url is not None else None
        for url in (settings.database_url, settings.broker_url, settings.database_direct_url)
    ]


@pytest.mark.usefixtures("running")
def test_servers_of_a_running_stack_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERIAC_DATABASE_DIRECT_URL", ELSEWHERE)  # of another database

    settings = Environment().settings()

    assert urls(settings) == [STACK.database_url, STACK.broker_url, None]


@pytest.mark.usefixtures("running")
def test_another_folder_is_looked_into_if_that_is_named(folder: Path) -> None:
    settings = Environment(data=str(folder / "other")).settings()

    assert urls(settings) == [None, None, None]


@pytest.mark.usefixtures("running")
def test_servers_that_were_named_are_not_mixed_with_those_of_the_stack() -> None:
    settings = Environment(database_url=ELSEWHERE).settings()

    assert urls(settings) == [ELSEWHERE, None, None]
    with pytest.raises(WrongUsage, match="no broker was named"):
        require_broker(settings)


@pytest.mark.usefixtures("running")
def test_the_other_server_is_found_if_the_stacks_own_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELERIAC_DATABASE_URL", STACK.database_url)

    settings = Environment().settings()

    assert urls(settings) == [STACK.database_url, STACK.broker_url, None]


def test_what_a_killed_stack_left_is_not_used_and_said_to_be_dead(running: Folder) -> None:
    running.release()

    settings = Environment().settings()

    assert urls(settings) == [None, None, None]
    with pytest.raises(WrongUsage, match="was killed: start one with `celeriac up`"):
        database_url(settings)


def test_a_stack_that_only_starts_is_said_to_do_so(held: Folder) -> None:
    with pytest.raises(WrongUsage, match=f"the stack in {held.path} is not ready yet"):
        database_url(Environment().settings())


def test_without_any_stack_it_is_said_how_to_start_one(data: Path) -> None:
    with pytest.raises(WrongUsage, match=f"no stack runs in {data}: start one with `celeriac up`"):
        database_url(Environment().settings())


@pytest.mark.usefixtures("running")
def test_a_broker_of_somebody_elses_is_said_to_be_why_the_database_is_not_used() -> None:
    settings = Environment(broker_url="redis://127.0.0.1:1/0").settings()

    with pytest.raises(WrongUsage, match=r"is not that of the stack .*name both, or neither"):
        database_url(settings)


def test_a_stack_below_the_folder_that_was_named_is_pointed_to(folder: Path) -> None:
    below = Folder(folder / "shop" / ".celeriac")
    below.hold()
    try:
        with pytest.raises(WrongUsage, match=f"but one runs in {below.path}"):
            database_url(Environment(data=str(folder / "shop")).settings())
    finally:
        below.release()


def test_a_look_whether_a_stack_runs_keeps_no_other_from_starting(held: Folder) -> None:
    held.release()
    look = os.open(held.path / "lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)  # as `is_running` has it for a moment
    Timer(0.2, os.close, [look]).start()

    held.hold()
