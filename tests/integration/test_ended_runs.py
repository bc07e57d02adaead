"""What has ended is never changed by what comes in late, however often and from wherever."""

# features: 000-10, 000-26, 002-24, 002-30, 003-16, 004-24, 004-52
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celeriac import Approval, Client
from celeriac.errors import Conflict, DecisionRefused, UnknownCall
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone, TookEffect
from tests.review_desk import REFUND, Desk, Ledger, refund_tool, values
from tests.talk import Calls, Talk

RESUBMISSIONS = 100
TABLES = (
    "runs", "checkpoints", "messages", "inbox", "events", "effects", "effect_attempts",
    "model_calls", "approvals", "approval_decisions",
)  # fmt: skip


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(on_reject="end"))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    yield desk
    desk.close()


def everything(desk: Desk) -> list[Any]:
    return [desk.rows(f"SELECT * FROM celeriac.{table} ORDER BY 1, 2") for table in TABLES]


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
def test_a_hundred_resubmissions_leave_an_ended_run_as_it_is(desk: Desk, ending: str) -> None:
    run_id, (proposal,) = desk.propose()
    match ending:
        case "completed":
            desk.client.approve(proposal.approval_id, by="alice")
        case "failed":
            desk.client.reject(proposal.approval_id, "fraud", by="alice")
        case "cancelled":
            desk.client.cancel(run_id)
    assert desk.go_on(run_id).status == ending
    before, executed, asked = everything(desk), list(desk.ledger.entries), len(desk.asked)
    clients = [Client(desk.database.url) for _ in range(4)]

    def resubmit(number: int) -> str:
        client, id_ = clients[number % 4], proposal.approval_id
        deeds: list[Callable[[], object]] = [
            lambda: client.approve(id_, by=f"user-{number}"),
            lambda: client.edit(id_, values(amount="1.00"), by=f"user-{number}"),
            lambda: client.reject(id_, "late", by=f"user-{number}"),
            lambda: client.submit(run_id, {"0.0": number}),
            lambda: client.resolve(run_id, "0.0", TookEffect("late")),
            lambda: client.resolve(run_id, "0.0", NotDone()),
            lambda: client.say(run_id, "late"),
            lambda: client.interrupt(run_id),
            lambda: client.start(desk.agent, "hello", run_id=run_id),
        ]
        if ending != "failed":  # that is retried by another run: test_forks
            deeds.append(lambda: client.retry(run_id))
        try:
            deeds[number % len(deeds)]()
        except (Conflict, UnknownCall) as refused:
            return type(refused).__name__
        return "done"

    with ThreadPoolExecutor(20) as people:
        outcomes = list(people.map(resubmit, range(RESUBMISSIONS)))
    for client in clients:
        client.close()
    desk.worker.step(run_id)

    assert "done" not in outcomes
    assert everything(desk) == before
    assert (desk.ledger.entries, len(desk.asked)) == (executed, asked)
    assert desk.violations() == []


# The same again, and meant twice ------------------------------------------------------------------


def test_a_proposal_that_is_decided_again_is_executed_once(desk: Desk) -> None:
    # features: 004-22
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice", hash=proposal.arguments_hash)
    desk.go_on(run_id)
    shown = desk.client.get(run_id)

    with pytest.raises(DecisionRefused, match="approved already"):  # whose answer got lost
        desk.client.approve(proposal.approval_id, by="alice", hash=proposal.arguments_hash)
    desk.worker.step(run_id)

    assert desk.client.get(run_id) == shown, "the first result is what there is to read"
    assert desk.ledger.count("refund") == 1


def test_two_calls_that_are_alike_and_meant_are_two_executions(
    database: Database, broker_url: str
) -> None:
    # features: 004-22
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval())]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND), ("refund", REFUND)])
    run_id, proposals = desk.propose()

    for proposal in proposals:
        desk.client.approve(proposal.approval_id, by="alice")
    desk.go_on(run_id)

    assert len({proposal.arguments_hash for proposal in proposals}) == 1
    assert [key for _, _, key in ledger.entries] == [
        f"default:{run_id}:0.0",
        f"default:{run_id}:0.1",
    ]
    assert desk.violations() == []
    desk.close()


# A new turn ---------------------------------------------------------------------------------------

SCAN: Calls = [("scan", {"shelf": "a"})]


def test_results_of_the_turn_before_resume_nothing_and_are_recorded(
    database: Database, broker_url: str
) -> None:
    # features: 004-24
    talk = Talk(database, broker_url, SCAN)
    talk.run_id = talk.client.start("talker", "first", thread_id="t1").run_id
    talk.go_on()
    talk.client.submit(talk.run_id, {"0.0": "old"})
    assert talk.go_on() is RunStatus.COMPLETED
    first = talk.run_id
    talk.shown.clear()  # its next turn makes the call again
    talk.run_id = talk.client.start("talker", "second", thread_id="t1").run_id
    assert talk.go_on() is RunStatus.PAUSED
    before = talk.row

    for late in ("old", "changed"):  # the whole transcript, as it was or not
        with pytest.raises(Conflict, match="is completed and takes no results"):
            talk.client.submit(first, {"0.0": late}, by="host")

    assert (talk.row, talk.states, len(talk.shown)) == (before, ["in_flight"], 1)
    trail = talk.query("SELECT actor, action, object, outcome FROM celeriac.audit")
    assert [tuple(row) for row in trail] == [("host", "results.submit", first, "denied")] * 2
    talk.client.submit(talk.run_id, {"0.0": "new"})
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-1] == "new"
    talk.close()
