"""The think or act step of a claimed run: the transition, and the commit of all that it leaves.

What others ask of the run meanwhile is found by the commit, which misses: then the step begins
again, or what it did is recorded as the run's row allows it now (`heeding`).
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import CeleriacError, Fenced
from celeriac.selection import ContextTooLong
from celeriac.sleeping import wait_of
from celeriac.states import EffectKind, EffectState, Phase, StepKind
from celeriac.testpoints import reach
from celeriac.workflows.definition import Workflow
from celeriac_storage import effects, history, rollbacks, timers
from celeriac_storage.claims import Claim, RequestsChanged
from celeriac_storage.consuming import ApprovalLost
from celeriac_storage.dispatch import Due
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import Committed, Next, StepRecord
from celeriac_storage.steps import commit
from celeriac_tasks import (
    answering,
    approving,
    contracting,
    delegating,
    forking,
    memorizing,
    requesting,
    sleeping,
    undoing,
)
from celeriac_tasks.acting import Acting
from celeriac_tasks.allotment import Allotment
from celeriac_tasks.approving import WAIT_FOR_PEOPLE
from celeriac_tasks.batch import Batch, next_batch
from celeriac_tasks.committing import patiently
from celeriac_tasks.conversation import Conversation, pending_calls
from celeriac_tasks.external_call import ExternalCall
from celeriac_tasks.heeding import ended_before_it_begins, heeding
from celeriac_tasks.late_reports import committed_after_all
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.requesting import WAIT_FOR_CHILDREN, WAIT_FOR_RESULTS
from celeriac_tasks.selecting import question_of
from celeriac_tasks.thinking import think, unaskable
from celeriac_tasks.transacting import commit_with_tool
from celeriac_tasks.transition import Transition
from celeriac_tasks.withdrawing import withdrawn
from celeriac_tasks.worker_process import WorkerProcess


class ClaimedStep:
    """One step under a claim: its transition, and the commit of it."""

    def __init__(
        self,
        worker: WorkerProcess,
        loaded: LoadedAgent,
        claim: Claim,
        conversation: Conversation,
        may_keep_claim: bool,
    ) -> None:
        self._worker = worker
        self._loaded = loaded
        self._claim = claim
        self._conversation = conversation
        self._deadline_seconds = loaded.agent.step_deadline_seconds
        self._keep_claim_seconds = self._deadline_seconds if may_keep_claim else None
        self._record: StepRecord | None = None
        self._requested: Sequence[Effect] = ()  # whose results another process is to submit
        self._allotment = Allotment(worker, loaded)
        self._was_asked = False  # for something, after the record to commit was made
        self.due: Sequence[Due] = ()  # steps of other runs, to be published after the commit

    def take(self) -> Committed:
        """Make the transition and commit it. Raises `Fenced` or `DatabaseUnavailable`."""
        while True:
            try:
                committed, left = self._transition()
                break
            except RequestsChanged as changed:
                # Asked for something before anything was done: begin again, knowing of it.
                self._claim = changed.claim
        if self._conversation.has_all(self._claim):
            self._conversation.extend(self._claim.run_id, left.messages)
        self._conversation.remember_pending(self._claim, left.pending)
        return committed

    def following_claim(self, committed: Committed) -> Claim:
        """The claim of the next step, for a task that goes on."""
        record = self._record
        assert record is not None
        assert record.next.phase is not None
        claim = self._claim
        return replace(
            claim,
            step=committed.step,
            phase=record.next.phase,
            state=dict(record.state),
            is_interrupt_requested=claim.is_interrupt_requested and not record.ends_interrupt,
            is_interrupt_answered=claim.is_interrupt_answered and not record.ends_interrupt,
            said=0 if record.hears else claim.said,
            message_count=claim.message_count
            + len(record.messages)
            + (claim.said if record.hears else 0),
            step_started_at=committed.committed_at,
            failed_thinks=record.failed_thinks,
            tool_calls_used=claim.tool_calls_used + record.tool_calls,
            input_tokens_used=claim.input_tokens_used + record.input_tokens,
            output_tokens_used=claim.output_tokens_used + record.output_tokens,
            agent_hash=claim.agent_hash or self._loaded.agent_hash,
            is_budgeted=committed.is_budgeted,
            selection=None,
        )

    def _transition(self) -> tuple[Committed, Transition]:
        pending = self._load()
        reach("step.after_load", self._claim.step)
        if self._claim.phase is Phase.WAITING_TOOL:
            return self._act(pending)
        if (ended := ended_before_it_begins(self._claim)) is not None:
            return self._commit(Transition(ended))
        if self._claim.is_rollback:
            return self._commit(undoing.think(self._worker.database, self._loaded, self._claim))
        if (forked := forking.begin(self._worker.database, self._loaded, self._claim)) is not None:
            return self._commit(forked)
        if self._claim.said:
            if (refused := self._allotment.reserve_calls(self._claim, ())) is not None:
                return self._commit(Transition(refused))
            # A step of its own, so that the model is only ever asked about what is committed.
            following = Next.queued(Phase.WAITING_MODEL)
            return self._commit(Transition(StepRecord(following, StepKind.THINK, "said")))
        return self._think()

    def _think(self) -> tuple[Committed, Transition]:
        worker, loaded, claim = self._worker, self._loaded, self._claim
        try:
            question = question_of(worker, loaded, claim, self._conversation)
        except ContextTooLong as error:
            return self._commit(Transition(unaskable(claim, error)))
        if loaded.agent.memory is not None:
            messages, recalled = memorizing.recalled(
                worker.database, worker.active, claim, loaded.agent.memory, question.messages
            )
            question = question.recalling(messages, recalled)
            reach("think.after_recall", claim.step)
        if (refused := self._allotment.reserve_question(claim, question.tokens)) is not None:
            return self._commit(Transition(refused))
        left = think(loaded, claim, question, worker.hearing, worker.text_streams)
        if isinstance(loaded.agent, Workflow):
            left = answering.read(claim, self._input(), left)
        return self._commit(left)

    def _input(self) -> JsonValue:
        with self._worker.active, self._worker.database.connect() as connection:
            return history.load_input(connection, self._claim.run_id)

    def _load(self) -> Sequence[Effect]:
        """Read what this process does not have: for a think step new messages, for an act step the
        calls to be made. An act step needs no conversation, so it leaves that to the next think."""
        claim, conversation = self._claim, self._conversation
        if claim.phase is Phase.WAITING_TOOL:
            # What an undo takes back may have been settled by a person since: it is read anew.
            pending = None if claim.is_rollback else conversation.pending(claim)
            if pending is None:
                load = rollbacks.load if claim.is_rollback else effects.load
                with self._worker.active, self._worker.database.connect() as connection:
                    pending = load(connection, claim.run_id, pending_calls(claim))
            if not pending:
                # Or it would wait for people whom nobody has asked, as if none had decided yet.
                raise CeleriacError(
                    f"run {claim.run_id}: step {claim.step} is to make calls, and no checkpoint "
                    "says which; was it deleted? Look with `celeriac audit`"
                )
            return pending
        if not conversation.has_all(claim) and not claim.is_rollback:
            with self._worker.active, self._worker.database.connect() as connection:
                conversation.catch_up(connection, claim, self._loaded.room)
        return ()

    def _act(self, pending: Sequence[Effect]) -> tuple[Committed, Transition]:
        self._requested = [effect for effect in pending if requesting.is_requested(effect)]
        if (asking := requesting.drifted(pending)) is not None:
            # The person's word may come in meanwhile, if another step has asked already.
            return self._commit(Transition(asking), begins_again=True)
        if self._requested:
            pause = requesting.wait_for(self._requested)
            waiting = StepRecord(pause, StepKind.ACT, str(pause.phase), advances=False)
            # A result may come in meanwhile.
            return self._commit(Transition(waiting), begins_again=True)
        is_settling = any(ExternalCall.is_lost(effect) for effect in pending)
        if self._claim.is_interrupt_answered and not is_settling:
            return self._withdraw(pending)
        if approving.waits(pending):
            # Woken by a decision about another call, or one was revoked and is asked for again.
            ended = ended_before_it_begins(self._claim)
            waiting = StepRecord(WAIT_FOR_PEOPLE, StepKind.ACT, "waiting_approval", advances=False)
            return self._commit(Transition(ended or waiting))
        batch = next_batch(pending)
        acting = Acting(self._worker.database, self._loaded, self._claim, batch)
        is_lost = ExternalCall.is_lost(batch.effects[0])
        # A call that somebody has begun is seen to its end first, whatever was asked for meanwhile.
        if not is_lost and (ended := ended_before_it_begins(self._claim)) is not None:
            return self._commit(Transition(ended))
        if not is_lost and (ended := approving.ended_by_rejection(pending)) is not None:
            return self._commit(Transition(ended))
        if not is_lost and (moot := undoing.moot(batch.effects[0])) is not None:
            return self._commit(acting.done([moot]))
        if undoing.is_by_hand(batch.effects[0]):
            return self._ask_to_undo(batch.effects[0])
        if (missing := acting.missing_tool()) is not None:
            return self._commit(missing)
        first = batch.effects[0]
        if first.state is EffectState.PLANNED and first.requirement is not None:
            return self._commit(approving.proposed_again(self._loaded, self._claim, first))
        if not is_lost:
            refused = self._allotment.reserve_calls(self._claim, batch.effects)
            if refused is not None:
                return self._commit(Transition(refused))
        try:
            return self._execute(acting, batch, is_lost=is_lost)
        except ApprovalLost as lost:
            return self._commit(
                approving.withdrawn(self._worker.database, self._claim, first, lost)
            )

    def _withdraw(self, pending: Sequence[Effect]) -> tuple[Committed, Transition]:
        """Tell the model that its calls are not made, and what the user said instead."""
        ended = ended_before_it_begins(self._claim)
        if ended is None:
            ended = self._allotment.reserve_calls(self._claim, ())
        acting = Acting(self._worker.database, self._loaded, self._claim, Batch(pending, ()))
        if ended is None:
            known = committed_after_all(self._worker.database, self._claim, acting, pending)
            left = acting.done(withdrawn(pending, known))
        else:
            left = Transition(ended)
        # A decision about one of the calls may be what was asked for meanwhile.
        return self._commit(left, begins_again=True)

    def _request(self, batch: Batch) -> tuple[Committed, Transition]:
        """Have another process execute the calls, and wait for it."""
        record = requesting.handed_out(WAIT_FOR_RESULTS, "requested", batch)
        database, loaded, claim = self._worker.database, self._loaded, self._claim
        with (
            self._worker.active,
            requesting.requested(database, loaded, claim, batch) as connection,
        ):
            committed = self._commit_in(connection, record)
        reach("step.after_commit", claim.step)
        return committed, Transition(record)

    def _delegate(self, batch: Batch) -> tuple[Committed, Transition]:
        """Start the runs that answer the calls, and wait for them."""
        record = requesting.handed_out(WAIT_FOR_CHILDREN, "delegated", batch)
        database, loaded, claim = self._worker.database, self._loaded, self._claim
        with (
            self._worker.active,
            delegating.delegated(database, loaded, claim, batch) as (connection, due),
        ):
            committed = self._commit_in(connection, record)
        self.due = due
        reach("step.after_commit", claim.step)
        return committed, Transition(record)

    def _sleep(self, acting: Acting, effect: Effect) -> tuple[Committed, Transition]:
        """Go on if the call's timer has fired; else set it, and wait."""
        settled = sleeping.woken(self._worker.database, self._claim, effect)
        if settled is not None:
            return self._commit(acting.done([settled]))
        assert isinstance(effect.arguments, dict)
        due_at, seconds = wait_of(effect.arguments)
        run_id = self._claim.run_id
        with self._worker.active, self._worker.database.begin() as connection:
            timers.set_timer(connection, run_id, effect.call_id, due_at, after_seconds=seconds)
            committed = self._commit_in(connection, sleeping.ASLEEP)
        reach("step.after_commit", self._claim.step)
        return committed, Transition(sleeping.ASLEEP)

    def _ask_to_undo(self, effect: Effect) -> tuple[Committed, Transition]:
        """Have a person undo a call by hand, and wait for what they say."""
        with (
            self._worker.active,
            undoing.asked(self._worker.database, self._claim, effect) as (connection, record),
        ):
            committed = self._commit_in(connection, record)
        reach("step.after_commit", self._claim.step)
        return committed, Transition(record)

    def _execute(
        self, acting: Acting, batch: Batch, *, is_lost: bool
    ) -> tuple[Committed, Transition]:
        if batch.is_elsewhere:
            return self._request(batch)
        if batch.is_delegated:
            return self._delegate(batch)
        if batch.is_sleep:
            return self._sleep(acting, batch.effects[0])
        match batch.kind:
            case EffectKind.NONE:
                calls = batch.effects
                known = committed_after_all(self._worker.database, self._claim, acting, calls)
                # If nothing is read, it costs nothing to look again for what is told meanwhile.
                only_tells = all(effect.state.is_settled for effect in calls)
                return self._commit(acting.read(known), begins_again=only_tells)
            case EffectKind.TRANSACTIONAL:
                tool = self._loaded.tools[batch.effects[0].tool]
                deed, committed = commit_with_tool(
                    self._worker, acting, self._claim, tool, self._commit_in
                )
                reach("step.after_commit", self._claim.step)
                return committed, deed
            case EffectKind.EXTERNAL:
                call = ExternalCall(self._worker.database, self._loaded, self._claim, acting)
                if is_lost:
                    left = call.recover()
                    if left is None and (ended := ended_before_it_begins(self._claim)) is not None:
                        left = Transition(ended)  # nothing is sent again, and it stays unknown
                    if left is not None:
                        # Its own worker may have told meanwhile what came of the call.
                        return self._commit(left, begins_again=True)
                return self._commit_call(call.make(), batch.effects[0])

    def _commit_call(self, left: Transition, effect: Effect) -> tuple[Committed, Transition]:
        # Taken for not done, and not made now: its own worker may tell otherwise meanwhile.
        is_doubtful = effect.state is EffectState.NOT_DONE and not any(
            settled.is_attempt for settled in left.record.settled
        )
        try:
            return self._commit(left, begins_again=is_doubtful)
        except Fenced:
            # Thought to be dead while it was calling. What it knows of its own call is a fact.
            self._worker.report_outcomes(self._claim, left.record.settled)
            raise

    def _commit(
        self, left: Transition, *, begins_again: bool = False
    ) -> tuple[Committed, Transition]:
        """What was asked of the run meanwhile is heeded in the record; or, if that rests on what
        others may have changed, by raising `RequestsChanged`: the whole step begins again.
        """

        def commit_now() -> tuple[Committed, Transition]:
            record = self._heeding(left.record)
            with self._worker.active, self._worker.session(record) as connection:
                reach("step.before_commit", self._claim.step)
                judged = contracting.judged(connection, self._claim, replace(left, record=record))
                return self._commit_once(connection, judged.record), judged

        while True:
            try:
                done = patiently(self._worker, self._claim, self._deadline_seconds, commit_now)
            except RequestsChanged as changed:
                if begins_again:
                    raise
                self._claim, self._was_asked = changed.claim, True
            else:
                reach("step.after_commit", self._claim.step)
                return done

    def _commit_in(self, connection: Connection, record: StepRecord) -> Committed:
        """Commit inside the transaction that a tool has written in."""
        reach("step.before_commit", self._claim.step)
        while True:
            try:
                return self._commit_once(connection, self._heeding(record))
            except RequestsChanged as changed:
                self._claim, self._was_asked = changed.claim, True

    def _commit_once(self, connection: Connection, record: StepRecord) -> Committed:
        record = self._allotment.charge(self._claim, record, self._requested)
        self._record = record
        # A step that did not get there is for the next claim, which reads what this one recorded.
        keep_claim_seconds = self._keep_claim_seconds if record.advances else None
        return commit(connection, self._claim, record, keep_claim_seconds=keep_claim_seconds)

    def _heeding(self, record: StepRecord) -> StepRecord:
        return heeding(
            record, self._claim, self._loaded, self._requested, was_asked=self._was_asked
        )
