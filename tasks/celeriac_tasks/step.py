"""One step of one run: claim → load → transition → commit → publish.

The order is the guarantee (`docs/step.md` goes through it line by line):

    claim      queued → running with a fresh token; no row moved means the message is stale
    load       the latest checkpoint came with the claim; the messages that this process lacks
    transition think: ask the model; act: execute tool calls; flow: run a workflow's code. No
               transaction, no lock held
    commit     one statement fenced on (run, step, token): all of the step, or nothing
    publish    the next step, and wake readers. If the process dies before this, the scheduler
               publishes it
"""

import logging
from collections.abc import Sequence

from celeriac.errors import DatabaseUnavailable, Fenced
from celeriac.ids import ClaimToken, RunId
from celeriac.states import RunKind, RunStatus
from celeriac.testpoints import reach
from celeriac_storage import claims, dispatch
from celeriac_storage.claims import Claim
from celeriac_storage.dispatch import Due
from celeriac_tasks import observing
from celeriac_tasks.claimed_step import ClaimedStep
from celeriac_tasks.turning import TurnStep
from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)


def take_step(worker: WorkerProcess, run_id: RunId, step: int) -> None:
    """Execute the step that a message named, if it is still to be done.

    With `steps_per_task` above 1 the claim is kept for the steps that follow.
    """
    with worker.gate.shared() as is_inside, worker.token() as token:
        claim = _claim(worker, run_id, step, token, is_alone=False) if is_inside else None
        if claim is not None:
            _go_on(worker, claim)
            return
    with worker.database.connect() as connection:
        obstacle = claims.why_unclaimed(connection, run_id, step)
        if obstacle is None or not obstacle.is_queued_here:
            return  # a duplicate or a message from the past
        if obstacle.newer_schema is not None:
            logger.warning(
                "run %s: step %s goes on from a checkpoint of schema %s, and this code reads %s at "
                "most: it is for a worker with newer code, and nothing was changed",
                run_id, step, obstacle.newer_schema, claims.CHECKPOINT_SCHEMA_VERSION,
            )  # fmt: skip
            dispatch.pass_on(connection, run_id, step)
            return
        if obstacle.agent not in worker.agents or not obstacle.needs_isolation:
            # The agent is not here, this worker was declared dead and does not know it yet, or a
            # step that has to be alone keeps this one out.
            logger.info("run %s: step %s is for another worker", run_id, step)
            dispatch.pass_on(connection, run_id, step)
            return
    with worker.gate.alone() as is_alone, worker.token() as token:
        claim = _claim(worker, run_id, step, token, is_alone=True) if is_alone else None
        if claim is not None:
            _go_on(worker, claim)


def _claim(
    worker: WorkerProcess, run_id: RunId, step: int, token: ClaimToken, *, is_alone: bool
) -> Claim | None:
    reach("step.before_claim", step)
    with worker.active, worker.database.connect() as connection:
        claim = claims.claim(
            connection,
            run_id,
            step,
            worker_id=worker.worker_id,
            deadlines=worker.deadlines,
            is_alone=is_alone,
            token=token,
        )
    reach("step.after_claim", step)
    return claim


def _go_on(worker: WorkerProcess, claim: Claim) -> None:
    """Take this step, and those after it for as long as the task keeps the claim."""
    loaded = worker.agents[claim.agent].for_run(claim.kind)
    conversation = worker.conversations.take(claim)
    taken = 0
    try:
        with worker.holding(claim):
            while True:
                taken += 1
                step: ClaimedStep | TurnStep
                if claim.kind is RunKind.WORKFLOW:
                    step = TurnStep(worker, loaded, claim)
                else:
                    step = ClaimedStep(
                        worker, loaded, claim, conversation, worker.may_keep_claim(taken)
                    )
                with observing.step(claim):
                    committed = step.take()
                worker.wake_readers(claim.run_id)
                _publish_others(worker, step.due, committed.parent_step)
                if committed.status is not RunStatus.RUNNING:
                    break
                assert isinstance(step, ClaimedStep)  # a turn never keeps its claim
                claim = step.following_claim(committed)
                worker.hold(claim)
        if committed.status is RunStatus.QUEUED:
            reach("step.before_publish", claim.step)
            if claim.kind is not RunKind.WORKFLOW:
                worker.conversations.put(claim.run_id, conversation)
            worker.publish(claim.run_id, committed.step, claim.queue)
            reach("step.after_publish", claim.step)
    except Fenced as fenced:
        logger.warning("%s", fenced)
    except DatabaseUnavailable as lost:
        logger.warning("run %s: step %s is given back: %s", claim.run_id, claim.step, lost)
        worker.give_back(claim)
    except Exception as error:
        logger.exception("run %s: step %s failed in our own code", claim.run_id, claim.step)
        worker.stumble(claim, error)
    except BaseException as error:
        # This thread is told to end, or a transactional tool said sys.exit(); everything is undone.
        worker.stumble(claim, error)
        raise


def _publish_others(worker: WorkerProcess, started: Sequence[Due], parent: Due | None) -> None:
    """The first steps of the run's children, or that of the run that waited for it. If the process
    dies before this, the scheduler publishes them."""
    for due in started:
        worker.publish(due.run_id, due.step, due.queue)
    if parent is not None:
        worker.publish(parent.run_id, parent.step, parent.queue)
