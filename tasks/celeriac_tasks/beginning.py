"""What a workflow's code has asked for, made ready to be begun: calls, questions, runs, timers."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.approval import Requirement
from celeriac.codec import JsonValue
from celeriac.errors import InvalidArguments
from celeriac.ids import RunId, new_run_id
from celeriac.limits import Limits
from celeriac.prompt import prompt_body
from celeriac.states import EffectState, RunKind, RunStatus
from celeriac.tools import Tool
from celeriac.workflows.definition import Workflow
from celeriac.workflows.entry import Asked, EntryKind
from celeriac_storage import admitting, entries, starting
from celeriac_storage.claims import Claim
from celeriac_storage.dispatch import Due
from celeriac_storage.entries import FIRST_CALL, NewEntry
from celeriac_storage.entry_ids import entry_id
from celeriac_storage.new_run import NewRun, Parent
from celeriac_tasks import answering, approving, planning
from celeriac_tasks.decision_tool import decision_tool
from celeriac_tasks.delegating import use_of
from celeriac_tasks.loaded_agent import LoadedAgent


def new_entry(loaded: LoadedAgent, claim: Claim, asked: Asked, wait_group: int | None) -> NewEntry:
    """The line of the log, with the id of the run that is to make it."""
    entry = NewEntry(asked, wait_group)
    match asked.kind:
        case EntryKind.ACTIVITY:
            return _call(loaded, claim, entry, loaded.tools[asked.name])
        case EntryKind.APPROVAL:
            assert isinstance(asked.terms, dict)
            assert isinstance(asked.arguments, dict)
            intent = str(asked.arguments["intent"])
            return _call(loaded, claim, entry, decision_tool(asked.terms), intent)
        case EntryKind.MODEL | EntryKind.CHILD:
            return replace(entry, made_by=new_run_id())
        case EntryKind.TIMER:
            assert isinstance(asked.arguments, dict)
            at, seconds = asked.arguments.get("time"), asked.arguments.get("seconds")
            if at is not None:
                return replace(entry, due_at=datetime.fromisoformat(str(at)))
            return replace(entry, due_seconds=float(str(seconds)))
        case EntryKind.EVENT | EntryKind.VALUE | EntryKind.VERSION:
            return entry


def _call(
    loaded: LoadedAgent, claim: Claim, entry: NewEntry, tool: Tool[..., Any], intent: str = ""
) -> NewEntry:
    name = entry_id(claim.generation, entry.asked.number)
    call = planning.planned_call(tool, FIRST_CALL, 0, name, entry.asked.arguments)
    entry = replace(entry, made_by=new_run_id(), call=call)
    if call.requirement is None:
        return entry
    requirement = Requirement.from_json(call.requirement)
    try:
        proposal = approving.propose(
            loaded, claim, tool, FIRST_CALL, call.arguments, requirement, intent
        )
    except InvalidArguments as error:
        refused: dict[str, JsonValue] = {"kind": "invalid_arguments", "message": str(error)}
        invalid = replace(call, state=EffectState.INVALID, error=refused, requirement=None)
        return replace(entry, call=invalid)
    return replace(
        entry,
        call=replace(call, state=EffectState.PROPOSED),
        proposal=proposal,
        events=approving.proposal_events([proposal], {FIRST_CALL: tool.name}),
    )


class BeyondLimits(Exception):
    """The limits do not allow the runs that the code asks for."""


def begin(
    connection: Connection, loaded: LoadedAgent, claim: Claim, new: Sequence[NewEntry]
) -> list[Due]:
    """Add the entries to the log, with the runs that they are made by, in the transaction of the
    turn's commit; the first steps of these, to be published.

    Raises `BeyondLimits`, and then the transaction has to be rolled back.
    """
    limits = Limits.from_json(claim.limits)
    due = _start_runs(connection, loaded, claim, limits, new)
    written = entries.write(connection, claim, new)
    calls = sum(entry.call is not None for entry in new)
    if calls and written.calls_before + calls > limits.tool_calls:
        raise BeyondLimits(
            f"this run has begun {written.calls_before} calls and asks for {calls} more; its "
            f"limit of tool_calls is {limits.tool_calls}"
        )
    return [*due, *written.due]


def _start_runs(
    connection: Connection,
    loaded: LoadedAgent,
    claim: Claim,
    limits: Limits,
    new: Sequence[NewEntry],
) -> list[Due]:
    """Start the runs of agents and workflows, each with an equal share of what is left to all that
    go on then."""
    runs = [entry for entry in new if entry.asked.kind in (EntryKind.MODEL, EntryKind.CHILD)]
    if not runs:
        return []
    children = sum(entry.asked.kind is EntryKind.CHILD for entry in runs)
    if children and claim.depth >= limits.depth:
        raise BeyondLimits(
            f"{claim.depth} runs stand above this one, and the limit of depth is {limits.depth}: "
            "it can start no other"
        )
    if claim.children_started + children > limits.children:
        raise BeyondLimits(
            f"this run has started {claim.children_started} others and asks for {children} more; "
            f"its limit is {limits.children}"
        )
    below = entries.count_children(connection, claim.run_id, children)
    use = use_of(replace(claim, child_use=below.use))
    if exceeded := limits.exceeded(use):
        raise BeyondLimits(f"{exceeded}: it can start no other")
    left = limits.left(use, below.live_runs + len(runs))
    due: list[Due] = []
    for entry in runs:
        assert entry.made_by is not None
        run = _run(connection, loaded, claim, entry, entry.made_by, left)
        parent = Parent(claim.run_id, entry_id(claim.generation, entry.asked.number))
        started = starting.start_child(connection, replace(run, parent=parent))
        if started.status is RunStatus.QUEUED:
            due.append(Due(run.run_id, 0, run.queue))
    return due


def _run(
    connection: Connection,
    loaded: LoadedAgent,
    claim: Claim,
    entry: NewEntry,
    run_id: RunId,
    left: Limits,
) -> NewRun:
    asked = entry.asked
    if asked.kind is EntryKind.MODEL:
        assert isinstance(asked.arguments, dict)
        question: dict[str, JsonValue] = {**asked.arguments}
        if isinstance(asked.terms, dict) and asked.terms.get("schema") is not None:
            question["schema"] = asked.terms["schema"]
        return NewRun(
            run_id=run_id,
            kind=RunKind.AGENT,
            agent=claim.agent,
            input=question,
            user_message=prompt_body(answering.prompt_of(question)),
            limits=loaded.agent.limits.capped(left).to_json(),
            thread_id=claim.thread_id,
            user_id=claim.user_id,
            tenant_id=claim.tenant_id,
            queue=claim.queue,
            is_published=True,
        )
    assert isinstance(loaded.agent, Workflow)
    agent = loaded.agent.child(asked.name)
    spec = admitting.RunSpec(
        agent,
        asked.arguments,
        run_id=run_id,
        thread_id=claim.thread_id,
        user_id=claim.user_id,
        tenant_id=claim.tenant_id,
        limits=agent.limits.capped(left),
        is_published=True,
    )
    return admitting.admit(connection, spec)
