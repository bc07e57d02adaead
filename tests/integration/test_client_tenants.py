"""A client of a database is of one tenant: it starts, sees and changes nothing of another's."""

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from celeriac import Approval, Client, errors
from celeriac.cli.main import app
from celeriac.client import NotDone
from celeriac_storage.database import Database
from tests.review_desk import REFUND, Desk, Ledger, refund_tool


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    ledger = Ledger()
    desk = Desk(
        database, broker_url, ledger, [refund_tool(ledger, Approval())], [("refund", REFUND)]
    )
    yield desk
    desk.close()


@pytest.fixture
def rival(database: Database) -> Iterator[Client]:
    with Client(database.url, tenant="rival") as client:
        yield client


def test_what_is_another_tenants_is_unknown(desk: Desk, rival: Client) -> None:
    run_id, (proposal,) = desk.propose()
    at = proposal.approval_id
    token = desk.client.create_token("alice")
    desk.client.set_principal("carl")
    before = desk.client.get(run_id), list(desk.client.events(run_id)), desk.client.principals()
    unknown: list[tuple[type[Exception], Callable[[], object]]] = [
        (errors.UnknownRun, lambda: rival.get(run_id)),
        (errors.UnknownRun, lambda: rival.waits_for(run_id)),
        (errors.UnknownRun, lambda: rival.wait(run_id, timeout_seconds=1)),
        (errors.UnknownRun, lambda: list(rival.watch(run_id, timeout_seconds=1))),
        (errors.UnknownRun, lambda: rival.events(run_id)),
        (errors.UnknownRun, lambda: rival.cancel(run_id)),
        (errors.UnknownRun, lambda: rival.interrupt(run_id)),
        (errors.UnknownRun, lambda: rival.say(run_id, "hello")),
        (errors.UnknownRun, lambda: rival.retry(run_id)),
        (errors.UnknownRun, lambda: rival.rollback(run_id)),
        (errors.UnknownRun, lambda: rival.submit(run_id, {"0.0": 1})),
        (errors.UnknownRun, lambda: rival.resolve(run_id, "0.0", NotDone())),
        (errors.UnknownApproval, lambda: rival.approval(at)),
        (errors.UnknownApproval, lambda: rival.approve(at)),
        (errors.UnknownApproval, lambda: rival.edit(at, {})),
        (errors.UnknownApproval, lambda: rival.reject(at, "no")),
        (errors.UnknownToken, lambda: rival.revoke_token(token.token_id)),
    ]

    for expected, ask in unknown:
        with pytest.raises(expected):
            ask()
    for listed in (rival.runs, rival.approvals, rival.principals, rival.tokens):
        assert listed() == []
    assert rival.requested_calls() == rival.requested_calls(limit=5) == []
    rival.set_principal("carl", disabled=True)

    assert before == (
        desk.client.get(run_id), list(desk.client.events(run_id)), desk.client.principals(),
    )  # fmt: skip
    assert [each.token_id for each in desk.client.tokens()] == [token.token_id]
    assert desk.rows("SELECT FROM celeriac.audit WHERE tenant_id = 'rival'"
                     " AND action <> 'principal.set'") == []  # fmt: skip


def test_a_run_is_of_the_tenant_that_started_it(desk: Desk, rival: Client) -> None:
    ours = desk.client.start("desk", "hello", thread_id="chat")
    theirs = rival.start("desk", "hello", thread_id="chat")

    assert [run.run_id for run in desk.client.runs()] == [ours.run_id]
    assert [run.run_id for run in rival.runs()] == [theirs.run_id]
    with pytest.raises(errors.UnknownRun):
        desk.client.cancel(theirs.run_id)
    assert rival.cancel(theirs.run_id) == "cancelled"
    assert desk.rows("SELECT tenant_id FROM celeriac.runs ORDER BY created_at") == [
        ("default",), ("rival",),
    ]  # fmt: skip


def test_commands_see_the_tenant_that_is_named(desk: Desk, rival: Client) -> None:
    theirs = rival.start("desk", "hello").run_id

    def told(*arguments: str, **environment: str) -> tuple[int, str]:
        ran = CliRunner().invoke(
            app, ["--database-url", desk.database.url, *arguments], env=environment
        )
        return ran.exit_code, ran.stdout

    assert told("runs", "--json") == (0, "")
    assert theirs in told("runs", "--json", "--tenant", "rival")[1]
    assert theirs in told("show", theirs, CELERIAC_TENANT="rival")[1]
    assert told("show", theirs) == (1, "")
    assert told("runs", "--tenant", "a,b")[0] == 1
