"""Runs driven step by step through the storage layer: every state a test needs, at its command.

No broker and no worker process; the statements are the ones that workers use.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from celeriac.codec import JsonValue
from celeriac.ids import (
    CallId,
    RunId,
    ThreadId,
    UserId,
    WorkerId,
    call_id,
    new_run_id,
    new_thread_id,
    new_worker_id,
)
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac_storage import claims, effects, starting, steps, workers
from celeriac_storage.agents import register_agent
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.new_run import NewRun
from celeriac_storage.step_record import (
    Committed,
    Event,
    Message,
    Next,
    PlannedEffect,
    SettledEffect,
    StepRecord,
)
from celeriac_storage.workers import WorkerInfo

AGENT = "clerk"
ALICE = UserId("alice")


class Hand:
    """A worker whose steps are made by hand. It is registered, without a lifeline."""

    def __init__(self, database: Database, *, agents: Sequence[str] = (AGENT,)) -> None:
        self.database = database
        self.worker_id: WorkerId = new_worker_id()
        with database.begin() as connection:
            for agent in agents:
                register_agent(connection, agent, "hash-1", definition(agent))
            workers.register(
                connection,
                WorkerInfo(self.worker_id, "localhost", 4711, "solo", agents, ["celeriac"]),
                lease_seconds=600,
                has_lifeline=False,
            )

    def start(
        self,
        *,
        run_id: RunId | None = None,
        thread_id: ThreadId | None = None,
        agent: str = AGENT,
    ) -> RunId:
        """A new run of Alice's, `queued` if it has its thread for itself."""
        run_id = run_id or new_run_id()
        with self.database.begin() as connection:
            starting.start(
                connection,
                NewRun(
                    run_id=run_id,
                    agent=agent,
                    input="hello",
                    user_message={"kind": "request", "parts": [{"content": "hello"}]},
                    limits={},
                    thread_id=thread_id or new_thread_id(),
                    user_id=ALICE,
                ),
            )
        return run_id

    def claim(self, run_id: RunId) -> Claim:
        """Claim the run's next step, whichever that is."""
        step = self.row(run_id).step
        with self.database.connect() as connection:
            claim = claims.claim(
                connection,
                run_id,
                step,
                worker_id=self.worker_id,
                deadlines={AGENT: 600},
                is_alone=True,
            )
        assert claim is not None, f"run {run_id} cannot be claimed at step {step}"
        return claim

    def commit(self, claim: Claim, record: StepRecord) -> Committed:
        with self.database.begin() as connection:
            return steps.commit(connection, claim, record)

    def ask_for_calls(self, run_id: RunId, tool: str = "ship", count: int = 1) -> list[CallId]:
        """A think step whose answer makes `count` external calls."""
        claim = self.claim(run_id)
        calls = [call_id(claim.step, index) for index in range(count)]
        pending: list[JsonValue] = list(calls)
        planned = [
            PlannedEffect(call, index, f"p{index}", tool, "1", EffectKind.EXTERNAL, {"order": 7})
            for index, call in enumerate(calls)
        ]
        self.commit(
            claim,
            StepRecord(
                Next.queued(Phase.WAITING_TOOL),
                StepKind.THINK,
                "before_tools",
                state={"phase": Phase.WAITING_TOOL, "pending": pending},
                messages=[Message("assistant", {"kind": "response", "parts": []})],
                events=[Event("model.answered", {"step": claim.step, "epoch": claim.epoch})],
                planned=planned,
                tool_calls=count,
            ),
        )
        return calls

    def begin_call(self, run_id: RunId, call: CallId) -> Claim:
        """Claim the act step and record its attempt, as before an external call."""
        claim = self.claim(run_id)
        with self.database.connect() as connection:
            effects.begin_attempt(connection, claim, call, timeout_seconds=30)
        return claim

    def lose_outcome(self, claim: Claim, call: CallId) -> None:
        """End the act step not knowing what came of the call: the run needs attention."""
        self.commit(claim, lost_outcome(call))

    def unknown_effect(self) -> tuple[RunId, CallId]:
        """A run in `needs_attention`, because nobody knows what came of its call."""
        run_id = self.start()
        (call,) = self.ask_for_calls(run_id)
        self.lose_outcome(self.begin_call(run_id, call), call)
        return run_id, call

    def poisoned(self, run_id: RunId | None = None) -> RunId:
        """A run in `needs_attention`, because its step failed three times."""
        run_id = run_id or self.start()
        for _ in range(claims.STRIKES_BEFORE_ATTENTION):
            with self.database.connect() as connection:
                claims.stumble(
                    connection, self.claim(run_id), {"kind": "bug", "message": "step failed"}
                )
        assert self.row(run_id).status == RunStatus.NEEDS_ATTENTION
        return run_id

    def complete(self, run_id: RunId, result: JsonValue = "done") -> None:
        """Claim the run and let its model give the last answer."""
        self.finish(
            self.claim(run_id), Next(RunStatus.COMPLETED, outcome="completed", result=result)
        )

    def finish(self, claim: Claim, following: Next) -> Committed:
        """A think step after which the run goes to `following`."""
        return self.commit(
            claim,
            StepRecord(
                following,
                StepKind.THINK,
                "terminal",
                state={} if following.phase is None else {"phase": following.phase},
                messages=[Message("assistant", {"kind": "response", "parts": []})],
            ),
        )

    def row(self, run_id: RunId) -> Row[Any]:
        with self.database.connect() as connection:
            return connection.exec_driver_sql(
                "SELECT * FROM celeriac.runs WHERE run_id = %s", (run_id,)
            ).one()

    def effect(self, run_id: RunId, call: CallId) -> Row[Any]:
        with self.database.connect() as connection:
            return connection.exec_driver_sql(
                "SELECT * FROM celeriac.effects WHERE run_id = %s AND call_id = %s", (run_id, call)
            ).one()

    def attempts(self, run_id: RunId, call: CallId) -> list[tuple[int, int, str, Any]]:
        """Attempt, entry, outcome and evidence of each row about the call."""
        with self.database.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT attempt, entry, outcome, evidence FROM celeriac.effect_attempts"
                " WHERE run_id = %s AND call_id = %s ORDER BY 1, 2",
                (run_id, call),
            )
            return [(row[0], row[1], row[2], row[3]) for row in rows]

    def events(self, run_id: RunId) -> list[str]:
        """The types of the run's events; fails unless they are numbered without a gap."""
        with self.database.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT seq, type FROM celeriac.events WHERE run_id = %s ORDER BY seq", (run_id,)
            ).all()
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        return [row[1] for row in rows]

    def event_data(self, run_id: RunId, type_: str) -> dict[str, Any]:
        """The data of the run's only event of this type."""
        with self.database.connect() as connection:
            data: dict[str, Any] = connection.exec_driver_sql(
                "SELECT data FROM celeriac.events WHERE run_id = %s AND type = %s",
                (run_id, type_),
            ).scalar_one()
        return data


def definition(agent: str) -> dict[str, JsonValue]:
    """A registered definition of an agent that takes a text."""
    return {"name": agent, "input_schema": {"type": "string"}, "limits": {}, "queue": "celeriac"}


def lost_outcome(call: CallId) -> StepRecord:
    """An act step that ends not knowing what came of the call."""
    why: dict[str, JsonValue] = {"kind": "timeout", "message": "took longer than 30 s"}
    return StepRecord(
        Next.needs_attention(
            Phase.WAITING_TOOL, {"kind": "unknown_effect", "message": "nobody knows"}
        ),
        StepKind.ACT,
        "needs_attention",
        advances=False,
        events=[Event("effect.unknown", {"call_id": call, "tool": "ship"})],
        settled=[
            SettledEffect(
                call,
                EffectState.IN_FLIGHT,
                EffectState.UNKNOWN,
                error=why,
                is_attempt=True,
                evidence=why,
            )
        ],
    )
