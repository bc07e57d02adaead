"""Creating a run: the user's message and the run are in one transaction, before any model is
called.
"""

from datetime import UTC

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import ThreadBusy, WrongOwner
from celeriac.ids import RunId, TenantId, ThreadId, UserId, may_be_run_of
from celeriac.states import Phase, RunKind, RunStatus
from celeriac_storage import audit_trail, inbox, timers
from celeriac_storage.new_run import NewRun, Started
from celeriac_storage.said_instead import say_instead
from celeriac_storage.taken_ids import not_to_be_had
from celeriac_storage.threads import HOLDS_THREAD
from celeriac_storage.workers import has_live_worker


def start(connection: Connection, new: NewRun) -> Started:
    """Create the run. Needs a transaction, which may be the caller's own.

    The run is `queued`, or `paused` because its thread is busy, no live worker has the agent, or
    its time has not come.
    With `on_busy="say"` the input goes to the thread's active run, or to one that waits for its
    user, if there is one, and no run is created; then the status and phase are that run's. Starting
    that again under the same run id says nothing more.
    Raises `InvalidInput` (the tenant may not call its run that), `RunExists` (the run there is left
    as it is; or what it was to start from was said to another before), `WrongOwner`, `ThreadBusy`;
    the transaction must then be rolled back. A queued run is published by the caller, right after
    the commit, if `new` promises so; else a scheduler does, and `pg_notify` tells it at that
    moment.
    """
    if not may_be_run_of(new.run_id, new.tenant_id):
        raise not_to_be_had(connection, new)
    position = _take_thread_position(connection, new)
    if new.word is not None and (told := say_instead(connection, new, new.word)) is not None:
        return told
    started = _insert(connection, new, position, _reason_to_wait(connection, new))
    if new.start_at is not None:
        timers.set_timer(connection, new.run_id, timers.START, new.start_at)
    return started


def start_child(connection: Connection, new: NewRun) -> Started:
    """Create a run that another one has asked for, in the transaction in which that one pauses.

    It is in its parent's thread and has no turn there. It has at most its parent's deadline.
    """
    assert new.parent is not None
    is_stranded = not has_live_worker(connection, new.agent, new.queue)
    return _insert(connection, new, None, Phase.WAITING_WORKER if is_stranded else None)


def _insert(
    connection: Connection, new: NewRun, position: int | None, paused_for: Phase | None
) -> Started:
    parent, origin, plan = new.parent, new.origin, new.plan
    history_until = None
    if origin is not None:
        history_until = origin.history_until
    elif parent is not None:
        history_until = parent.history_until
    begins = Phase.WAITING_CODE if new.kind is RunKind.WORKFLOW else Phase.WAITING_MODEL
    created = connection.exec_driver_sql(
        """
        WITH run AS (
            INSERT INTO celeriac.runs (run_id, tenant_id, user_id, thread_id, thread_position,
                root_run_id, parent_run_id, parent_call_id, depth, history_until, forked_from,
                forked_step, kind, agent,
                status, phase, resume_phase, queue, limits, contract, input, published_at,
                publish_count, message_count, last_event_seq, start_key, deadline_at,
                traceparent, generation, told)
            SELECT %(run_id)s, %(tenant_id)s, %(user_id)s, %(thread_id)s, %(position)s,
                coalesce(parent.root_run_id, %(run_id)s),
                coalesce(%(rolls_back)s::text, parent.run_id), %(parent_call)s::text,
                coalesce(parent.depth + 1, 0), %(history_until)s, %(origin)s::text,
                %(forked_step)s::int,
                %(kind)s, %(agent)s, %(status)s, %(phase)s, %(resume_phase)s, %(queue)s,
                %(limits)s::jsonb, %(contract)s::jsonb, %(input)s::jsonb,
                CASE WHEN %(is_published)s THEN clock_timestamp() END, %(is_published)s::int,
                (%(message)s::jsonb IS NOT NULL)::int, %(events)s, %(start_key)s::text,
                least(%(deadline_at)s::timestamptz, parent.deadline_at,
                    coalesce(%(start_at)s::timestamptz, clock_timestamp())
                        + make_interval(secs => %(deadline_seconds)s::float8)),
                coalesce(%(traceparent)s::text, parent.traceparent),
                CASE WHEN %(kind)s = 'workflow' THEN 0 END,
                CASE WHEN %(kind)s = 'workflow' THEN 0 END
            FROM (SELECT) AS one
                LEFT JOIN celeriac.runs AS parent ON parent.run_id = %(parent_run)s::text
            -- Its input may have been said to another run instead, before an answer that got lost.
            WHERE NOT EXISTS (SELECT FROM celeriac.inbox WHERE key = %(key)s)
            ON CONFLICT (run_id) DO NOTHING
            RETURNING run_id
        ), message AS (
            INSERT INTO celeriac.messages (run_id, position, role, body, hash)
            SELECT run_id, 0, 'user', %(message)s::jsonb,
                sha256(convert_to(%(message)s::jsonb::text, 'UTF8'))
            FROM run WHERE %(message)s::jsonb IS NOT NULL
        ), plan AS (
            INSERT INTO celeriac.plans (run_id, version, body, hash, continues)
            SELECT run_id, %(plan_version)s, %(plan)s::jsonb,
                sha256(convert_to(%(plan)s::jsonb::text, 'UTF8')), %(continues)s::text
            FROM run WHERE %(plan)s::text IS NOT NULL
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, 1, 'run.created', %(created)s::jsonb FROM run
            UNION ALL
            SELECT run_id, 2, 'run.paused', %(paused)s::jsonb FROM run
                WHERE %(status)s = 'paused'
        )
        SELECT CASE WHEN %(is_told)s THEN pg_notify('celeriac_started', '') END FROM run
        """,
        {
            "run_id": new.run_id,
            "tenant_id": new.tenant_id,
            "user_id": new.user_id,
            "thread_id": new.thread_id,
            "position": position if new.start_at is None else None,
            "rolls_back": new.rolls_back,
            "parent_run": None if parent is None else parent.run_id,
            "parent_call": None if parent is None else parent.call_id,
            "history_until": history_until,
            "origin": None if origin is None else origin.run_id,
            "forked_step": None if origin is None else origin.step,
            "agent": new.agent,
            "status": "queued" if paused_for is None else "paused",
            "phase": paused_for or begins,
            "resume_phase": None if paused_for is None else begins,
            "kind": new.kind.value,
            "queue": new.queue,
            "limits": dumps(new.limits),
            "contract": None if new.contract is None else dumps(new.contract),
            "input": dumps(new.input),
            "is_published": new.is_published and paused_for is None,
            # Not of a child: a notification takes a lock that is global to the server, and its
            # parent's step holds that across the flush of its commit.
            "is_told": not new.is_published and parent is None,
            "events": 1 if paused_for is None else 2,
            "key": inbox.key_of_start(new.run_id),
            "start_key": new.start_key,
            "start_at": new.start_at,
            "deadline_at": new.deadline_at,
            "deadline_seconds": new.deadline_seconds,
            "traceparent": new.traceparent,
            "message": None if new.user_message is None else dumps(new.user_message),
            "plan": None if plan is None else dumps(plan.body),
            "plan_version": None if plan is None else plan.version,
            "continues": None if plan is None else plan.continues,
            "created": dumps(_created(new)),
            "paused": dumps({"phase": paused_for}),
        },
    ).fetchone()
    if created is None:
        raise not_to_be_had(connection, new)
    if paused_for is None:
        return Started(RunStatus.QUEUED, begins)
    return Started(RunStatus.PAUSED, paused_for)


def _created(new: NewRun) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {"agent": new.agent, "thread_id": new.thread_id}
    if new.parent is not None:
        facts["parent_run_id"] = new.parent.run_id
        facts["parent_call_id"] = new.parent.call_id
    if new.origin is not None:
        facts["forked_from"] = new.origin.run_id
        facts["forked_step"] = new.origin.step
    if new.start_at is not None:
        facts["start_at"] = new.start_at.astimezone(UTC).isoformat()
    return facts


def record_refusal(
    connection: Connection,
    tenant_id: TenantId,
    run_id: RunId,
    thread_id: ThreadId,
    by: UserId,
    why: WrongOwner,
) -> None:
    """Record that a user was refused another one's thread for a run. Needs a transaction."""
    audit_trail.note_denial(
        connection,
        tenant_id,
        by,
        "run.start",
        thread_id,
        run=run_id,  # there is none, so it is no `run_id`
        error=type(why).__name__,
        message=str(why),
    )


def _take_thread_position(connection: Connection, new: NewRun) -> int:
    """Lock the thread (made on first use), check whose it is, and take the next turn in it."""
    user_id, position, is_other_id = connection.exec_driver_sql(
        """
        WITH tenant AS (
            INSERT INTO celeriac.tenants (tenant_id) VALUES (%(tenant_id)s) ON CONFLICT DO NOTHING
        ), owner AS (
            INSERT INTO celeriac.users (tenant_id, user_id) VALUES (%(tenant_id)s, %(user_id)s)
            ON CONFLICT DO NOTHING
        )
        INSERT INTO celeriac.threads AS thread (tenant_id, user_id, thread_id, next_position)
        VALUES (%(tenant_id)s, %(user_id)s, %(thread_id)s, 1)
        ON CONFLICT (tenant_id, thread_id) DO UPDATE SET next_position = thread.next_position + 1
        RETURNING user_id, next_position - 1, next_position = 1 AND (
            EXISTS (SELECT FROM celeriac.users
                WHERE tenant_id = %(tenant_id)s AND user_id = %(thread_id)s)
            OR EXISTS (SELECT FROM celeriac.runs
                WHERE tenant_id = %(tenant_id)s AND run_id = %(thread_id)s)
        )
        """,
        {"tenant_id": new.tenant_id, "user_id": new.user_id, "thread_id": new.thread_id},
    ).one()
    if user_id != new.user_id:
        raise WrongOwner(
            f"thread {new.thread_id} belongs to another user than {new.user_id}; nothing was "
            "written"
        )
    if is_other_id or str(new.thread_id) == new.user_id:
        # One id for all would make everything of a user one conversation, and a mix-up of two ids
        # would go unnoticed.
        raise WrongOwner(
            f"{new.thread_id} is the id of a user or of a run, not of a thread; nothing was "
            "written. Leave the thread out to begin a new one"
        )
    return int(position)


def _reason_to_wait(connection: Connection, new: NewRun) -> Phase | None:
    if new.start_at is not None:
        return Phase.WAITING_TIMER
    active = connection.exec_driver_sql(
        f"""
        SELECT run_id FROM celeriac.runs AS active
        WHERE tenant_id = %s AND thread_id = %s
            AND ({HOLDS_THREAD} OR status = 'paused' AND phase = 'waiting_thread')
        LIMIT 1
        """,
        (new.tenant_id, new.thread_id),
    ).fetchone()
    if active is not None:
        if new.on_busy == "reject":
            raise ThreadBusy(
                f"thread {new.thread_id} is busy with run {active[0]}; wait for its end, or start "
                "with on_busy=wait to queue behind it"
            )
        return Phase.WAITING_THREAD
    if not has_live_worker(connection, new.agent, new.queue):
        return Phase.WAITING_WORKER
    return None
