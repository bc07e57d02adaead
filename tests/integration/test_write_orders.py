"""Whoever writes in whatever order: the last write that was allowed stands, and nothing else."""

# features: 004-13, 004-14
from itertools import product
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.errors import Conflict, Fenced
from celeriac.states import EFFECT_TRANSITIONS, EffectState, Phase, RunStatus
from celeriac_storage import claims, requests, resolving
from celeriac_storage.audit import audit
from celeriac_storage.claims import Claim, RequestsChanged
from celeriac_storage.database import Database
from celeriac_storage.step_record import Next
from tests.records import COMPLETED, think
from tests.steps_by_hand import ALICE, Hand

WRITES = (EffectState.IN_FLIGHT, EffectState.COMMITTED, EffectState.FAILED)
ERROR: dict[str, Any] = {"kind": "x", "message": "y"}
WAYS = {
    "goes on": Next.queued(Phase.WAITING_MODEL),
    "completed": COMPLETED,
    "failed": Next.failed("model_failed", ERROR),
    "needs_attention": Next.needs_attention(Phase.WAITING_MODEL, ERROR),
}


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


# One call ---------------------------------------------------------------------------------------


def write(connection: Connection, run_id: str, call: str, state: EffectState) -> bool:
    """Write the state, as anybody might who asks nobody before; whether it was taken."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(
                """
                UPDATE celeriac.effects SET state = %(state)s,
                    result = CASE %(state)s WHEN 'committed' THEN '1'::jsonb END,
                    error = CASE %(state)s WHEN 'failed' THEN '{}'::jsonb END
                WHERE run_id = %(run_id)s AND call_id = %(call)s
                """,
                {"state": state, "run_id": run_id, "call": call},
            )
    except DBAPIError:
        return False
    return True


def test_of_every_order_of_writes_in_one_instant_the_last_legal_one_stands(hand: Hand) -> None:
    orders = [order for length in (1, 2, 3) for order in product(WRITES, repeat=length)]
    assert len(orders) == 39
    run_id = hand.start()
    calls = hand.ask_for_calls(run_id, count=len(orders))

    with hand.database.begin() as connection:  # so that now() is the same for all of them
        for call, order in zip(calls, orders, strict=True):
            expected = EffectState.PLANNED
            for state in order:
                is_legal = state in EFFECT_TRANSITIONS[expected]
                assert write(connection, run_id, call, state) is is_legal, (order, state)
                expected = state if is_legal else expected

            found = connection.exec_driver_sql(
                "SELECT state, result, error FROM celeriac.effects"
                " WHERE run_id = %s AND call_id = %s",
                (run_id, call),
            ).one()
            assert found.state == expected, order
            assert (found.result is not None) == (expected is EffectState.COMMITTED), order
            assert (found.error is not None) == (expected is EffectState.FAILED), order
        connection.rollback()


# One run ----------------------------------------------------------------------------------------


class Orders(RuleBasedStateMachine):
    """A run that two workers claim, lose and commit, while people cancel and retry it. What the
    rows say must be what the allowed writes add up to, whoever else has tried what."""

    database: Database
    claims_made = Bundle("claims_made")

    def __init__(self) -> None:
        super().__init__()
        self.workers = [Hand(self.database), Hand(self.database)]
        self.run_id = self.workers[0].start()
        self.status = RunStatus.QUEUED
        self.step = 0
        self.held: Claim | None = None
        self.is_cancel_asked = False

    @rule(target=claims_made, worker=strategies.integers(0, 1))
    def claim(self, worker: int) -> Claim | None:
        with self.database.connect() as connection:
            claim = claims.claim(
                connection,
                self.run_id,
                self.step,
                worker_id=self.workers[worker].worker_id,
                deadlines={"clerk": 600},
                is_alone=True,
            )
        assert (claim is not None) == (self.status is RunStatus.QUEUED)
        if claim is not None:
            self.status, self.held = RunStatus.RUNNING, claim
        return claim

    @rule()
    def lose(self) -> None:
        """The claim is taken from its holder, who does not hear of it."""
        if self.held is None or self.is_cancel_asked:
            return
        with self.database.connect() as connection:
            assert claims.release(connection, self.held)
        self.status, self.held = RunStatus.QUEUED, None

    @rule(claim=claims_made, way=strategies.sampled_from(sorted(WAYS)))
    def commit(self, claim: Claim | None, way: str) -> None:
        if claim is None:
            return
        holds = self.held is not None and claim.token == self.held.token
        following = WAYS[way]
        expected: type[Exception] | None = None if holds else Fenced
        if holds and self.is_cancel_asked:
            expected = RequestsChanged
        refused: type[Exception] | None = None
        try:
            self.workers[0].commit(claim, think(claim, following))
        except (Fenced, RequestsChanged) as error:
            refused = type(error)
        assert refused is expected, way
        if refused is not None:
            return
        self.status, self.held, self.step = following.status, None, self.step + 1

    @rule()
    def cancel(self) -> None:
        is_over = self.status.is_terminal and self.status is not RunStatus.CANCELLED
        try:
            with self.database.begin() as connection:
                requests.request_cancel(connection, self.run_id, ALICE)
        except Conflict:
            assert is_over
            return
        assert not is_over
        if self.status is RunStatus.RUNNING:
            self.is_cancel_asked = True
        else:
            self.status = RunStatus.CANCELLED

    @rule()
    def heed(self) -> None:
        """The holder learns that the run is to end, and ends it."""
        if self.held is None or not self.is_cancel_asked:
            return
        claim = self.held
        try:
            self.workers[0].commit(claim, think(claim, COMPLETED))
        except RequestsChanged as changed:
            claim = changed.claim
        assert claim.is_cancel_requested
        self.workers[0].commit(claim, think(claim, Next.cancelled()))
        self.status, self.held, self.step = RunStatus.CANCELLED, None, self.step + 1

    @rule()
    def retry(self) -> None:
        try:
            with self.database.begin() as connection:
                resolving.retry(connection, self.run_id, ALICE)
        except Conflict:
            assert self.status is not RunStatus.NEEDS_ATTENTION
            return
        assert self.status is RunStatus.NEEDS_ATTENTION
        self.status = RunStatus.QUEUED

    @invariant()
    def what_the_row_says_adds_up(self) -> None:
        row = self.workers[0].row(self.run_id)
        assert (row.status, row.step) == (self.status, self.step)
        assert (row.result is not None) == (self.status is RunStatus.COMPLETED)
        is_wrong = self.status in (RunStatus.FAILED, RunStatus.NEEDS_ATTENTION)
        assert (row.error is not None) == is_wrong
        assert (row.finished_at is not None) == self.status.is_terminal

    def teardown(self) -> None:
        assert audit(self.database, self.run_id) == []


def test_in_every_order_of_claims_commits_and_wishes_only_allowed_writes_count(
    database: Database,
) -> None:
    class OnThisDatabase(Orders):
        pass

    OnThisDatabase.database = database
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(max_examples=30, stateful_step_count=15, deadline=None),
    )
