"""Calls that runs of other agents answer: checked when they are asked for, and started together
with their parent's pause.

A child is inserted in the transaction that marks its call as in flight and pauses the parent. So
there is no moment at which one of the three is there without the others, and a step that is taken
twice makes no second child.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.delegation import INPUT
from celeriac.errors import InvalidInput
from celeriac.ids import new_run_id
from celeriac.limits import Limits, Use
from celeriac.states import EffectState, RunStatus
from celeriac_storage import admitting, children, history, starting
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.dispatch import Due
from celeriac_storage.effects import Effect
from celeriac_storage.new_run import NewRun, Parent
from celeriac_storage.step_record import PlannedEffect
from celeriac_tasks.batch import Batch
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.requesting import requested


def use_of(claim: Claim) -> Use:
    """What the run and its children that have ended have used."""
    return claim.child_use + Use(
        steps=claim.step,
        tool_calls=claim.tool_calls_used,
        input_tokens=claim.input_tokens_used,
        output_tokens=claim.output_tokens_used,
        wall_seconds=(claim.step_started_at - claim.working_since).total_seconds(),
    )


def checked(
    loaded: LoadedAgent, claim: Claim, planned: Sequence[PlannedEffect]
) -> list[PlannedEffect]:
    """The calls of one response, with those `invalid` whose runs the limits do not allow."""
    limits = Limits.from_json(claim.limits)
    started = claim.children_started
    calls: list[PlannedEffect] = []
    for effect in planned:
        tool = loaded.tools.get(effect.tool)
        if tool is None or tool.agent is None or effect.state is not EffectState.PLANNED:
            calls.append(effect)
            continue
        problem = _problem(claim, limits, started)
        if problem is None and tool.flags.handoff and len(planned) > 1:
            problem = "it hands the conversation over, so it must be the only call of its response"
        if problem is None:
            problem = _problem_of_input(loaded, effect)
        if problem is None:
            started += 1
            calls.append(effect)
            continue
        error: dict[str, JsonValue] = {
            "kind": "not_delegated",
            "message": f"{effect.tool} was not called: {problem}",
        }
        calls.append(
            replace(effect, state=EffectState.INVALID, error=error, flags=None, requirement=None)
        )
    return calls


def _problem(claim: Claim, limits: Limits, started: int) -> str | None:
    if claim.depth >= limits.depth:
        return (
            f"{claim.depth} runs stand above this one, and the limit of depth is {limits.depth}; "
            "do it without another agent"
        )
    if started >= limits.children:
        return (
            f"this run has started {started} others, and its limit is {limits.children}; do it "
            "without another agent"
        )
    return None


def _problem_of_input(loaded: LoadedAgent, effect: PlannedEffect) -> str | None:
    agent = loaded.tools[effect.tool].agent
    assert agent is not None
    assert isinstance(effect.arguments, dict)
    try:
        admitting.check_input(agent, effect.arguments[INPUT])
    except InvalidInput as error:
        return str(error)
    return None


@contextmanager
def delegated(
    database: Database, loaded: LoadedAgent, claim: Claim, batch: Batch
) -> Iterator[tuple[Connection, list[Due]]]:
    """The transaction in which the calls' runs are started, to commit the pause in, and what is
    to be published after it.

    Raises `Fenced`, `RequestsChanged` or `ApprovalLost`, and then nothing is started.
    """
    with requested(database, loaded, claim, batch) as connection:
        due: list[Due] = []
        left = Limits.from_json(claim.limits).left(use_of(claim), len(batch.effects))
        for effect in batch.effects:
            new = _new_run(connection, loaded, claim, effect, left)
            started = starting.start_child(connection, new)
            if started.status is RunStatus.QUEUED:
                due.append(Due(new.run_id, 0, new.queue))
            children.note_started(
                connection,
                claim.run_id,
                effect.call_id,
                new.run_id,
                agent=new.agent,
                is_handoff=effect.is_handoff,
            )
        yield connection, due


def _new_run(
    connection: Connection, loaded: LoadedAgent, claim: Claim, effect: Effect, left: Limits
) -> NewRun:
    agent = loaded.tools[effect.tool].agent
    assert agent is not None
    assert isinstance(effect.arguments, dict)
    until = history.last_answer(connection, claim.run_id) if effect.is_handoff else None
    spec = admitting.RunSpec(
        agent,
        effect.arguments[INPUT],
        run_id=new_run_id(),
        thread_id=claim.thread_id,
        user_id=claim.user_id,
        tenant_id=claim.tenant_id,
        limits=agent.limits.capped(left),
        is_published=True,
    )
    parent = Parent(claim.run_id, effect.call_id, until)
    return replace(admitting.admit(connection, spec), parent=parent)
