"""Calls that a person decides about: proposed with the response, and looked at again before they
start (`docs/approvals.md`)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from celeriac.approval import Requirement, rendered
from celeriac.codec import JsonValue
from celeriac.errors import InvalidArguments
from celeriac.ids import CallId, new_approval_id
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac.tools import Tool
from celeriac_storage import consuming, run_events
from celeriac_storage.approvals import Proposal
from celeriac_storage.claims import Claim
from celeriac_storage.consuming import ApprovalLost, Consumed
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Event, Next, SettledEffect, StepRecord
from celeriac_tasks import decision_tool
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.transition import Transition

MAX_INTENT_CHARACTERS = 2000

WAIT_FOR_PEOPLE = Next(RunStatus.PAUSED, Phase.WAITING_APPROVAL, resume_phase=Phase.WAITING_TOOL)

_REACH = {
    EffectKind.NONE: "it reads, and changes nothing",
    EffectKind.TRANSACTIONAL: "rows of this database, in one transaction",
    EffectKind.EXTERNAL: "outside of this database; the tool does not say how far",
}


def propose(
    loaded: LoadedAgent,
    claim: Claim,
    tool: Tool[..., Any],
    call_id: CallId,
    arguments: JsonValue,
    requirement: Requirement,
    said: str,
) -> Proposal:
    """What a reviewer is shown of the call. `said` is what the model said along with it.

    Raises `InvalidArguments`, worded for the model, if a part would be empty.
    """
    approval = tool.approval
    assert approval is not None, "it asked for a review"
    blast_radius = rendered(approval.blast_radius or _REACH[tool.effect], arguments)
    if not blast_radius:
        raise InvalidArguments(
            f"The call of {tool.name} cannot be proposed and nothing was executed: with these "
            "arguments nobody could see how far it reaches"
        )
    lineage: list[JsonValue] = [*approval.data_lineage]
    lineage.append(
        {
            "asked_by": loaded.model.model_name,
            "agent": claim.agent,
            "step": int(call_id.partition(".")[0]),
            "messages": claim.message_count,
        }
    )
    intent = rendered(approval.intent, arguments) or said.strip() or tool.description
    return Proposal(
        new_approval_id(),
        call_id,
        requirement,
        intent[:MAX_INTENT_CHARACTERS],
        lineage,
        approval.permissions_touched or [tool.name],
        blast_radius,
        {"kind": tool.rollback.value},
        approval.policy_version,
        loaded.agent_hash,
    )


def proposal_events(proposals: Sequence[Proposal], tools: dict[CallId, str]) -> list[Event]:
    """The history's lines for new proposals: what is proposed, and that people are asked."""
    events: list[Event] = []
    for proposal in proposals:
        named: dict[str, JsonValue] = {
            "approval_id": proposal.approval_id,
            "call_id": proposal.call_id,
            "tool": tools[proposal.call_id],
        }
        events.append(Event("proposal.recorded", named))
        asked: dict[str, JsonValue] = {
            "roles": list(proposal.requirement.roles),
            "quorum": proposal.requirement.quorum,
            "reason": proposal.requirement.reason,
        }
        events.append(Event("approval.requested", {**named, **asked}))
    return events


def waits(pending: Sequence[Effect]) -> bool:
    """Whether nothing can be done before a person has decided."""
    return all(effect.state is EffectState.PROPOSED for effect in pending)


def ended_by_rejection(pending: Sequence[Effect]) -> StepRecord | None:
    """The end of the run, if a person rejected a call whose tool wants that."""
    for effect in pending:
        requirement, why = effect.requirement or {}, effect.error or {}
        # By a person: an interrupt rejects calls too, with another kind of error.
        is_rejected = effect.state is EffectState.REJECTED and why.get("kind") == "rejected"
        if is_rejected and requirement.get("on_reject") == "end":
            error = {**why, "call_id": effect.call_id}
            return StepRecord(
                Next.failed("rejected", error), StepKind.ACT, "rejected", advances=False
            )
    return None


@contextmanager
def authorized(
    database: Database, claim: Claim, tool: Tool[..., Any], effect: Effect
) -> Iterator[tuple[Connection, Consumed | None]]:
    """A connection to start the call on, and the decision that it starts with, if it needs one.

    The look at the decision and what is written on the connection are one transaction. Raises
    `ApprovalLost`, `Fenced` or `RequestsChanged`; then nothing was written.
    """
    if effect.requirement is None:
        with database.connect() as connection:
            yield connection, None
        return
    check_with_code(tool, effect)
    with database.begin() as connection:
        consuming.lock_claimed(connection, claim)
        consumed = consuming.consume(connection, claim, effect)
        run_events.append(
            connection,
            claim.run_id,
            consuming.checked_events(effect, consumed),
            is_request=False,
        )
        yield connection, consumed


def look(database: Database, claim: Claim, tool: Tool[..., Any], effect: Effect) -> None:
    """See whether the decision that the call needs, if any, holds now, without using it up.

    Raises `ApprovalLost`, `Fenced` or `RequestsChanged`.
    """
    if effect.requirement is None:
        return
    check_with_code(tool, effect)
    with database.begin() as connection:
        consuming.lock_claimed(connection, claim)
        consuming.check(connection, claim, effect)


def check_with_code(tool: Tool[..., Any], effect: Effect) -> None:
    """Raise `ApprovalLost` if the tool's code does not take what was approved. An edit was judged
    by the tool's schema alone, and the code may have changed since."""
    if tool.version != effect.tool_version:
        raise ApprovalLost(
            f"version {effect.tool_version} of {tool.name} was approved, and this code has version "
            f"{tool.version}",
            is_damage=True,
        )
    try:
        tool.call_arguments(effect.arguments)
    except InvalidArguments as error:
        raise ApprovalLost(str(error), is_damage=False) from error


def withdrawn(database: Database, claim: Claim, effect: Effect, lost: ApprovalLost) -> Transition:
    """What becomes of a call whose decision does not hold any more: nothing of it is executed.

    It is to be proposed again; if that would not help, a person must look. Raises `Fenced` or
    `RequestsChanged`.
    """
    if lost.is_damage or effect.state is not EffectState.APPROVED:
        message = (
            f"call {effect.call_id} of {effect.tool} was not executed, although it had been "
            f"approved: {lost.why}. Cancel the run, or mend that and say `celeriac retry "
            f"{claim.run_id}`"
        )
        error: dict[str, JsonValue] = {"kind": "approval_lost", "message": message}
        following = Next.needs_attention(Phase.WAITING_TOOL, error)
        return Transition(StepRecord(following, StepKind.ACT, "approval_lost", advances=False))
    with database.begin() as connection:
        consuming.withdraw(connection, claim, effect, lost)
    following = Next.queued(Phase.WAITING_TOOL)
    return Transition(StepRecord(following, StepKind.ACT, "approval_revoked", advances=False))


def proposed_again(loaded: LoadedAgent, claim: Claim, effect: Effect) -> Transition:
    """Propose a call anew whose decision was revoked; or if the tool's code does not take its
    arguments, tell the model so."""
    tool = loaded.tools[effect.tool]
    try:
        arguments = tool.validate(effect.arguments)
        assert tool.approval is not None
        requirement = tool.approval.strictest(arguments, tool.rollback)
        if tool.name == decision_tool.NAME:  # who must agree is not in the tool's code
            assert effect.requirement is not None
            requirement = Requirement.from_json(effect.requirement)
        said = str(arguments.get("intent", "")) if tool.name == decision_tool.NAME else ""
        proposal = propose(loaded, claim, tool, effect.call_id, arguments, requirement, said)
    except InvalidArguments as error:
        refused: dict[str, JsonValue] = {"kind": "invalid_arguments", "message": str(error)}
        settled = SettledEffect(effect.call_id, effect.state, EffectState.INVALID, error=refused)
        data: dict[str, JsonValue] = {
            "call_id": effect.call_id,
            "tool": effect.tool,
            "error": refused,
        }
        return Transition(
            StepRecord(
                Next.queued(Phase.WAITING_TOOL),
                StepKind.ACT,
                "invalid_arguments",
                advances=False,
                events=[Event("effect.invalid", data)],
                settled=[settled],
            )
        )
    return Transition(
        StepRecord(
            Next.queued(Phase.WAITING_TOOL),
            StepKind.ACT,
            "proposed_again",
            advances=False,
            events=proposal_events([proposal], {effect.call_id: effect.tool}),
            proposed=[proposal],
        )
    )
