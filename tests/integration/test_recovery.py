"""Calls whose outcome got lost, or that only seemed to work, through real steps.

The target is a ledger in this process: it does what it is told, but may lose its answer, say that
it worked and do nothing, show it late, or not be there to be asked.
"""

# features: 002-19, 002-20, 004-20, 004-32, 004-33
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from celeriac import Agent, ToolContext, ToolError, tool
from celeriac.ids import DEFAULT_USER, RunId
from celeriac.recovery import MAX_LOOKS, MAX_SENDS, Done, Finding, NotDone, Retry
from celeriac.scripted import ScriptedModel, call, say
from celeriac.tools import EffectName, Tool
from celeriac_storage import lost_calls, requests, resolving, waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone as SettledAsNotDone
from celeriac_tasks.step import take_step
from tests.worker_in_process import FIRST_CALL, Worker

AnyTool = Tool[..., Any]
MakeWorker = Callable[[AnyTool], Worker]


class AnswerLost(Exception):
    """The connection broke after the request was sent."""


class Refused(ToolError):
    """The target said no, for now."""


@dataclass
class Ledger:
    """A target that does things once per key, with faults that can be switched on."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    looks: int = 0
    loses_answers: int = 0  # how many of the next ones
    does_nothing: bool = False
    refusals: int = 0  # how many of the next ones
    hides: int = 0  # from how many of the next looks
    cannot_tell: bool = False

    def order(self, key: str) -> dict[str, Any]:
        self.requests.append(key)
        if self.refusals:
            self.refusals -= 1
            raise Refused("busy")
        if not self.does_nothing:
            self.done.setdefault(key, {"number": len(self.done) + 1})
        if self.loses_answers:
            self.loses_answers -= 1
            raise AnswerLost("no answer")
        return {"status": "OK"}

    def look(self, key: str) -> Finding:
        self.looks += 1
        if self.cannot_tell:
            raise ConnectionError("down")
        if self.hides:
            self.hides -= 1
            return NotDone()
        return Done(self.done[key]) if key in self.done else NotDone()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def make_worker(database_url: str, broker_url: str) -> Iterator[MakeWorker]:
    with ExitStack() as stack:

        def make(order: AnyTool) -> Worker:
            model = ScriptedModel([call(order.name), say("done")])
            worker = Worker(database_url, broker_url, [Agent("clerk", model, tools=[order])])
            worker.process.start()
            stack.callback(worker.process.stop)
            return worker

        yield make


def order_tool(ledger: Ledger, **declared: Any) -> AnyTool:
    """A tool that orders from the ledger, with a `verify` unless `declared` says otherwise."""

    def find(ctx: ToolContext) -> Finding:
        return ledger.look(ctx.idempotency_key)

    declared.setdefault("verify", find)

    @tool(effect="external", **declared)
    def order(ctx: ToolContext) -> dict[str, Any]:
        """Order one."""
        return ledger.order(ctx.idempotency_key)

    return order


def wake(worker: Worker) -> None:
    """Have the timers' time come at once."""
    with worker.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET wake_at = now() WHERE phase = 'waiting_timer'"
        )
        waking.take_due_timers(connection)


def run_on(worker: Worker, run_id: RunId) -> Any:
    """The run's row as far as it goes by itself, with its timers' time come at once."""
    for _ in range(4 * (MAX_LOOKS + MAX_SENDS)):
        wake(worker)
        row = worker.row(run_id)
        if row.status != "queued":
            return row
        worker.step(run_id)
    raise AssertionError(f"the run goes on and on: {row}")


def run_to(worker: Worker, run_id: RunId, *, requests: int) -> Any:
    """The row of its call, as soon as the step is over in which it was sent so often."""
    while worker.effect(run_id).attempt < requests:
        wake(worker)
        assert worker.row(run_id).status == "queued"
        worker.step(run_id)
    return worker.effect(run_id)


def start(worker: Worker) -> RunId:
    run_id = worker.start("clerk")
    worker.step(run_id)  # the model asks for the order
    return run_id


def outcomes(worker: Worker, run_id: RunId) -> list[tuple[int, str]]:
    with worker.database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT attempt, outcome FROM celeriac.effect_attempts WHERE run_id = %s"
            " ORDER BY attempt, entry",
            (run_id,),
        )
        return [(row[0], row[1]) for row in rows]


def events(worker: Worker, run_id: RunId) -> list[tuple[str, dict[str, Any]]]:
    with worker.database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT type, data FROM celeriac.events WHERE run_id = %s ORDER BY seq", (run_id,)
        )
        return [(row[0], row[1]) for row in rows]


def assert_audit_is_clean(database: Database) -> None:
    assert audit(database) == []


def test_a_success_is_checked_at_the_target_before_it_counts(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    worker = make_worker(order_tool(ledger))

    run = run_on(worker, start(worker))

    assert (run.status, ledger.looks, len(ledger.requests)) == ("completed", 1, 1)
    assert worker.effect(run.run_id).result == {"status": "OK"}
    assert_audit_is_clean(database)


def test_a_lost_answer_is_found_at_the_target_and_nothing_is_sent_again(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.loses_answers = 1
    worker = make_worker(order_tool(ledger))

    run = run_on(worker, start(worker))

    assert run.status == "completed"
    assert len(ledger.requests) == 1
    assert worker.effect(run.run_id).result == {"number": 1}
    assert outcomes(worker, run.run_id) == [(1, "started"), (1, "unknown"), (1, "committed")]
    assert_audit_is_clean(database)


def test_what_is_certainly_not_done_is_sent_again_with_the_same_key(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.loses_answers = 1
    ledger.does_nothing = True
    worker = make_worker(order_tool(ledger))
    run_id = start(worker)
    worker.step(run_id)
    ledger.does_nothing = False

    run = run_on(worker, run_id)

    assert run.status == "completed"
    assert len(ledger.requests) == 2
    assert len(set(ledger.requests)) == 1
    assert worker.effect(run_id).attempt == 2
    assert outcomes(worker, run_id)[:3] == [(1, "started"), (1, "unknown"), (1, "not_done")]
    assert_audit_is_clean(database)


def test_a_success_that_shows_late_is_waited_for(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.hides = 1
    worker = make_worker(order_tool(ledger, visibility_seconds=5.0))
    run_id = start(worker)
    worker.step(run_id)
    waiting = worker.row(run_id)

    assert (waiting.status, waiting.phase) == ("paused", "waiting_timer")
    assert worker.effect(run_id).state == "unknown"
    # Its time has not come: looked at too early, it would be taken for not done.
    run_on_without_time(worker, run_id)
    assert ledger.looks == 1
    let_the_call_be_over(worker, run_id)

    run = run_on(worker, run_id)

    assert (run.status, len(ledger.requests)) == ("completed", 1)
    assert worker.effect(run_id).result == {"number": 1}
    assert_audit_is_clean(database)


def run_on_without_time(worker: Worker, run_id: RunId) -> None:
    """Wake the run's timer, but not the target's."""
    with worker.database.connect() as connection:
        connection.exec_driver_sql("UPDATE celeriac.runs SET wake_at = now()")
        waking.take_due_timers(connection)
    worker.step(run_id)
    assert worker.row(run_id).status == "paused"


def let_the_call_be_over(worker: Worker, run_id: RunId) -> None:
    """As if the attempts had been made a minute ago."""
    with worker.database.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE celeriac.effect_attempts DISABLE TRIGGER USER")
        connection.exec_driver_sql(
            "UPDATE celeriac.effect_attempts SET at = at - interval '1 minute',"
            " deadline_at = deadline_at - interval '10 minutes' WHERE run_id = %s",
            (run_id,),
        )
        connection.exec_driver_sql("ALTER TABLE celeriac.effect_attempts ENABLE TRIGGER USER")


def test_a_success_that_never_shows_is_known_bad_and_a_person_is_asked(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.does_nothing = True
    worker = make_worker(order_tool(ledger))
    run_id = start(worker)

    run = run_on(worker, run_id)

    assert (run.status, run.error["kind"]) == ("needs_attention", "known_bad_effect")
    assert worker.effect(run_id).state == "known_bad"
    assert len(ledger.requests) == 1
    assert_audit_is_clean(database)

    with database.begin() as connection:
        resolving.resolve(connection, run_id, FIRST_CALL, SettledAsNotDone(), run.user_id)
    ended = run_on(worker, run_id)

    assert ended.status == "completed"
    assert worker.effect(run_id).state == "rolled_back"
    assert len(ledger.requests) == 1
    assert_audit_is_clean(database)


@pytest.mark.parametrize(
    ("on_unknown", "looks"), [("ask", 1), ("verify", MAX_LOOKS)], ids=["ask", "verify"]
)
def test_a_target_that_cannot_tell_ends_with_a_person(
    make_worker: MakeWorker, ledger: Ledger, database: Database, on_unknown: str, looks: int
) -> None:
    ledger.loses_answers = 1
    ledger.cannot_tell = True
    worker = make_worker(order_tool(ledger, on_unknown=on_unknown))
    run_id = start(worker)
    worker.step(run_id)
    assert worker.effect(run_id).state == "unknown"

    run = run_on(worker, run_id)

    assert (run.status, run.error["kind"]) == ("needs_attention", "unknown_effect")
    assert "ConnectionError: down" in run.error["message"]
    assert (ledger.looks, len(ledger.requests)) == (looks, 1)
    assert_audit_is_clean(database)


def test_a_key_that_makes_it_safe_is_sent_again_until_an_answer_comes(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.loses_answers = 2
    worker = make_worker(order_tool(ledger, verify=None, on_unknown="resend"))

    run = run_on(worker, start(worker))

    assert run.status == "completed"
    assert len(ledger.requests) == 3
    assert len(ledger.done) == 1
    assert_audit_is_clean(database)


def test_a_key_is_not_sent_for_ever(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.loses_answers = 1000
    worker = make_worker(order_tool(ledger, verify=None, on_unknown="resend"))

    run = run_on(worker, start(worker))

    assert run.status == "needs_attention"
    assert len(ledger.requests) == MAX_SENDS
    assert_audit_is_clean(database)


def refused_once_more(
    make_worker: MakeWorker, ledger: Ledger, **declared: Any
) -> tuple[Worker, RunId]:
    """A call whose answer got lost, and that the target refuses when it is sent again."""
    ledger.loses_answers = 1
    worker = make_worker(order_tool(ledger, on_unknown="resend", **declared))
    run_id = start(worker)
    worker.step(run_id)
    ledger.refusals = 1
    return worker, run_id


@pytest.mark.parametrize("retry", [None, Retry(attempts=3, on=(Refused,))])
def test_what_a_second_attempt_is_refused_for_says_nothing_of_the_first(
    make_worker: MakeWorker, ledger: Ledger, database: Database, retry: Retry | None
) -> None:
    worker, run_id = refused_once_more(make_worker, ledger, verify=None, retry=retry)

    run = run_on(worker, run_id)

    assert (run.status, run.error["kind"]) == ("needs_attention", "unknown_effect")
    assert "an earlier attempt may have taken effect" in run.error["message"]
    assert (worker.effect(run_id).state, len(ledger.requests)) == ("unknown", 2)
    assert outcomes(worker, run_id) == [
        (1, "started"), (1, "unknown"), (2, "started"), (2, "unknown"),
    ]  # fmt: skip
    assert_audit_is_clean(database)


def test_the_target_is_asked_what_came_of_the_first_if_it_refuses_the_second(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    worker, run_id = refused_once_more(make_worker, ledger)
    ledger.cannot_tell = True
    assert run_to(worker, run_id, requests=2).attempt == 2
    ledger.cannot_tell = False

    run = run_on(worker, run_id)

    assert (run.status, len(ledger.requests)) == ("completed", 2)
    assert worker.effect(run_id).result == {"number": 1}
    assert_audit_is_clean(database)


def test_a_refusal_counts_once_the_target_says_that_the_first_did_nothing(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.does_nothing = True
    worker, run_id = refused_once_more(make_worker, ledger)
    ledger.cannot_tell = True
    ledger.refusals = 1000
    assert run_to(worker, run_id, requests=2).state == "unknown"
    ledger.cannot_tell = False

    run = run_on(worker, run_id)

    assert (run.status, len(ledger.requests)) == ("completed", 3)
    assert worker.effect(run_id).state == "failed"
    assert_audit_is_clean(database)


@pytest.mark.parametrize("asked", ["cancel", "interrupt"])
def test_what_was_to_be_sent_again_stays_unknown_if_the_run_is_stopped_before(
    make_worker: MakeWorker, ledger: Ledger, database: Database, asked: str
) -> None:
    worker, run_id = refused_once_more(make_worker, ledger, verify=None)
    ask = requests.request_cancel if asked == "cancel" else requests.request_interrupt

    with database.begin() as connection:
        ask(connection, run_id, worker.row(run_id).user_id)
    run = run_on(worker, run_id)

    assert run.status == {"cancel": "cancelled", "interrupt": "paused"}[asked]
    assert (worker.effect(run_id).state, len(ledger.requests)) == ("unknown", 1)
    assert_audit_is_clean(database)


def test_a_refusal_is_tried_again_as_the_tools_policy_says(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    # features: 004-03, 004-05
    ledger.refusals = 2
    worker = make_worker(order_tool(ledger, retry=Retry(attempts=3, on=(Refused,))))

    run = run_on(worker, start(worker))

    assert (run.status, run.result, len(ledger.requests)) == ("completed", "done", 3)
    assert worker.effect(run.run_id).state == "committed"
    assert outcomes(worker, run.run_id) == [
        (1, "started"), (1, "not_done"), (2, "started"), (2, "not_done"), (3, "started"),
        (3, "committed"),
    ]  # fmt: skip
    told = [each for each in events(worker, run.run_id) if "attempt" in each[1]]
    assert [(type_, data["attempt"]) for type_, data in told] == [
        ("effect.in_flight", 1), ("tool.failed", 1), ("effect.in_flight", 2), ("tool.failed", 2),
        ("effect.in_flight", 3),
    ]  # fmt: skip
    first, second = (data["retry_in_seconds"] for type_, data in told if type_ == "tool.failed")
    assert 0.5 <= first <= 1 <= second <= 2
    assert_audit_is_clean(database)


def test_a_refusal_that_stays_is_told_to_the_model(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    # features: 003-11
    ledger.refusals = 1000
    worker = make_worker(order_tool(ledger, retry=Retry(attempts=3, on=(Refused,))))

    run = run_on(worker, start(worker))

    assert (run.status, len(ledger.requests)) == ("completed", 3)
    effect = worker.effect(run.run_id)
    assert (effect.state, effect.error["message"]) == ("failed", "busy")
    assert_audit_is_clean(database)


@pytest.mark.parametrize("effect", ["none", "transactional"])
def test_a_call_without_effect_is_tried_again_too(
    make_worker: MakeWorker, database: Database, effect: EffectName
) -> None:
    tried: list[int] = []

    @tool(effect=effect, retry=Retry(attempts=3, on=(Refused, KeyError)))
    def look_up(ctx: ToolContext) -> str:
        """Look something up."""
        tried.append(ctx.attempt)
        if len(tried) < 3:
            raise KeyError("not yet") if len(tried) == 1 else Refused("busy")
        return "found"

    worker = make_worker(look_up)

    run = run_on(worker, start(worker))

    assert (run.status, tried) == ("completed", [1, 2, 3])
    assert worker.effect(run.run_id).attempt == 3
    assert_audit_is_clean(database)


def test_a_cancel_waits_until_it_is_known_what_came_of_the_call(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    ledger.loses_answers = 1
    worker = make_worker(order_tool(ledger))
    run_id = start(worker)
    worker.step(run_id)
    assert worker.row(run_id).status == "paused"

    with database.begin() as connection:
        requests.request_cancel(connection, run_id, worker.row(run_id).user_id)
    run = run_on(worker, run_id)

    assert run.status == "cancelled"
    assert worker.effect(run_id).state == "committed"
    assert_audit_is_clean(database)


def test_a_worker_that_lost_its_claim_still_tells_what_came_of_its_call(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    called, may_return = threading.Event(), threading.Event()

    @tool(effect="external")
    def order(ctx: ToolContext) -> dict[str, Any]:
        """Order one."""
        answer = ledger.order(ctx.idempotency_key)
        called.set()
        assert may_return.wait(30)
        return answer

    worker = make_worker(order)
    run_id = start(worker)
    slow = threading.Thread(target=take_step, args=(worker.process, run_id, 1))
    slow.start()
    assert called.wait(30)
    take_away(database, run_id)
    worker.step(run_id)  # finds the call in flight, and only a person could tell
    assert worker.row(run_id).status == "needs_attention"

    may_return.set()
    slow.join(30)

    assert worker.row(run_id).status == "queued"  # told by the worker that made the call
    run = run_on(worker, run_id)
    assert (run.status, len(ledger.requests)) == ("completed", 1)
    assert worker.effect(run_id).result == {"status": "OK"}
    assert_audit_is_clean(database)


def test_a_look_that_hangs_is_no_answer(make_worker: MakeWorker, database: Database) -> None:
    is_over = threading.Event()

    def verify(_: ToolContext) -> Finding:
        is_over.wait(60)
        return Done()

    @tool(effect="external", verify=verify, timeout_seconds=0.2)
    def order() -> None:
        """Order one, and not hear of it."""
        raise AnswerLost("no answer")

    worker = make_worker(order)

    run = run_on(worker, start(worker))

    assert (run.status, run.error["kind"]) == ("needs_attention", "unknown_effect")
    assert "verify took longer than 0.2 s" in run.error["message"]
    assert run.strikes == 0
    is_over.set()
    assert_audit_is_clean(database)


def test_a_cancel_is_heeded_by_a_step_that_ends_with_a_question_to_people(
    make_worker: MakeWorker, database: Database
) -> None:
    # The question is kept with the call; `celeriac resolve` can still answer it.
    @tool(effect="external")
    def order(ctx: ToolContext) -> None:
        """Order one, and not hear of it."""
        with database.begin() as connection:
            requests.request_cancel(connection, ctx.run_id, DEFAULT_USER)
        raise AnswerLost("no answer")

    worker = make_worker(order)
    run_id = start(worker)

    run = run_on(worker, run_id)

    assert (run.status, run.error) == ("cancelled", None)
    assert worker.effect(run_id).state == "unknown"
    assert_audit_is_clean(database)


def test_a_cancel_while_it_is_found_out_is_heeded_though_only_a_person_can_tell(
    make_worker: MakeWorker, ledger: Ledger, database: Database
) -> None:
    def verify(ctx: ToolContext) -> Finding:
        if ledger.looks == 1:
            with database.begin() as connection:
                requests.request_cancel(connection, ctx.run_id, DEFAULT_USER)
        return ledger.look(ctx.idempotency_key)

    ledger.loses_answers, ledger.cannot_tell = 1, True
    worker = make_worker(order_tool(ledger, verify=verify, on_unknown="verify"))
    run_id = start(worker)

    run = run_on(worker, run_id)

    assert run.status == "cancelled"
    assert ledger.looks >= MAX_LOOKS
    assert worker.effect(run_id).state == "unknown"
    assert_audit_is_clean(database)


def test_what_its_worker_tells_while_another_is_finding_out_counts(
    make_worker: MakeWorker, ledger: Ledger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the call would be sent again, on what its target showed a moment too early."""
    called, may_return = threading.Event(), threading.Event()
    asked, may_answer = threading.Event(), threading.Event()

    def verify(_: ToolContext) -> Finding:
        if may_return.is_set():
            return Done()
        asked.set()
        assert may_answer.wait(30)
        return NotDone()

    @tool(effect="external", verify=verify)
    def order(ctx: ToolContext) -> dict[str, Any]:
        """Order one."""
        called.set()
        assert may_return.wait(30)
        return ledger.order(ctx.idempotency_key)

    look_at_once = lost_calls.find
    monkeypatch.setattr(
        lost_calls,
        "find",
        lambda *given: replace(look_at_once(*given), seconds_until_visible=0.0),
    )
    worker = make_worker(order)
    run_id = start(worker)
    slow = threading.Thread(target=take_step, args=(worker.process, run_id, 1))
    slow.start()
    assert called.wait(30)
    take_away(database, run_id)
    finding_out = threading.Thread(target=take_step, args=(worker.process, run_id, 1))
    finding_out.start()
    assert asked.wait(30)

    may_return.set()
    slow.join(30)
    may_answer.set()
    finding_out.join(30)

    run = run_on(worker, run_id)
    assert (run.status, len(ledger.requests)) == ("completed", 1)
    assert worker.effect(run_id).attempt == 1
    assert_audit_is_clean(database)


def take_away(database: Database, run_id: RunId) -> None:
    """Queue the step again, as after a verdict about its worker."""
    with database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET status = 'queued', claim_token = NULL, step_deadline = NULL,"
            " published_at = clock_timestamp(), publish_count = 1 WHERE run_id = %s",
            (run_id,),
        )
