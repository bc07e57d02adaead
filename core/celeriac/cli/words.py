"""What a run waits for, in words, and what the reader can do about it."""

from typing import TYPE_CHECKING

from celeriac.states import Phase, RunStatus

if TYPE_CHECKING:
    from celeriac.reports import Run, Wait


def waiting_for(run: "Run", wait: "Wait") -> str | None:
    """A sentence, or None for a run that has ended or is being worked on."""
    if run.status is RunStatus.NEEDS_ATTENTION:
        return _attention(run, wait)
    if run.status is RunStatus.PAUSED:
        return _pause(run, wait)
    if run.status is RunStatus.QUEUED:
        return f"for a worker of queue {wait.queue} to take step {run.step}"
    if run.status is RunStatus.RUNNING and wait.is_cancel_requested:
        return "for the step in progress to be recorded; then it is cancelled"
    return _unsettled(run, wait) if run.status.is_terminal else None


def _attention(run: "Run", wait: "Wait") -> str:
    if wait.unknown_calls:
        call = wait.unknown_calls[0]
        return (
            f"for a person: look at the target of call {call}, then say `celeriac resolve "
            f"{run.run_id} {call} --committed JSON` or `--not-done`"
        )
    return f"for a person: mend what the error says, then say `celeriac retry {run.run_id}`"


def _unsettled(run: "Run", wait: "Wait") -> str | None:
    if not wait.unknown_calls:
        return None
    return (
        f"for nothing; but what came of call {wait.unknown_calls[0]} is unknown: "
        f"`celeriac resolve {run.run_id} {wait.unknown_calls[0]} …` settles it"
    )


def _pause(run: "Run", wait: "Wait") -> str:
    match run.phase:
        case Phase.WAITING_WORKER:
            return (
                f"for a worker: no live worker has agent {run.agent}; start one with `celeriac "
                f"worker --agents MODULE`, where MODULE defines it"
            )
        case Phase.WAITING_THREAD:
            behind = f"run {wait.behind}" if wait.behind else "an earlier run"
            return f"for its turn in thread {run.thread_id}, behind {behind}"
        case Phase.WAITING_TIMER if wait.wake_at is not None:
            return f"until {wait.wake_at:%Y-%m-%d %H:%M:%S} UTC, to try again"
        case Phase.WAITING_APPROVAL:
            return "for a person to approve, edit or reject a call"
        case Phase.WAITING_USER:
            return "for the user to say something"
        case Phase.WAITING_EXTERNAL:
            return "for the result of a tool that another system runs"
        case Phase.WAITING_CHILD:
            return "for another run that it started"
        case _:
            return "for a moment"
