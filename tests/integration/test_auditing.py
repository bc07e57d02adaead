"""An auditor's login sees what was done, who let it and what was undone, and sees nothing else."""

# features: 004-60
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from celeriac import Approval, ToolContext, tool
from celeriac.client import NotDone, TookEffect
from celeriac.errors import NotAllowed
from celeriac.ids import DEFAULT_TENANT, CallId, RunId, UserId
from celeriac.recovery import Done, Finding
from celeriac.recovery import NotDone as Missing
from celeriac.scripted import call
from celeriac.states import RunStatus
from celeriac.tools import Tool
from celeriac_storage import erasing, pruning
from celeriac_storage.database import Database, libpq_url
from celeriac_storage.erasing import Scope
from celeriac_storage.pruning import Policy
from tests.docs.pages import blocks
from tests.undo_shop import BOOK, MAIL, PUBLISH, SHIP, TAKE, Shop, Tools

QUESTIONS = [
    block
    for block in blocks("docs/auditing.md")
    if block.language == "sql" and "not-run" not in block.options
]


class Audited(Tools):
    """The shop's tools; and one whose target does not show what it reported."""

    def all(self) -> list[Tool[..., Any]]:
        def look_for(ctx: ToolContext) -> Finding:
            return Missing() if ctx.attempt else Done()

        @tool(effect="external", verify=look_for)
        def pretend(what: str) -> str:
            """Report a success that is none."""
            return what

        return [*super().all(), pretend]


class Auditor:
    """What a member of `celeriac_auditor` can ask."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(
            libpq_url(url),
            options="-c role=celeriac_auditor",
            autocommit=True,
            row_factory=dict_row,
        )

    def ask(self, sql: str, **values: object) -> list[dict[str, Any]]:
        return self._connection.execute(sql, values or None).fetchall()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def shop(database: Database, broker_url: str) -> Iterator[Shop]:
    approval = Approval(roles=["lead"], intent="take one lamp")
    turns = [TAKE, BOOK, SHIP, MAIL, PUBLISH, call("pretend", what="nothing")]
    shop = Shop(database, broker_url, Audited(approval=approval), turns)
    yield shop
    shop.close()


@pytest.fixture
def auditor(shop: Shop) -> Iterator[Auditor]:
    auditor = Auditor(shop.database.url)
    yield auditor
    auditor.close()


def drilled(shop: Shop) -> tuple[RunId, RunId]:
    """The rehearsal: a run and its rollback, all that can happen to either being settled."""
    shop.client.set_principal("bob", roles=["lead"], by="root")
    run_id = shop.worker.start("shop")
    shop.go_on(run_id)
    (proposal,) = shop.client.approvals(by="bob")
    shop.client.approvals(by="eve")
    with suppress(NotAllowed):
        shop.client.approve(proposal.approval_id, by="eve")
    shop.client.approve(proposal.approval_id, by="bob", reason="it is there")
    shop.go_on(run_id)
    shop.wake()
    assert shop.go_on(run_id).status == RunStatus.NEEDS_ATTENTION
    assert shop.client.get(run_id).effects[-1].state == "known_bad"
    shop.client.resolve(run_id, CallId("10.0"), NotDone(), by="bob")
    assert shop.go_on(run_id).status == RunStatus.COMPLETED

    undo = shop.roll_back(run_id, by="bob")
    assert undo.status is RunStatus.NEEDS_ATTENTION  # the letter is for people
    (by_hand,) = [effect for effect in undo.effects if effect.state == "unknown"]
    undone = shop.resolved(undo, by_hand.call_id, TookEffect("called the addressee"))
    assert undone.status is RunStatus.COMPLETED
    return run_id, undo.run_id


def test_the_drill_leaves_its_evidence_in_the_views(shop: Shop, auditor: Auditor) -> None:
    run_id, rollback = drilled(shop)

    assert (shop.stock, shop.bookings, len(shop.tools.carrier.cancelled)) == (10, [500, -500], 1)
    rows = auditor.ask(
        "SELECT * FROM celeriac_audit.rollbacks WHERE run_id = %(run)s ORDER BY call_id", run=run_id
    )
    told = [
        (row["tool"], row["rollback_kind"], row["undo_state"], row["call_state"]) for row in rows
    ]
    assert told == [
        ("take", "in_band", "committed", "rolled_back"),
        ("book", "compensate", "committed", "committed"),
        ("ship", "in_band", "committed", "rolled_back"),
        ("mail", "out_of_band", "committed", "rolled_back"),
        ("publish", "none", "invalid", "committed"),
    ]
    assert {(row["requested_by"], row["rollback_run"]) for row in rows} == {("bob", rollback)}
    assert rows[-1]["not_undone_because"] == "it cannot be taken back"
    assert [row["is_partial"] for row in rows] == [False] * 5
    (entry,) = auditor.ask(
        "SELECT told_by, outcome FROM celeriac_audit.attempts"
        " WHERE run_id = %(run)s AND tool = 'mail.undo' AND told_by IS NOT NULL",
        run=rollback,
    )
    assert entry == {"told_by": "bob", "outcome": "committed"}
    (decision,) = auditor.ask("SELECT * FROM celeriac_audit.decisions")
    assert (decision["reviewer"], decision["decision"], decision["decided_because"]) == (
        "bob",
        "approve",
        "it is there",
    )
    assert decision["shown_at"] < decision["decided_at"]
    assert {row["person"] for row in auditor.ask("SELECT * FROM celeriac_audit.shown")} == {
        "bob",
        "eve",
    }
    found = auditor.ask("SELECT * FROM celeriac_audit.failed_verifications ORDER BY entry")
    assert [(row["tool"], row["settled_by"]) for row in found] == [("pretend", "bob")] * len(found)
    assert found
    keys = {effect.key for run in (run_id, rollback) for effect in shop.client.get(run).effects}
    assert {row["idempotency_key"] for row in auditor.ask("TABLE celeriac_audit.effects")} == keys
    assert shop.violations() == []


def test_each_question_of_the_page_is_answered(shop: Shop, auditor: Auditor) -> None:
    drilled(shop)
    other = shop.worker.start("shop")
    shop.client.cancel(other, by="bob")
    thread_id = shop.worker.row(other).thread_id
    erasing.erase(shop.database, Scope(DEFAULT_TENANT, thread_id=thread_id), UserId("root"))
    assert len(QUESTIONS) >= 12

    for block in QUESTIONS:
        rows = auditor.ask(block.code)

        assert bool(rows) != ("empty" in block.options), block.code


def test_the_empty_answers_are_not_empty_where_something_is_wrong(
    shop: Shop, auditor: Auditor
) -> None:
    run_id, _ = drilled(shop)
    for damage in (
        "UPDATE celeriac.approval_decisions SET rendering_hash = sha256('other')",
        "UPDATE celeriac.effects SET state = 'known_bad' WHERE tool = 'pretend'",
        "UPDATE celeriac.effects SET state = 'failed', result = NULL WHERE tool = 'ship'",
    ):
        with shop.database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(damage)

    for block in QUESTIONS:
        if "empty" in block.options:
            assert auditor.ask(block.code), block.code
    assert run_id


def test_an_auditor_sees_nothing_else_and_changes_nothing(shop: Shop, auditor: Auditor) -> None:
    drilled(shop)

    for statement in (
        "SELECT FROM celeriac.runs",
        "SELECT FROM celeriac.messages",
        "SELECT FROM celeriac.tokens",
        "SELECT celeriac.prune_runs(ARRAY['x'])",
        "DELETE FROM celeriac_audit.runs",
        "UPDATE celeriac_audit.acts SET actor = 'nobody'",
        "INSERT INTO celeriac_audit.acts (actor) VALUES ('nobody')",
    ):
        with pytest.raises(psycopg.Error) as refused:
            auditor.ask(statement)
        assert refused.value.sqlstate == "42501", statement


def test_what_is_pruned_and_erased_stays_to_be_seen(shop: Shop, auditor: Auditor) -> None:
    run_id, rollback = drilled(shop)

    pruning.prune(shop.database, Policy(older_than_days=0))

    rows = auditor.ask("SELECT * FROM celeriac_audit.runs ORDER BY created_at")
    assert [(row["run_id"], row["status"], row["pruned_at"] is None) for row in rows] == [
        (run_id, "completed", False),
        (rollback, "completed", False),
    ]
    (decision,) = auditor.ask("SELECT * FROM celeriac_audit.decisions")
    assert (decision["reviewer"], decision["arguments"]) == ("bob", None)
    assert len(auditor.ask("SELECT FROM celeriac_audit.rollbacks")) == 5
    assert shop.violations() == []
