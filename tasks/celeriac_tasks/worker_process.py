"""What one executing process shares among its steps: connections, agents, conversations, claims."""

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from operator import itemgetter

import psycopg
from celery import Celery
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.agent import Agent
from celeriac.codec import JsonValue
from celeriac.errors import CeleriacError, DatabaseUnavailable
from celeriac.ids import ClaimToken, RunId, WorkerId, new_claim_token, new_worker_id
from celeriac.secrets import redact
from celeriac.settings import Settings
from celeriac.states import EffectState
from celeriac_storage import agents, claims, dispatch, lost_calls, resolving
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.lifeline import Lifeline, connect_timeout_seconds
from celeriac_storage.step_record import SettledEffect, StepRecord
from celeriac_storage.workers import WorkerInfo, application_name
from celeriac_tasks.bell import Bell
from celeriac_tasks.broker import Backlog, Broker
from celeriac_tasks.celery_app import is_redis
from celeriac_tasks.conversation import ConversationCache
from celeriac_tasks.gate import Gate
from celeriac_tasks.hearing import Hearing
from celeriac_tasks.heartbeat import Heartbeat
from celeriac_tasks.live_flow import FlowCache
from celeriac_tasks.loaded_agent import load_agent
from celeriac_tasks.places import Places
from celeriac_tasks.publisher import Publisher
from celeriac_tasks.text_stream import TextStreams

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 2  # beyond one for each active step: recording attempts, giving steps back


class WorkerProcess:
    """One OS process that executes steps. Made after the fork, in the process that runs them.

    `active` bounds how many steps do our own work at once (claim, load, commit, publish). A step
    that waits for a model or a tool keeps its slot but holds neither an active place nor a
    connection.
    """

    def __init__(self, settings: Settings, app: Celery, agents: Mapping[str, Agent]) -> None:
        assert settings.database_url is not None
        url = settings.database_url.get_secret_value()
        direct_url = settings.database_direct_url
        self.settings = settings
        self.pid = os.getpid()
        self.agents = {name: load_agent(agent) for name, agent in agents.items()}
        self.deadlines = {name: agent.step_deadline_seconds for name, agent in agents.items()}
        self._bell = Bell.of_broker(_broker_url(settings))
        # Two pools, so that a step which waits for an active place with its tool's transaction open
        # never holds the connection that those inside are waiting for.
        own = settings.active_steps + SPARE_CONNECTIONS
        self.database = self._make_database(url, own)
        self.tool_database = self._make_database(url, max(2, settings.connections - own))
        self.publisher = Publisher(app)
        self.hearing = Hearing(self.database)
        self.text_streams = TextStreams(_broker_url(settings)) if is_redis(settings) else None
        self._backlog = Backlog(Broker(app), settings.queue_names)
        self.conversations = ConversationCache()
        self.flows = FlowCache()
        self.gate = Gate()
        self.active = Places(settings.active_steps)
        self.is_draining = False
        self._lock = threading.Lock()
        self._held: dict[ClaimToken, Claim] = {}
        self._tokens: set[ClaimToken] = set()
        self._heartbeat = Heartbeat(
            # A connection of its own: a lease must not run out because tools hold all the others.
            Database(
                url,
                application_name=lambda: application_name(self.worker_id),
                connections=1,
                connect_timeout_seconds=connect_timeout_seconds(settings.lease_seconds),
                pre_ping=True,  # after a restart of the server, the first renewal must not fail
                tell=self.wake_readers,
            ),
            Lifeline(
                direct_url.get_secret_value() if direct_url else url,
                lease_seconds=settings.lease_seconds,
            ),
            WorkerInfo(
                worker_id=new_worker_id(),
                hostname=socket.gethostname(),
                pid=self.pid,
                pool=settings.pool,
                agents=sorted(agents),
                queues=settings.queue_names,
            ),
            settings.lease_seconds,
            self._release_lost,
        )
        self._named_for = self.worker_id

    def _make_database(self, url: str, connections: int) -> Database:
        return Database(
            url,
            application_name=lambda: application_name(self.worker_id),
            connections=connections,
            idle_limit_seconds=self.settings.lease_seconds,
            tell=self.wake_readers,
        )

    @property
    def worker_id(self) -> WorkerId:
        return self._heartbeat.worker.worker_id

    def start(self) -> None:
        """Register the agents and this worker. Raises `DatabaseUnavailable`."""
        with self.database.begin() as connection:
            # In one order: two workers that start at once must not lock each other out.
            for name, loaded in sorted(self.agents.items(), key=itemgetter(0)):
                agents.register_agent(
                    connection, name, loaded.agent_hash, loaded.agent.definition()
                )
        if self.database.is_pooled and self.settings.database_direct_url is None:
            # A lock would belong to a session of the pooler, and outlive us or leave without us.
            logger.warning(
                "CELERIAC_DATABASE_URL leads to a connection pooler: a dead worker is noticed "
                "after its lease (%g s) only; set CELERIAC_DATABASE_DIRECT_URL for more",
                self.settings.lease_seconds,
            )
            self._heartbeat.trust_the_lease_alone()
        self._heartbeat.start()

    def stop(self) -> None:
        """Say goodbye; what is still held is handed back."""
        self.hand_back()
        self._heartbeat.stop()
        self.hearing.close()
        if self._bell is not None:
            self._bell.close()
        if self.text_streams is not None:
            self.text_streams.close()
        self.database.close()
        self.tool_database.close()

    @property
    def steps_held(self) -> int:
        """How many steps are claimed or about to be."""
        return len(self._tokens)

    @property
    def is_busy(self) -> bool:
        """Whether a step is claimed and not yet committed."""
        return bool(self._held)

    @contextmanager
    def token(self) -> Iterator[ClaimToken]:
        """A token for one claim and the steps under it, known here before the database knows it.

        What is claimed with a token that is not in use any more, the heartbeat gives back: an
        answer of the database may have got lost, and nobody takes a step from a worker that lives.
        """
        token = new_claim_token()
        with self._lock:
            self._tokens.add(token)
        try:
            yield token
        finally:
            with self._lock:
                self._tokens.discard(token)

    def _release_lost(self, connection: Connection) -> None:
        if self._named_for != self.worker_id:
            # Declared dead and going on under another name: the old sessions have the old one.
            self.database.drop_idle()
            self.tool_database.drop_idle()
            self._named_for = self.worker_id
        # In this order: a token is in use here before the database can have it, so one that the
        # database had and that is not in use now is lost. The other way round, a claim that falls
        # between the two looks would be taken from the step that is being executed.
        held = claims.tokens_held(connection, self.worker_id)
        with self._lock:
            lost = held - self._tokens
        if lost and claims.release_lost(connection, self.worker_id, lost):
            logger.warning("gave back %d steps whose claim had got lost", len(lost))

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        """Remember the claim while its step runs, so that a shutdown can hand it back."""
        with self._lock:
            self._held[claim.token] = claim
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(claim.token, None)

    def hold(self, claim: Claim) -> None:
        """The claim has moved on to its run's next step."""
        with self._lock:
            self._held[claim.token] = claim

    def session(self, record: StepRecord) -> AbstractContextManager[Connection]:
        """A connection to commit `record` on: in a transaction only if it needs one."""
        if record.next.releases_thread:
            return self.database.begin()
        return self.database.connect()

    def may_keep_claim(self, steps_taken: int) -> bool:
        """Whether a task that took so many steps may go on with the next one itself."""
        if self.is_draining:
            return False
        allowed = self.settings.steps_per_task
        if allowed != "auto":
            return steps_taken < allowed
        # With a free slot here, a message that waits is only on its way and needs not ours.
        return self._has_free_slot or self._backlog.is_empty()

    @property
    def _has_free_slot(self) -> bool:
        return self.settings.pool == "threads" and len(self._tokens) < self.settings.slots

    def stumble(self, claim: Claim, error: BaseException) -> None:
        """Our own code failed in this step: give it back with a strike, and the third is the last.

        A bug that comes every time must end before a person and not in a loop.
        """
        reason: dict[str, JsonValue] = {
            "kind": type(error).__name__,
            "message": redact(f"step {claim.step} failed in the worker: {error}").partition("\n")[
                0
            ],
        }
        try:
            with self.database.begin() as connection:
                is_queued = claims.stumble(connection, claim, reason)
        except CeleriacError as lost:
            logger.warning("no strike for step %s:%s: %s", claim.run_id, claim.step, lost)
            return
        if is_queued:
            self.publish(claim.run_id, claim.step, claim.queue)

    def report_outcomes(self, claim: Claim, settled: Sequence[SettledEffect]) -> None:
        """Note what came of external calls whose step is somebody else's by now."""
        for effect in settled:
            evidence: dict[str, JsonValue]
            if not effect.is_attempt:
                continue
            if effect.state is EffectState.COMMITTED:
                evidence = {"result": effect.result}
            elif effect.state is EffectState.FAILED:
                evidence = {"error": effect.error}
            elif effect.state is EffectState.NOT_DONE and effect.was is EffectState.IN_FLIGHT:
                # It certainly failed, and its tool says that it is worth another attempt: whoever
                # has the step now sees to that.
                evidence = {"error": effect.evidence, "is_retried": True}
                effect = replace(effect, state=EffectState.FAILED)  # noqa: PLW2901
            else:
                continue
            if effect.evidence is not None:
                kept = ("changes", "command")
                evidence |= {
                    name: effect.evidence[name] for name in kept if name in effect.evidence
                }
            for is_last in (False, True):
                try:
                    self._report(claim, effect, evidence)
                    break
                except (CeleriacError, DBAPIError, psycopg.Error) as error:
                    if is_last:
                        logger.warning(
                            "run %s: what came of call %s was not noted: %s",
                            claim.run_id,
                            effect.call_id,
                            error,
                        )

    def _report(self, claim: Claim, effect: SettledEffect, evidence: dict[str, JsonValue]) -> None:
        with self.database.begin() as connection:
            if lost_calls.report(connection, claim, effect.call_id, effect.state, evidence):
                resolving.go_on_with_report(
                    connection, claim.run_id, effect.call_id, self.worker_id
                )

    def hand_back(self) -> None:
        """Release all claims, so that others take the steps now instead of after our death."""
        with self._lock:
            held = list(self._held.values())
        for claim in held:
            self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Release one claim and publish its step.

        If the database is away, the heartbeat does it as soon as it is back: the claim's token is
        no longer in use here.
        """
        try:
            with self.database.connect() as connection:
                if not claims.release(connection, claim):
                    return
            self.publish(claim.run_id, claim.step, claim.queue)
        except CeleriacError as error:
            logger.warning("step %s:%s was not handed back: %s", claim.run_id, claim.step, error)

    def wake_readers(self, run_id: RunId) -> None:
        """Tell whoever watches the run that something has committed. On Redis only."""
        if self._bell is not None:
            self._bell.ring(run_id)

    def publish(self, run_id: RunId, step: int, queue: str) -> None:
        """Publish a queued step. If the broker is away, leave it to the scheduler, at once."""
        try:
            self.publisher.publish(run_id, step, queue)
        except CeleriacError as error:
            logger.warning("step %s:%s is left to the scheduler: %s", run_id, step, error)
            try:
                with self.database.connect() as connection:
                    dispatch.mark_unpublished(connection, run_id, step)
            except DatabaseUnavailable as lost:
                logger.warning("step %s:%s is published after its backoff: %s", run_id, step, lost)


def _broker_url(settings: Settings) -> str:
    assert settings.broker_url is not None
    return settings.broker_url.get_secret_value()
