"""What clients ask about runs, and of them."""

from typing import TYPE_CHECKING, Any

from celeriac.client.ask import Ask
from celeriac.client.named import run_named
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, Request, get, one, pages, post, refuse_speaker
from celeriac.ids import RunId
from celeriac.replay import Difference, Replay
from celeriac.reports import Run, RunLine, Started, Wait
from celeriac.states import RunStatus
from celeriac_storage import reading, run_list, stages

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
            lambda connection: run_list.list_runs(
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
