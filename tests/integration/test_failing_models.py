"""A model that fails, through real steps: what each attempt leaves, and how long until the next."""

# features: 003-11, 004-05
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Row

from celeriac import Agent
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.integration.test_recovery import wake
from tests.provider_server import ProviderServer, Reply
from tests.worker_in_process import Worker

DONE = Reply.text("done")
PATIENCE_SECONDS = 60.0  # that a question may take, however slow the machine is
SILENCE_SECONDS = 2.0  # where no answer comes: enough to send the question

PASSING = {
    "429": (Reply.rate_limited(), "rate_limited", 429),
    "500": (Reply.error(500, "oops"), "server_error", 500),
    "silence": (Reply.hanging(), "timeout", None),
    "a connection that is closed": (Reply.closed_at_once(), "connection", None),
    "half a body": (Reply.half_a_body(), "connection", None),
    "no JSON": (Reply.no_json(), "malformed_response", None),
}
PERMANENT = {
    "400": (Reply.error(400, "bad schema"), "bad_request"),
    "401": (Reply.error(401, "who?", code="invalid_api_key"), "authentication"),
    "a conversation that is too long": (Reply.context_too_long(), "context_too_long"),
}


class Asking:
    """A run whose model is a provider over HTTP; each step is taken by another worker."""

    def __init__(self, database: Database, broker_url: str, server: ProviderServer) -> None:
        self.database, self.broker_url, self.server = database, broker_url, server
        worker = self.new_worker(PATIENCE_SECONDS)
        self.run_id = worker.start("asker")
        worker.process.stop()

    def new_worker(self, patience_seconds: float) -> Worker:
        agent = Agent("asker", self.server.model(), think_timeout_seconds=patience_seconds)
        worker = Worker(self.database.url, self.broker_url, [agent])
        worker.process.start()
        return worker

    def step(self, patience_seconds: float = PATIENCE_SECONDS) -> Row[Any]:
        worker = self.new_worker(patience_seconds)
        worker.step(self.run_id)
        row = worker.row(self.run_id)
        wake(worker)
        worker.process.stop()
        return row

    def query(self, sql: str) -> list[Any]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, (self.run_id,)))

    @property
    def attempts(self) -> list[tuple[int, int, str]]:
        rows = self.query(
            "SELECT step, attempt, outcome FROM celeriac.model_calls WHERE run_id = %s"
            " ORDER BY step, attempt"
        )
        return [tuple(row) for row in rows]

    def events(self, type_: str) -> list[dict[str, Any]]:
        rows = self.query("SELECT type, data FROM celeriac.events WHERE run_id = %s ORDER BY seq")
        return [row.data for row in rows if row.type == type_]


@pytest.fixture
def asking(database: Database, broker_url: str) -> Iterator[Callable[..., Asking]]:
    with ExitStack() as stack:

        def make(*replies: Reply) -> Asking:
            server = stack.enter_context(ProviderServer(replies))
            return Asking(database, broker_url, server)

        yield make
    assert audit(database) == []


@pytest.mark.parametrize(("reply", "kind", "status"), PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_a_row_and_asked_again_later(
    asking: Callable[..., Asking], reply: Reply, kind: str, status: int | None
) -> None:
    asked = asking(reply, DONE)

    waiting = asked.step(SILENCE_SECONDS if kind == "timeout" else PATIENCE_SECONDS)

    assert (waiting.status, waiting.phase, waiting.step) == ("paused", "waiting_timer", 0)
    assert waiting.claim_token is None
    assert asked.attempts == [(0, 1, kind)]
    ((error,),) = asked.query("SELECT error FROM celeriac.model_calls WHERE run_id = %s")
    assert (error["kind"], error.get("status_code")) == (kind, status)
    (failed,) = asked.events("model.failed")
    assert (failed["attempt"], failed["kind"]) == (1, kind)
    assert asked.query("SELECT role FROM celeriac.messages WHERE run_id = %s") == [("user",)]

    ended = asked.step()

    assert (ended.status, ended.result) == ("completed", "done")
    assert asked.attempts == [(0, 1, kind), (0, 2, "answered")]
    assert asked.server.requests[0] == asked.server.requests[1], "the same question"


@pytest.mark.parametrize(("reply", "kind"), PERMANENT.values(), ids=PERMANENT.keys())
def test_what_does_not_pass_ends_the_run_with_the_reason(
    asking: Callable[..., Asking], reply: Reply, kind: str
) -> None:
    asked = asking(reply)

    ended = asked.step()

    assert (ended.status, ended.outcome, ended.result) == ("failed", "model_failed", None)
    assert (ended.error["kind"], ended.error["attempts"]) == (kind, 1)
    assert asked.attempts == [(0, 1, kind)]
    assert "retry_in_seconds" not in asked.events("model.failed")[0]
    assert len(asked.server.requests) == 1


def test_waits_grow_to_a_cap_and_are_counted_over_all_workers_until_the_last(
    asking: Callable[..., Asking],
) -> None:
    asked = asking(Reply.rate_limited())

    waits = []
    while (row := asked.step()).status == "paused":
        waits.append((row.wake_at - row.paused_at) / timedelta(seconds=1))

    ceilings = [2, 4, 8, 16, 32, 64, 120, 120, 120]
    assert len(waits) == len(ceilings)
    for wait, ceiling in zip(waits, ceilings, strict=True):
        assert ceiling / 2 <= wait <= ceiling + 0.1
    assert len({wait / ceiling for wait, ceiling in zip(waits, ceilings, strict=True)}) > 1
    assert (row.status, row.error["kind"], row.error["attempts"]) == ("failed", "rate_limited", 10)
    assert asked.attempts == [(0, attempt, "rate_limited") for attempt in range(1, 11)]
    said = [event.get("retry_in_seconds") for event in asked.events("model.failed")]
    assert said == [*(pytest.approx(wait, abs=0.1) for wait in waits), None]
    assert len(asked.server.requests) == 10


def test_of_failures_of_several_kinds_the_last_one_says_whether_there_is_another_attempt(
    asking: Callable[..., Asking],
) -> None:
    asked = asking(Reply.rate_limited(), Reply.rate_limited(), Reply.no_json())

    assert [asked.step().status for _ in range(3)] == ["paused", "paused", "failed"]

    assert asked.attempts == [
        (0, 1, "rate_limited"), (0, 2, "rate_limited"), (0, 3, "malformed_response"),
    ]  # fmt: skip
