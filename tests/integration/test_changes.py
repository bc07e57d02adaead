"""No change of a run or of a call without an event, in the transaction that makes the change."""

# features: 003-04
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celeriac import tool
from celeriac.client import NotDone
from celeriac.errors import ToolError
from celeriac.recovery import Retry
from celeriac.states import RunStatus
from celeriac_storage import waking
from celeriac_storage.database import Database
from tests.shelves import glance, throw_away
from tests.talk import Calls, Talk

WITNESS = """
CREATE TABLE changes (
    run_id text NOT NULL, what text NOT NULL, was text, became text NOT NULL,
    made_in text NOT NULL DEFAULT pg_current_xact_id()::text
);
CREATE FUNCTION note_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO changes VALUES (NEW.run_id, 'run', OLD.status, NEW.status);
    RETURN NULL;
END $$;
CREATE FUNCTION note_effect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO changes VALUES (NEW.run_id, NEW.call_id, OLD.state, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER note_begin AFTER INSERT ON celeriac.runs FOR EACH ROW EXECUTE FUNCTION note_run();
CREATE TRIGGER note_change AFTER UPDATE ON celeriac.runs FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION note_run();
CREATE TRIGGER note_begin AFTER INSERT ON celeriac.effects FOR EACH ROW
    EXECUTE FUNCTION note_effect();
CREATE TRIGGER note_change AFTER UPDATE ON celeriac.effects FOR EACH ROW
    WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION note_effect();
"""
QUIET = {("run", "queued", "running"), ("run", "running", "queued")}
"""A claim may be forgotten by a crash, and the events of its step tell its epoch; a step may only
pass on to the model what events have told before, such as results that another process sent."""


@tool(effect="external", retry=Retry(attempts=2))
def knock(door: str) -> str:
    """Knock in vain."""
    raise ToolError(f"nobody opens {door}")


@tool(effect="external")
def send(letter: str) -> str:
    """Send a letter, and learn nothing of it."""
    raise ConnectionError(f"no answer about {letter}")


@pytest.fixture
def made(database: Database, broker_url: str) -> Iterator[Callable[[Calls], Talk]]:
    with database.begin() as connection:
        connection.exec_driver_sql(WITNESS)
    talks: list[Talk] = []

    def make(calls: Calls) -> Talk:
        talks.append(Talk(database, broker_url, calls, [glance, throw_away, knock, send]))
        talks[-1].start()
        return talks[-1]

    yield make
    for talk in talks:
        talk.close()


def untold(talk: Talk) -> list[tuple[Any, ...]]:
    """The changes that no event of the same run and transaction tells of."""
    rows = talk.query(
        "SELECT what, was, became FROM changes WHERE NOT EXISTS (SELECT FROM celeriac.events"
        " WHERE events.run_id = changes.run_id AND events.xmin::text = made_in)"
    )
    return [tuple(row) for row in rows]


def seen(talk: Talk) -> set[tuple[Any, ...]]:
    rows = talk.query("SELECT DISTINCT CASE what WHEN 'run' THEN what ELSE 'call' END, was, became"
                      " FROM changes")  # fmt: skip
    return {tuple(row) for row in rows}


def test_calls_of_each_kind_and_a_persons_decision_are_told(made: Callable[[Calls], Talk]) -> None:
    talk = made(
        [
            ("glance", {"shelf": "a"}),
            ("scan", {"shelf": "b"}),
            ("throw_away", {"shelf": "c"}),
            ("knock", {"door": "d"}),
            ("note", {"text": "e"}),
            ("throw_away", {"shelf": 7}),
        ]
    )
    assert talk.go_on() is RunStatus.PAUSED
    talk.client.submit(talk.run_id, {"0.1": "7"})
    while talk.go_on() is RunStatus.PAUSED and talk.stands[1] == "waiting_timer":
        with talk.database.begin() as connection:
            connection.exec_driver_sql("UPDATE celeriac.runs SET wake_at = now()")
            waking.take_due_timers(connection)
    (proposal,) = talk.client.approvals(run_id=talk.run_id, by="bob")
    talk.client.edit(proposal.approval_id, {"shelf": "z"}, by="bob")

    assert talk.go_on() is RunStatus.COMPLETED

    assert {*untold(talk)} <= QUIET
    assert seen(talk) >= {
        ("run", None, "queued"), ("run", "running", "paused"), ("run", "paused", "queued"),
        ("run", "running", "queued"), ("run", "running", "completed"),
        ("call", None, "planned"), ("call", None, "proposed"), ("call", None, "invalid"),
        ("call", "planned", "in_flight"), ("call", "planned", "committed"),
        ("call", "proposed", "approved"), ("call", "approved", "in_flight"),
        ("call", "in_flight", "committed"), ("call", "in_flight", "not_done"),
        ("call", "not_done", "in_flight"), ("call", "in_flight", "failed"),
    }  # fmt: skip


def test_what_people_ask_for_and_what_nobody_knows_are_told(made: Callable[[Calls], Talk]) -> None:
    talk = made([("send", {"letter": "a"}), ("throw_away", {"shelf": "b"})])
    assert talk.go_on() is RunStatus.NEEDS_ATTENTION
    talk.client.resolve(talk.run_id, "0.0", NotDone())
    talk.client.interrupt(talk.run_id)
    talk.client.say(talk.run_id, "go on")
    assert talk.go_on() is RunStatus.COMPLETED
    talk.client.cancel(talk.start())

    assert {*untold(talk)} <= QUIET
    assert seen(talk) >= {
        ("run", "running", "needs_attention"), ("run", "needs_attention", "queued"),
        ("run", "queued", "cancelled"), ("call", "in_flight", "unknown"),
        ("call", "unknown", "not_done"), ("call", "proposed", "rejected"),
    }  # fmt: skip
