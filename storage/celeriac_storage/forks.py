"""Runs that go on from where another one stood: forks, and retries of runs that have failed.

A run that has ended never changes, so trying it again is a run of its own. It reads the messages of
its origin where they are, up to the step that it makes instead, and none is copied; its own log
begins empty. What the origin's calls did is not its own: a call that it makes has a key of its own.

Of a workflow, what was done stands in its log, and that of a retry begins with it (`kept_entries`).

A fork has a thread of its own. A retry goes on in its origin's thread, and there is one of each
failed run. That is the difference between the two for its first step as well (`carried`): a fork
makes all calls anew that were still to be made, a retry none that has taken effect since.

Rows are locked in this order: the origin's thread, the origin, the thread of the new run. Whoever
erases or prunes locks in the same order, so nothing is begun with what is taken away just now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import Conflict, InvalidInput
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId
from celeriac.states import EffectState, Phase, RunKind, RunStatus
from celeriac_storage import audit_trail, effects, kept_entries, starting
from celeriac_storage.effects import Effect
from celeriac_storage.new_run import NewRun, Origin, Started
from celeriac_storage.requests import erased, unknown_run

_ENDED_THERE = "terminal"
"""The reason of a checkpoint with which its run ended: there is nothing to go on with after it."""


@dataclass(frozen=True, slots=True)
class ForkSpec:
    """Which run is to go on, as a run of which id."""

    run_id: RunId
    by: UserId
    fork_id: RunId
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Forked:
    """The run that goes on, its thread, and where it stands."""

    run_id: RunId
    thread_id: ThreadId
    queue: str
    started: Started
    is_new: bool  # else it was started before

    @classmethod
    def before(cls, row: Any) -> "Forked":
        """Of the row of a run that was started before."""
        phase = None if row.phase is None else Phase(row.phase)
        started = Started(RunStatus(row.status), phase)
        return cls(row.run_id, row.thread_id, row.queue, started, is_new=False)


def fork(connection: Connection, spec: ForkSpec, step: int, thread_id: ThreadId) -> Forked:
    """Start a run that goes on from before that step of the run, in a new thread. Needs a
    transaction, to be rolled back after an error.

    Raises `UnknownRun`; `InvalidInput` for a step that the run has not come to; `Conflict` if its
    payload was erased, or if it is no agent's run.
    """
    run = _lock(connection, spec.run_id)
    if run.kind is RunKind.WORKFLOW:
        raise Conflict(
            f"run {spec.run_id} is a workflow, and cannot be forked: start a new one, or "
            f"`celeriac retry {spec.run_id}` if it has failed"
        )
    # Not isinstance: True is no step.
    if type(step) is not int or not 0 <= step <= run.last_step:
        raise InvalidInput(
            f"run {spec.run_id} cannot be forked at step {step!r}: it can at the steps 0 to "
            f"{run.last_step}"
        )
    if step and _hands_over(connection, spec.run_id, step):
        raise Conflict(
            f"run {spec.run_id} hands its conversation over at step {step}; fork it at step "
            f"{step - 1}, where its model decides about that"
        )
    started = starting.start(connection, _new_run(connection, spec, run, step, thread_id))
    _note(connection, spec, run, "run.fork", step)
    return Forked(spec.fork_id, thread_id, run.queue, started, is_new=True)


def retry(connection: Connection, spec: ForkSpec) -> Forked:
    """Start the run that tries the last step of a failed one again, in the same thread; or, if
    there is one already, that. Needs a transaction, to be rolled back after an error.

    What the run has done is not done again. Raises `UnknownRun`, or `Conflict` if it has not
    failed, if the outcome of one of its calls is unknown, or if it was rolled back.
    """
    run = _lock(connection, spec.run_id)
    if (before := _retry_of(connection, run, spec.run_id)) is not None:
        return before
    if run.status is not RunStatus.FAILED:
        raise Conflict(f"run {spec.run_id} is {run.status}, and there is nothing to try again")
    if run.is_child:
        raise Conflict(
            f"run {spec.run_id} answers a call of another run, which was told that it failed and "
            f"went on: retry that one if it failed as well, or `celeriac fork {spec.run_id} --at "
            f"{run.last_step}`"
        )
    if run.kind is RunKind.WORKFLOW:
        _refuse_obstacle(connection, spec.run_id)
    _refuse_doubtful(connection, spec.run_id)
    _refuse_undone(connection, spec.run_id)
    step = run.last_step
    if step and _hands_over(connection, spec.run_id, step):
        step -= 1
    new = _new_run(connection, spec, run, step, run.thread_id)
    started = starting.start(connection, new)
    if run.kind is RunKind.WORKFLOW:
        kept_entries.keep(connection, spec.run_id, spec.fork_id)
    _note(connection, spec, run, "run.retry", step)
    return Forked(spec.fork_id, run.thread_id, run.queue, started, is_new=True)


def has_failed(connection: Connection, run_id: RunId) -> bool:
    """Whether the run has failed, for good then: no lock is needed to know."""
    query = "SELECT status = 'failed' FROM celeriac.runs WHERE run_id = %s"
    return bool(connection.exec_driver_sql(query, (run_id,)).scalar())


def has_plan(connection: Connection, run_id: RunId) -> bool:
    """Whether the run executes a plan, which goes on in a way of its own (`plan_retries`)."""
    query = "SELECT FROM celeriac.plans WHERE run_id = %s"
    return connection.exec_driver_sql(query, (run_id,)).fetchone() is not None


@dataclass(frozen=True, slots=True)
class Carried:
    """The calls that a fork finds asked for, and its model not told of, when it begins."""

    origin: RunId
    to_be_made: Sequence[Effect]
    known: Sequence[
        Effect
    ]  # of a retry: what came of them is recorded, and they are not made again
    doubtful: Sequence[Effect]  # of a retry: a person has to say first what came of them


def carried(connection: Connection, run_id: RunId) -> Carried | None:
    """What the run has to do before its model is asked; None if there is no such call."""
    row: Any = connection.exec_driver_sql(
        """
        WITH RECURSIVE link AS (
            SELECT thread_id, forked_from, forked_step FROM celeriac.runs WHERE run_id = %s
            UNION ALL
            -- A fork that is forked at its own beginning stands where its origin stood.
            SELECT link.thread_id, run.forked_from, run.forked_step
            FROM link JOIN celeriac.runs AS run ON run.run_id = link.forked_from
            WHERE link.forked_step = 0 AND run.forked_from IS NOT NULL
        )
        SELECT origin.run_id, origin.thread_id = link.thread_id, last.state -> 'pending'
        FROM link JOIN celeriac.runs AS origin ON origin.run_id = link.forked_from
        JOIN celeriac.checkpoints AS last
            ON last.run_id = origin.run_id AND last.step = link.forked_step - 1
        WHERE last.state ? 'pending'
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    origin, is_retry, pending = row
    calls = effects.load(connection, origin, pending)
    doubtful = _doubtful(connection, origin) if is_retry else []
    known = _KNOWN if is_retry else frozenset()
    return Carried(
        origin,
        [call for call in calls if call.state not in known],
        [call for call in calls if call.state in known],
        [call for call in calls if call.call_id in doubtful],
    )


_KNOWN = frozenset({EffectState.COMMITTED, EffectState.FAILED})
"""What a retry takes for an answer. What people have refused, what did not hold before a call and
what could not be made is looked at anew."""


def _doubtful(connection: Connection, run_id: RunId) -> list[CallId]:
    """The run's calls of which more may be said than is recorded."""
    rows = connection.exec_driver_sql(
        f"SELECT call_id FROM celeriac.effects AS effect WHERE run_id = %s AND {effects.DOUBTFUL}"
        " ORDER BY step, call_index",
        (run_id,),
    )
    return [CallId(row[0]) for row in rows]


@dataclass(frozen=True, slots=True)
class _Run:
    tenant_id: TenantId
    user_id: UserId
    thread_id: ThreadId
    agent: str
    queue: str
    status: RunStatus
    limits: dict[str, JsonValue]
    contract: dict[str, JsonValue] | None
    input: JsonValue
    is_child: bool
    kind: RunKind
    last_step: int  # the one that a retry makes again


def _lock(connection: Connection, run_id: RunId) -> _Run:
    connection.exec_driver_sql(
        """
        SELECT FROM celeriac.threads WHERE (tenant_id, thread_id) = (
            SELECT tenant_id, thread_id FROM celeriac.runs WHERE run_id = %s) FOR NO KEY UPDATE
        """,
        (run_id,),
    )
    row: Any = connection.exec_driver_sql(
        """
        SELECT tenant_id, user_id, thread_id, agent, queue, status, limits, contract, input,
            parent_call_id IS NOT NULL AS is_child, kind, erased_at, pruned_at, step, (
                SELECT reason FROM celeriac.checkpoints AS last
                WHERE last.run_id = run.run_id AND last.step = run.step - 1
            ) AS reason
        FROM celeriac.runs AS run WHERE run_id = %s FOR UPDATE
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row.erased_at is not None:
        raise erased(run_id, row.erased_at)
    if row.pruned_at is not None and row.kind == RunKind.WORKFLOW:
        raise Conflict(f"run {run_id} was pruned, and its log is gone: start a new one instead")
    if row.kind not in (RunKind.AGENT, RunKind.WORKFLOW):
        raise Conflict(
            f"run {run_id} is a {row.kind} and cannot go on as another run: start a new one instead"
        )
    return _Run(
        row.tenant_id,
        row.user_id,
        row.thread_id,
        row.agent,
        row.queue,
        RunStatus(row.status),
        row.limits,
        row.contract,
        row.input,
        row.is_child,
        RunKind(row.kind),
        row.step - int(row.reason == (_ENDED_THERE if row.kind == RunKind.AGENT else "failed")),
    )


def _new_run(
    connection: Connection, spec: ForkSpec, run: _Run, step: int, thread_id: ThreadId
) -> NewRun:
    """Limits count anew, and a deadline in seconds runs anew; one that was a time is not kept."""
    seconds = run.limits.get("deadline_seconds")
    return NewRun(
        run_id=spec.fork_id,
        agent=run.agent,
        input=run.input,
        user_message=None,
        limits=run.limits,
        thread_id=thread_id,
        user_id=run.user_id,
        tenant_id=run.tenant_id,
        queue=run.queue,
        origin=Origin(spec.run_id, step, _messages_before(connection, spec.run_id, step)),
        start_key=retry_key(spec.run_id) if thread_id == run.thread_id else None,
        deadline_seconds=float(seconds) if isinstance(seconds, int | float) else None,
        is_published=spec.is_published,
        contract=run.contract,
        kind=run.kind,
    )


def retry_key(run_id: RunId) -> str:
    """The start key of the one run that tries this one again."""
    return f"retry:{run_id}"


def _retry_of(connection: Connection, run: _Run, run_id: RunId) -> Forked | None:
    row: Any = connection.exec_driver_sql(
        "SELECT run_id, thread_id, queue, status, phase FROM celeriac.runs"
        " WHERE tenant_id = %s AND start_key = %s",
        (run.tenant_id, retry_key(run_id)),
    ).fetchone()
    return None if row is None else Forked.before(row)


def _messages_before(connection: Connection, run_id: RunId, step: int) -> int:
    count: int = connection.exec_driver_sql(
        """
        SELECT coalesce((
            SELECT message_count FROM celeriac.checkpoints WHERE run_id = %s AND step = %s
        ), (forked_from IS NULL AND kind = 'agent')::int)
        FROM celeriac.runs WHERE run_id = %s
        """,
        (run_id, step - 1, run_id),
    ).scalar_one()
    return count


def _hands_over(connection: Connection, run_id: RunId, step: int) -> bool:
    """Whether what is to be done at the step is a hand-off. Who takes the conversation over reads
    it up to the model's answer, which a fork would not have in its own log."""
    row = connection.exec_driver_sql(
        """
        SELECT FROM celeriac.checkpoints AS last JOIN celeriac.effects AS effect
            ON effect.run_id = last.run_id AND last.state -> 'pending' ? effect.call_id
        WHERE last.run_id = %s AND last.step = %s AND flags ? 'handoff' LIMIT 1
        """,
        (run_id, step - 1),
    ).fetchone()
    return row is not None


def _refuse_doubtful(connection: Connection, run_id: RunId) -> None:
    if doubtful := _doubtful(connection, run_id):
        (call,) = effects.load(connection, run_id, doubtful[:1])
        raise Conflict(f"run {run_id} cannot be retried, since {what_is_doubtful(run_id, call)}")


def what_is_doubtful(run_id: RunId, call: Effect) -> str:
    """What has to be done before the run is retried that made this call."""
    ways = "--committed JSON`"
    if call.state is EffectState.KNOWN_BAD:
        ways = "--not-done`"
    elif call.state is not EffectState.NOT_DONE:
        ways += " or `--not-done`"
    return (
        f"it is not known what came of call {call.call_id} ({call.tool}) of run {run_id}, which "
        f"might be done twice: look at the target, then say `celeriac resolve {run_id} "
        f"{call.call_id} {ways}"
    )


def _refuse_undone(connection: Connection, run_id: RunId) -> None:
    row = connection.exec_driver_sql(
        "SELECT run_id FROM celeriac.runs WHERE parent_run_id = %s AND kind = 'rollback' LIMIT 1",
        (run_id,),
    ).fetchone()
    if row is not None:
        raise Conflict(
            f"run {run_id} was rolled back by run {row[0]}, so that its model would go on from "
            "what is not so any more: start a new run instead"
        )


def _refuse_obstacle(connection: Connection, run_id: RunId) -> None:
    found = kept_entries.obstacle(connection, run_id)
    if found is None:
        return
    if found.is_rollback:
        raise Conflict(
            f"entry {found.number} of the log of run {run_id} was rolled back by run "
            f"{found.run_id}, so that its code would go on from what is not so any more: start a "
            "new run instead"
        )
    if found.call_id is not None:
        (call,) = effects.load(connection, found.run_id, [found.call_id])
        why = what_is_doubtful(found.run_id, call)
        raise Conflict(f"run {run_id} cannot be retried, since {why}")
    raise Conflict(
        f"run {run_id} cannot be retried yet, since run {found.run_id} has not ended, which it "
        f"has asked for (entry {found.number}): see `celeriac show {found.run_id}`"
    )


def _note(connection: Connection, spec: ForkSpec, run: _Run, deed: str, step: int) -> None:
    audit_trail.note(
        connection, run.tenant_id, spec.by, deed, spec.run_id, run_id=spec.fork_id, at_step=step
    )
