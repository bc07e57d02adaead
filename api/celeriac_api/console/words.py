"""What a run's history says to people, and what a run waits for."""

from collections.abc import Mapping
from typing import Any

from celeriac.reports import Event, Run, RunLine, Wait
from celeriac.states import Phase, RunStatus

EVENTS: Mapping[str, str] = {
    "run.created": "accepted for {agent}",
    "run.paused": "paused: {phase}",
    "run.woken": "goes on: the {waited_for} is there",
    "run.heard": "heard what its user had said",
    "run.said": "{by} said something",
    "run.interrupt_requested": "{by} asked it to stop for its user",
    "run.cancel_requested": "{by} asked it to end",
    "run.recovered": "worker {worker_id} was lost",
    "run.stumbled": "the step failed in the worker, and is queued again: {error[message]}",
    "run.needs_attention": "needs a person: {error[message]}",
    "run.retried": "{by} let it try again",
    "run.deadline_passed": "its deadline has passed; it ends when what was begun is recorded",
    "run.completed": "completed",
    "run.failed": "failed ({outcome}): {error[message]}",
    "run.cancelled": "cancelled",
    "model.answered": "the model answered",
    "model.questioned": "the model is asked again: {why}",
    "model.interrupted": "the request to the model was cancelled",
    "model.failed": "asking the model failed ({kind})",
    "call.requested": "another process is asked to execute {tool} ({call_id})",
    "call.delegated": "a run of another agent is to answer {tool} ({call_id})",
    "child.started": "run {child_run_id} of {agent} answers {call_id}",
    "activity.started": "{kind} {name} ({number}) begins",
    "activity.completed": "{kind} {name} ({number}) has its result",
    "activity.failed": "{kind} {name} ({number}) failed: {error[message]}",
    "run.continued": "begins again, with another input",
    "run.told": "{by} told it of {name}",
    "effect.in_flight": "{tool} ({call_id}) begins, attempt {attempt}",
    "effect.committed": "{tool} ({call_id}) took effect",
    "effect.failed": "{tool} ({call_id}) failed: {error[message]}",
    "effect.invalid": "{tool} ({call_id}) does not take its arguments: {error[message]}",
    "effect.precondition_failed": "{tool} ({call_id}) was not made: {error[message]}",
    "effect.rejected": "{tool} ({call_id}) is never made: {error[message]}",
    "effect.expired": "{tool} ({call_id}) was decided by nobody in time",
    "effect.not_done": "{tool} ({call_id}) has certainly not taken effect",
    "effect.unknown": "nobody knows whether {tool} ({call_id}) took effect",
    "effect.known_bad": "{tool} ({call_id}) reported success, and its target does not show it",
    "effect.rolled_back": "{tool} ({call_id}) is undone",
    "effect.resolved": "{by} said of {tool} ({call_id}): {state}",
    "effect.reported": "worker {by}, thought dead, told what came of {tool} ({call_id})",
    "results.refused": "results from {by} were refused: {error[message]}",
    "tool.progress": "{call_id}: {text}",
    "tool.failed": "{tool} ({call_id}) failed without an effect, and is tried again: "
    "{error[message]}",
    "precondition.unclear": "nobody can tell yet whether {tool} ({call_id}) may be made: "
    "{error[message]}",
    "workspace.drifted": "{by} found the files of {tool} ({call_id}) changed by somebody else: "
    "{error[message]}",
    "contract.met": "all that its contract requires is so",
    "contract.refused": "the model said that it is done, and is told what is missing "
    "({correction} of {max_corrections})",
    "contract.unmet": "it ends, and something is missing of its contract ({enforcement})",
    "memory.decided": "the policy has decided about what {call_id} would remember: {reason}",
    "budget.warned": "the budget of {scope} {subject} is nearly used up ({measure})",
    "budget.exceeded": "the next step needs {needed} {measure}, and the budget of "
    "{scope} {subject} does not have them",
    "undo.requested": "people are asked to undo {tool} ({call_id}) by hand",
    "rollback.requested": "{by} asked to undo run {run_id} from step {from_step} on",
    "fork.planned": "the calls that were still to be made are planned anew",
    "rollback.planned": "it is known how each call is undone",
    "proposal.recorded": "{tool} ({call_id}) is proposed",
    "proposal.edited": "{by} changed the arguments of {tool} ({call_id})",
    "approval.requested": "people are asked to decide about {tool} ({call_id})",
    "approval.surfaced": "{to} was shown the proposal",
    "approval.counted": "{by} approved {tool} ({call_id}): {approvals} of {quorum}",
    "approval.decided": "{by} said {decision} to {tool} ({call_id})",
    "approval.expired": "nobody decided about {tool} ({call_id}) in time",
    "approval.revoked": "the approval of {call_id} does not hold any more: {why}",
    "args.validated": "the approved arguments of {tool} ({call_id}) were checked",
    "authz.checked": "the reviewers' rights for {tool} ({call_id}) were checked",
}
"""By type, with fields of the event's data in braces. A test compares the types with the models."""

BAD = frozenset(
    {
        "run.deadline_passed", "workspace.drifted", "contract.unmet", "budget.exceeded",
        "run.recovered", "run.stumbled", "run.needs_attention", "run.failed", "model.failed",
        "effect.unknown", "effect.known_bad", "effect.failed", "activity.failed",
        "results.refused",
        "approval.revoked",
    }
)  # fmt: skip


class _Facts(dict[str, Any]):
    """What is not there, is not known: an event of another version is shown all the same."""

    def __missing__(self, key: str) -> "_Facts | str":
        return _Facts() if key == "error" else "?"


def event_words(event: Event) -> str:
    """One line about the event."""
    facts = _Facts(event.data)
    if (error := facts.get("error")) is not None:
        facts["error"] = _Facts(error if isinstance(error, dict) else {"message": error})
    if "phase" in facts:
        facts["phase"] = str(facts["phase"]).removeprefix("waiting_").replace("_", " ")
    return EVENTS.get(event.type, event.type).format_map(facts)


def waiting_for(run: Run | RunLine, wait: Wait) -> str | None:
    """Why nobody works on the run just now, and what there is to do; None if there is no reason."""
    if run.status is RunStatus.NEEDS_ATTENTION:
        if wait.unknown_calls:
            return "A person has to find out what came of a call, and say it below."
        return "A person has to mend what the error says; then let it try again."
    if run.status is RunStatus.QUEUED:
        return f"It waits for a worker of queue {wait.queue} to take step {run.step}."
    if run.status is RunStatus.RUNNING and wait.is_cancel_requested:
        return "It ends as soon as the step in progress is recorded."
    if run.status is RunStatus.PAUSED:
        return _pause(run, wait)
    return None


def _pause(run: Run | RunLine, wait: Wait) -> str:
    match run.phase:
        case Phase.WAITING_WORKER:
            return f"No live worker has the agent {run.agent}; it goes on when one comes."
        case Phase.WAITING_THREAD:
            return f"It waits for its turn in thread {run.thread_id}, behind {wait.behind}."
        case Phase.WAITING_TIMER if wait.wake_at is not None:
            return f"It goes on at {wait.wake_at:%Y-%m-%d %H:%M:%S} UTC."
        case Phase.WAITING_APPROVAL:
            return "A person has to decide about a call."
        case Phase.WAITING_USER:
            return "It waits for its user to say something."
        case Phase.WAITING_EXTERNAL:
            return "Another process executes a call, and its result is waited for."
        case Phase.WAITING_BUDGET:
            return "It waits for room in a budget, which somebody may top up."
        case Phase.WAITING_CHILD:
            return "It waits for another run that it started."
        case Phase.WAITING_ACTIVITY:
            return "Its code waits for what it has asked for; the log below says what goes on."
        case _:
            return "It goes on in a moment."
