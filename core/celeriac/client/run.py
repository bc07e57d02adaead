"""What clients ask about runs, and of them."""

from typing import TYPE_CHECKING, Any

from celeriac.client.ask import Ask
from celeriac.client.named import run_named, user_or_default
from celeriac.client.operations import Cancel, Fork, Interrupt, Retry, RollBack, Say, SendEvent
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, Request, get, one, pages, post, refuse_speaker
from celeriac.ids import RunId, checked_id
from celeriac.replay import Difference, Replay
from celeriac.reports import Retried, Run, RunLine, Started, Wait
from celeriac.schemas import strict_json
from celeriac.states import RunStatus
from celeriac_storage import inbox, reading, stages

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue

read_started = reader(Started)


def get_run(run_id: str) -> Ask[Run]:
    """The run with its steps and effects, as of one moment. Raises `UnknownRun`."""
    run = run_named(run_id)
    return Ask(lambda desk: desk.run(run), lambda: one(get(f"/v1/runs/{run}"), reader(Run)))


def list_runs(
    *,
    status: RunStatus | None = None,
    agent: str | None = None,
    with_activities: bool = False,
    limit: int = 50,
) -> Ask[list[RunLine]]:
    """The newest runs first, at most `limit` of them, of that status and that agent; those of
    workflows' activities only if they are asked for, or with the status `needs_attention`."""

    def in_database(desk: "DatabaseDesk") -> list[RunLine]:
        return desk.read(
            lambda connection: reading.list_runs(
                connection,
                tenant_id=desk.tenant_id,
                status=status,
                agent=agent,
                with_activities=with_activities,
                limit=limit,
            )
        )

    asked = {
        "status": None if status is None else RunStatus(status).value,
        "agent": agent,
        "activities": "true" if with_activities else None,
    }
    return Ask(in_database, lambda: pages("/v1/runs", "runs", reader(RunLine), limit, asked))


def waits_for(run_id: str) -> Ask[Wait]:
    """What a run that nobody works on just now waits for. Raises `UnknownRun`."""
    run = run_named(run_id)
    return Ask(
        lambda desk: desk.read(lambda connection: reading.read_wait(connection, run), run),
        lambda: one(get(f"/v1/runs/{run}/wait"), reader(Wait)),
    )


def cancel(run_id: str, *, by: str | None = None) -> Ask[RunStatus]:
    """Cancel the run, and return where it stands now.

    `cancelled` if nobody works on it just now; else `running`, and it ends when the step in
    progress is recorded. Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if it
    has ended otherwise.
    """
    run, person = run_named(run_id), user_or_default(by)
    return Ask(
        lambda desk: desk.perform(Cancel(run, person), run),
        lambda: stands(ask_run(run, "cancel"), by),
    )


def interrupt(run_id: str, *, by: str | None = None) -> Ask[RunStatus]:
    """Stop the run until its user says something or it is cancelled; where it stands now.

    `paused` if nobody works on it just now; else `running`: a request to the model is cancelled
    within a second, a tool's call is seen to its end and recorded. Calls that nobody has begun
    are not made any more once the user has said something; the model is told so. Asking again
    changes nothing. Raises `UnknownRun` or `Conflict`.
    """
    run, person = run_named(run_id), user_or_default(by)
    return Ask(
        lambda desk: desk.perform(Interrupt(run, person), run),
        lambda: stands(ask_run(run, "interrupt"), by),
    )


def say(run_id: str, text: str, *, by: str | None = None, key: str | None = None) -> Ask[RunStatus]:
    """Tell the run's model something, and return where the run stands now.

    The model is told once and in order, when it is asked next: after the results of the calls
    that it has asked for, and instead of the run's end if it has just given its last answer. A
    run that waits for its user goes on. With a `key` of your own, such as a UUID, it is safe to
    say it again after an error: it is told once. Raises `UnknownRun`, `InvalidInput`, or
    `Conflict` if the run has ended, or was told something else under the key.
    """
    run, person = run_named(run_id), user_or_default(by)
    word = None if key is None else inbox.key_of_word(run, checked_id(key, "key"))
    body: dict[str, JsonValue] = {"text": text} if key is None else {"text": text, "key": key}
    return Ask(
        lambda desk: desk.perform(Say(run, text, person, word), run),
        lambda: stands(
            ask_run(
                run,
                "messages",
                body,
                if_lost="It is not known whether the run was told"
                + ("" if key is None else "; to say it again under the same key is safe"),
            ),
            by,
        ),
    )


def send_event(
    run_id: str, name: str, data: object = None, *, by: str | None = None, key: str | None = None
) -> Ask[RunStatus]:
    """Tell a workflow that something has happened (`ctx.wait_event`); where it stands now.

    Each event goes to one who waits for that name; it is kept until its code does. `data` is any
    JSON. With a `key` of your own it is safe to tell it again after an error: it is told once.
    Raises `UnknownRun`, `InvalidInput`, or `Conflict` if the run is no workflow, has ended, or was
    told something else under the key.
    """
    run, person = run_named(run_id), user_or_default(by)
    own_key = None if key is None else checked_id(key, "key")

    def over_http() -> Flow[RunStatus]:
        body: dict[str, JsonValue] = {"name": name, "data": strict_json(data)}
        if own_key is not None:
            body["key"] = own_key
        lost = "It is not known whether the run was told" + (
            "" if own_key is None else "; to tell it again under the same key is safe"
        )
        return stands(ask_run(run, "events", body, if_lost=lost), by)

    return Ask(
        lambda desk: desk.perform(SendEvent(run, name, data, person, own_key), run), over_http
    )


def retry(run_id: str, *, by: str | None = None) -> Ask[Retried]:
    """Let a run in `needs_attention` try its step again; or start a run that tries the last step
    of a `failed` one again, in the same thread (docs/replay.md). Which run it is, and where it
    stands.

    A failed run has one such run, whoever asks how often. Nothing that it has done is done again.
    Raises `UnknownRun`, or `Conflict` if there is nothing to try again, or if the outcome of a
    call must be resolved first.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Retried]:
        refuse_speaker(by)
        return reader(Retried)((yield ask_run(run, "retry")))

    return Ask(lambda desk: desk.perform(Retry(run, person, desk.first_step), run), over_http)


def fork(run_id: str, at: int, *, by: str | None = None) -> Ask[Started]:
    """Start a run that goes on from where the run stood before its step `at`, in a thread of its
    own (docs/replay.md).

    It is of the same agent, user, limits and contract, and makes that step and all after it by
    the code and the model of now: what the run has done since is done again, under other
    idempotency keys. Raises `UnknownRun`; `InvalidInput` for a step that the run has not come
    to; `Conflict` if what it worked with was erased.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Started]:
        refuse_speaker(by)
        return read_started((yield ask_run(run, "fork", {"at": at})))

    return Ask(lambda desk: desk.perform(Fork(run, at, person, desk.first_step), run), over_http)


def replay(run_id: str, *, step: int | None = None) -> Ask[Replay]:
    """What the run's model was sent at each step, or at one, and what it has answered, made of the
    rows alone: nothing is asked of a model, a tool or the agent's code (docs/replay.md).

    Raises `UnknownRun`; `InvalidInput` for a step at which the model was not asked; `Conflict` if
    what the run worked with was erased.
    """
    run = run_named(run_id)

    def in_database(desk: "DatabaseDesk") -> Replay:
        # Here: it reads messages as pydantic-ai does, whose import others need not wait for.
        from celeriac_tasks.replaying import replay

        return desk.look(lambda connection: replay(connection, run, step), run)

    return Ask(
        in_database,
        lambda: one(get(f"/v1/runs/{run}/replay", step=step), reader(Replay)),
    )


def diff(left_run_id: str, right_run_id: str) -> Ask[Difference]:
    """Where two runs part: after how many steps that have said, asked and been told the same, and
    by what (docs/replay.md). Of a fork, what its origin did up to there counts as its own.

    Raises `UnknownRun`, or `Conflict` if what one of them worked with was erased.
    """
    left, right = run_named(left_run_id), run_named(right_run_id)
    return Ask(
        lambda desk: desk.look(
            lambda connection: stages.difference(connection, left, right), left, right
        ),
        lambda: one(get(f"/v1/runs/{left}/diff/{right}"), reader(Difference)),
    )


def rollback(run_id: str, from_step: int = 0, *, by: str | None = None) -> Ask[Started]:
    """Undo what the run did, from that step on: start a run that takes its calls back, the
    latest first, each as its tool declares (`celeriac.rollback`).

    The result of that run is `{"undone": [...], "compensated": [...], "not_undone": [...]}`,
    each a list of `{"call_id", "tool"}`, the last with a `"why"`; and, if something could be
    undone only in part, `"partly_undone"` with the undo's own `"report"`. It needs a person's
    attention where only people can undo a call, and where an undo failed: `resolve` and `retry`
    let it go on. What is undone already is left alone.

    Raises `UnknownRun`; `InvalidInput` for a step that the run has not; `NotAllowed` if a call
    needed a decision that `by` may not take; `Conflict` while the run goes on, while another
    rollback of it does, while the outcome of a call is unknown, or if nothing is left to undo.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Started]:
        refuse_speaker(by)
        return read_started((yield ask_run(run, "rollback", {"from_step": from_step})))

    return Ask(
        lambda desk: desk.perform(RollBack(run, from_step, person, desk.first_step), run), over_http
    )


def ask_run(
    run: RunId, what: str, body: "dict[str, JsonValue] | None" = None, *, if_lost: str = ""
) -> Request:
    """A request that acts on a run."""
    return post(f"/v1/runs/{run}/{what}", body, if_lost=if_lost)


def stands(request: Request, by: str | None) -> Flow[RunStatus]:
    """Where the run stands after the request. Raises `InvalidInput` if somebody else says it than
    the token's user."""
    refuse_speaker(by)
    answer: Any = yield request
    return RunStatus(answer["status"])
