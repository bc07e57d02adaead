"""Forgetting somebody: no payload of theirs is left in any row, whatever comes later."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from celeriac import Agent, Approval, ToolContext, ToolError, tool
from celeriac.cli.main import app
from celeriac.client import NotDone
from celeriac.codec import dumps
from celeriac.errors import Conflict, DecisionRefused, InvalidInput
from celeriac.ids import DEFAULT_TENANT, CallId, RunId, TenantId, ThreadId, UserId
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import RunStatus
from celeriac_storage import artifacts, erasing, idempotency_keys, resolving
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.erasing import Erased, Scope
from celeriac_storage.idempotency_keys import Answer, Key
from tests.steps_by_hand import Hand
from tests.undo_shop import BOOK, SHIP, TAKE, Shop, Tools

SECRET = "ZANZIBAR"
ALICE, ADMIN = UserId("alice"), UserId("root")
OF_ALICE = Scope(DEFAULT_TENANT, user_id=ALICE)
LARGE = SECRET * 10_000
SCHEDULE = """
INSERT INTO celeriac.schedules (tenant_id, schedule_id, user_id, agent, input, cron, time_zone,
    overlap, catch_up, catch_up_limit, jitter_seconds, next_fire_at, due_at, created_by)
VALUES ('default', %(user)s, %(user)s, 'shop', to_jsonb(%(secret)s::text), '0 9 * * *', 'UTC',
    'skip', 'none', 1, 0, now(), now(), 'root')
"""
FIRE = """
INSERT INTO celeriac.schedule_fires (tenant_id, schedule_id, scheduled_at, outcome, error)
VALUES ('default', %(user)s, now(), 'refused',
    jsonb_build_object('kind', 'InvalidInput', 'message', %(secret)s::text))
"""
MakeDesk = Callable[..., "Desk"]


class Desk(Shop):
    """Its user tells it a secret, and everything it does repeats that."""

    def __init__(self, database: Database, broker_url: str, **declared: Any) -> None:
        self.shown: list[str] = []

        def script(messages: Any) -> Turn:
            self.shown.append(str(messages))
            turns = [
                call("note", what=SECRET),
                call("keep", what=SECRET),
                call("fail", what=SECRET),
            ]
            calls = sum(type(part).__name__ == "ToolCallPart" for m in messages for part in m.parts)
            return turns[calls] if calls < len(turns) else say(f"{SECRET} is noted")

        @tool(effect="external", **declared)
        def note(ctx: ToolContext, what: str) -> dict[str, str]:
            """Note something."""
            ctx.progress(f"noting {what}")
            return {"noted": what}

        @tool(effect="external")
        def keep(what: str) -> str:
            """Keep something large."""
            return what * 10_000

        @tool(effect="external")
        def fail(what: str) -> str:
            """Refuse something."""
            raise ToolError(f"{what} is refused")

        super().__init__(database, broker_url, Tools(), [])
        self._model = ScriptedModel(script)
        self.agent = Agent("shop", self._model, tools=[note, keep, fail])
        self.new_worker(self.agent.tools)

    def tell(self, user_id: str = ALICE, thread_id: str | None = None) -> RunId:
        started = self.client.start(
            self.agent, f"my secret is {SECRET}", user_id=user_id, thread_id=thread_id
        )
        return started.run_id

    def tables_with_the_secret(self, secret: str = SECRET) -> list[str]:
        """The tables in which a row has it anywhere."""
        tables = self.rows(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = 'celeriac' AND table_type = 'BASE TABLE' ORDER BY 1"
        )
        return [
            row.table_name
            for row in tables
            if self.rows(
                f"SELECT FROM celeriac.{row.table_name} AS row WHERE strpos(row::text, %s) > 0"
                " OR strpos(row::text, %s) > 0",
                secret,
                secret.encode().hex(),
            )
        ]

    def erase(self, scope: Scope = OF_ALICE, **more: Any) -> Erased:
        return erasing.erase(self.database, scope, ADMIN, **more)

    def age_artifacts(self) -> None:
        """An hour has passed since they were stored."""
        with self.database.connect() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.artifacts SET stored_at = stored_at - interval '2 hours'"
            )


@pytest.fixture
def desks(database: Database, broker_url: str) -> Iterator[MakeDesk]:
    with ExitStack() as stack:

        def make(**declared: Any) -> Desk:
            desk = Desk(database, broker_url, **declared)
            stack.callback(desk.close)
            return desk

        yield make


@pytest.fixture
def desk(desks: MakeDesk) -> Desk:
    return desks()


def test_no_row_has_the_payload_afterwards_and_the_audit_is_clean(desks: MakeDesk) -> None:
    desk = desks(
        approval=Approval(
            intent="note {what}", blast_radius="{what} is noted", checklist=["Is it {what}?"]
        )
    )
    run_id = desk.tell()
    desk.go_on(run_id)
    (proposal,) = desk.client.approvals(by="bob")
    with pytest.raises(DecisionRefused):
        desk.client.approve(proposal.approval_id, by="bob", hash="0" * 64, reason=SECRET)
    edited = desk.client.edit(
        proposal.approval_id,
        {"what": f"{SECRET}!"},
        by="bob",
        reason=f"rather {SECRET}!",
        answers={"Is it {what}?": SECRET},
    )
    assert edited.status == "approved"
    desk.client.say(run_id, f"and {SECRET} again", by=ALICE)
    assert desk.go_on(run_id).status == "completed"
    before = desk.tables_with_the_secret()
    assert set(before) >= {
        "runs", "messages", "inbox", "events", "effects", "artifacts", "approvals",
        "approval_decisions", "audit",
    }  # fmt: skip
    desk.age_artifacts()

    done = desk.erase()

    assert desk.tables_with_the_secret() == []
    assert (done.runs, done.artifacts, done.artifacts_waiting) == (1, 1, 0)
    assert desk.violations() == []
    run = desk.client.get(run_id)
    assert (run.status, run.outcome, run.input, run.result) == (
        RunStatus.COMPLETED,
        "completed",
        None,
        None,
    )
    assert [effect.state for effect in run.effects] == ["committed", "committed", "failed"]
    decisions = desk.rows("SELECT reviewer, decision FROM celeriac.approval_decisions ORDER BY 2")
    assert [tuple(each) for each in decisions] == [("bob", "approve"), ("bob", "edit")]


def test_what_stays_is_the_hash_of_what_was_there(desk: Desk) -> None:
    run_id = desk.tell()
    desk.go_on(run_id)
    kept = (
        "SELECT call_id, fingerprint, coalesce(result_hash, result_artifact) FROM celeriac.effects"
    )
    effects, messages = (
        desk.rows(f"{kept} ORDER BY call_id"),
        desk.rows("SELECT position, role, hash FROM celeriac.messages ORDER BY 1"),
    )
    history = [(event.seq, event.type) for event in desk.client.events(run_id)]

    desk.erase()

    assert desk.rows(f"{kept} ORDER BY call_id") == effects
    assert desk.rows("SELECT position, role, hash FROM celeriac.messages ORDER BY 1") == messages
    assert [(event.seq, event.type) for event in desk.client.events(run_id)] == history
    assert desk.rows("SELECT FROM celeriac.messages WHERE erased_at IS NULL") == []


def test_it_is_an_act_of_a_person(desk: Desk) -> None:
    desk.go_on(desk.tell())

    desk.erase()

    acts = desk.rows(
        "SELECT actor, action, object, detail FROM celeriac.audit WHERE action LIKE 'user.%%'"
        " ORDER BY audit_id"
    )
    assert [tuple(act) for act in acts] == [
        (ADMIN, "user.erase", ALICE, {"runs": 1, "cancels": False}),
        (ADMIN, "user.erased", ALICE, {"runs": 1, "answers": 0}),
    ]


def test_others_keep_what_is_theirs(desk: Desk) -> None:
    desk.go_on(desk.tell())
    of_bob = desk.tell("bob")
    desk.go_on(of_bob)
    desk.age_artifacts()

    done = desk.erase()

    assert done.artifacts == 0  # bob's call has the same large value
    run = desk.client.get(of_bob)
    assert (run.input, run.erased_at) == (f"my secret is {SECRET}", None)
    assert desk.rows("SELECT unused_since FROM celeriac.artifacts")[0].unused_since is None
    assert desk.violations() == []


def test_one_thread_and_what_undid_its_runs(database: Database, broker_url: str) -> None:
    shop = Shop(database, broker_url, Tools(), [TAKE, BOOK, SHIP])
    run_id = shop.done()
    undo = shop.roll_back(run_id)
    other = shop.worker.start("shop")
    thread_id = ThreadId(shop.worker.row(run_id).thread_id)

    done = erasing.erase(database, Scope(DEFAULT_TENANT, thread_id=thread_id), ADMIN)

    assert done.runs == 2
    erased = shop.rows("SELECT run_id FROM celeriac.runs WHERE erased_at IS NOT NULL")
    assert {row.run_id for row in erased} == {run_id, undo.run_id}
    assert shop.rows("SELECT FROM celeriac.effects WHERE arguments IS NOT NULL") == []
    assert shop.worker.row(other).input is not None
    assert shop.violations() == []
    shop.close()


def test_a_tenant_is_forgotten_whole_and_others_are_not(desk: Desk) -> None:
    desk.go_on(desk.tell())
    desk.go_on(desk.tell("bob"))
    key = Key(DEFAULT_TENANT, UserId("api"), "POST /v1/runs", "k1", b"\0" * 32)
    with desk.database.begin() as connection:
        idempotency_keys.claim(connection, key)
        idempotency_keys.answer(connection, key, Answer(200, {}, f'"{SECRET}"'))
    desk.age_artifacts()

    with pytest.raises(InvalidInput, match="no tenant other"):
        desk.erase(Scope(TenantId("other")))
    done = desk.erase(Scope(DEFAULT_TENANT))

    assert (done.runs, done.answers) == (2, 1)
    assert desk.tables_with_the_secret() == []
    with desk.database.begin() as connection, pytest.raises(Conflict):
        idempotency_keys.claim(connection, key)


# What goes on -------------------------------------------------------------------------------------


def test_a_users_schedules_are_removed_with_what_they_start_runs_with(desk: Desk) -> None:
    desk.go_on(desk.tell())
    desk.go_on(desk.tell("bob"))
    with desk.database.connect() as connection:
        for user in (ALICE, "bob"):
            connection.exec_driver_sql(SCHEDULE, {"user": user, "secret": f"{SECRET} of {user}"})
            connection.exec_driver_sql(FIRE, {"user": user, "secret": f"{SECRET} of {user}"})
    desk.age_artifacts()

    desk.erase()

    assert desk.tables_with_the_secret(f"{SECRET} of {ALICE}") == []
    left = desk.rows("SELECT schedule_id FROM celeriac.schedules WHERE removed_at IS NULL")
    assert [row.schedule_id for row in left] == ["bob"]
    assert desk.tables_with_the_secret(f"{SECRET} of bob") == ["schedule_fires", "schedules"]


def test_what_is_remembered_of_a_user_goes_as_well(desk: Desk) -> None:
    desk.go_on(desk.tell())
    desk.go_on(desk.tell("bob"))
    for user in (ALICE, "bob"):
        desk.client.remember("favourite", f"city of {user}", user_id=user, by=user)
    with desk.database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.memory_vectors SELECT tenant_id, user_id, namespace, memory_key,"
            " 'hashing', version, '{1}' FROM celeriac.memories"
        )
    assert desk.rows("SELECT FROM celeriac.memories WHERE content IS NOT NULL")

    desk.erase()

    left = desk.rows("SELECT user_id, deleted_by FROM celeriac.memories ORDER BY 1")
    assert [tuple(row) for row in left] == [(ALICE, ADMIN), ("bob", None)]
    assert [row[0] for row in desk.rows("SELECT user_id FROM celeriac.memory_vectors")] == ["bob"]
    assert desk.violations() == []


def test_a_run_that_goes_on_is_in_the_way_or_cancelled(desk: Desk) -> None:
    done, waiting = desk.tell(), desk.tell()
    desk.go_on(done)

    with pytest.raises(Conflict, match=f"run {waiting} is queued"):
        desk.erase()
    assert desk.client.get(done).input is not None

    assert desk.erase(cancels=True).runs == 2
    assert desk.client.get(waiting).status is RunStatus.CANCELLED
    assert desk.tables_with_the_secret() == ["artifacts"]  # within its hour
    assert desk.violations() == []


def test_a_step_in_progress_is_recorded_first(database: Database) -> None:
    hand = Hand(database)
    run_id = hand.start()
    claim = hand.claim(run_id)

    with pytest.raises(Conflict, match="is running"):
        erasing.erase(database, OF_ALICE, ADMIN, cancels=True)

    assert hand.row(run_id).cancel_requested_at is not None
    assert hand.row(run_id).claim_token.hex == claim.token


def test_a_call_of_unknown_outcome_is_settled_first(database: Database) -> None:
    hand = Hand(database)
    run_id, call_id = hand.unknown_effect()

    with pytest.raises(Conflict, match=r"its call 0\.0 \(ship\) is unknown.*celeriac resolve"):
        erasing.erase(database, OF_ALICE, ADMIN, cancels=True)

    with database.begin() as connection:
        resolving.resolve(connection, run_id, call_id, NotDone(), ADMIN)
    assert erasing.erase(database, OF_ALICE, ADMIN).runs == 1
    assert audit(database) == []


def test_a_later_run_of_the_thread_does_not_see_what_was_erased(desk: Desk) -> None:
    desk.go_on(desk.tell(thread_id="t1"))
    desk.erase()
    desk.shown.clear()

    started = desk.client.start(desk.agent, "hello", user_id=ALICE, thread_id="t1")
    desk.go_on(started.run_id)

    assert SECRET not in desk.shown[0]
    assert "hello" in desk.shown[0]


def test_an_older_checkpoint_does_not_bring_it_back(desk: Desk) -> None:
    run_id = desk.tell()
    desk.go_on(run_id)

    desk.erase()

    for step in desk.rows("SELECT * FROM celeriac.checkpoints WHERE run_id = %s", run_id):
        assert SECRET not in str(step)
    for act in (
        lambda: desk.client.retry(run_id),
        lambda: desk.client.rollback(run_id, by="bob"),
        lambda: desk.client.resolve(run_id, CallId("0.0"), NotDone(), by="bob"),
        lambda: desk.client.say(run_id, SECRET, by="bob"),
    ):
        with pytest.raises(Conflict):
            act()
    desk.worker.step(run_id)  # a message from the past
    assert desk.tables_with_the_secret() == ["artifacts"]  # within its hour
    assert desk.violations() == []


def test_a_second_time_nothing_is_left_to_do(desk: Desk) -> None:
    desk.go_on(desk.tell())
    desk.age_artifacts()
    desk.erase()

    assert desk.erase() == Erased()


def test_an_artifact_that_is_stored_again_before_it_is_swept_stays(desk: Desk) -> None:
    """A step stores a large value first, and refers to it in its commit."""
    desk.go_on(desk.tell())
    desk.age_artifacts()
    with desk.database.connect() as connection:
        artifacts.store(connection, dumps(LARGE))

    done = desk.erase()

    assert (done.artifacts, done.artifacts_waiting) == (0, 1)


def test_the_command_erases_and_tells(desk: Desk) -> None:
    desk.go_on(desk.tell())

    def erase(*arguments: str) -> Any:
        command = ["--database-url", desk.database.url, "erase", *arguments]
        return CliRunner().invoke(app, command)

    missing = erase("user", "nobody")
    assert (missing.exit_code, "there is no user nobody" in missing.stderr) == (1, True)
    waiting = desk.tell()
    refused = erase("user", ALICE, "--as", "root")
    assert (refused.exit_code, f"run {waiting} is queued" in refused.stderr) == (1, True)
    told = json.loads(erase("user", ALICE, "--cancel", "--as", "root", "--json").stdout)

    assert told == {"runs": 2, "answers": 0, "artifacts": 0, "artifacts_waiting": 1}
