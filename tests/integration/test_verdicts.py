"""When a worker counts as dead, and what becomes of the steps it held."""

# features: 003-13, 003-22
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery
from pydantic import SecretStr
from sqlalchemy import Connection

from celeriac.errors import DatabaseUnavailable, Fenced
from celeriac.ids import RunId, WorkerId, new_worker_id
from celeriac.settings import Settings
from celeriac.states import Phase
from celeriac_scheduler.failover import TICKS_BEFORE_VERDICT, Failover
from celeriac_scheduler.outlet import Outlet
from celeriac_storage import claims, verdicts, workers
from celeriac_storage.claims import STRIKES_BEFORE_ATTENTION, Claim
from celeriac_storage.database import Database
from celeriac_storage.lifeline import Lifeline
from celeriac_storage.step_record import Next
from celeriac_storage.verdicts import Suspect, Verdict
from celeriac_storage.workers import WorkerInfo, application_name
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from tests.steps_by_hand import AGENT, Hand
from tests.waiting import eventually

LEASE_SECONDS = 600.0


class Witness(Hand):
    """A worker made by hand that holds a lifeline, until `die` closes its session."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        workers_row = WorkerInfo(new_worker_id(), "localhost", 4712, "solo", [AGENT], ["celeriac"])
        self.worker_id = workers_row.worker_id
        self.lifeline = Lifeline(database.url, lease_seconds=LEASE_SECONDS)
        assert self.lifeline.hold(self.worker_id)
        with database.begin() as connection:
            workers.register(
                connection, workers_row, lease_seconds=LEASE_SECONDS, has_lifeline=True
            )

    def die(self) -> None:
        """Close the lifeline, as the kernel does for a killed process."""
        self.lifeline.close()
        eventually(lambda: self.suspect().is_lifeline_missing, what="the lifeline's lock free")

    def suspect(self) -> Suspect:
        """What a scheduler sees of this worker."""
        return suspects(self.database).get(
            self.worker_id,
            Suspect(
                self.worker_id,
                is_lifeline_missing=False,
                has_server_run_on=False,
                is_lease_over=False,
            ),
        )


@pytest.fixture
def witness(database: Database) -> Iterator[Witness]:
    witness = Witness(database)
    yield witness
    witness.lifeline.close()


def suspects(database: Database, lease_seconds: float = LEASE_SECONDS) -> dict[WorkerId, Suspect]:
    with database.connect() as connection:
        return {s.worker_id: s for s in verdicts.suspects(connection, lease_seconds)}


def declare_dead(database: Database, worker_id: WorkerId, verdict: Verdict) -> bool:
    with database.begin() as connection:
        return verdicts.declare_dead(connection, worker_id, verdict) is not None


def renew(connection: Connection, witness: Witness) -> bool:
    return workers.renew(
        connection, witness.worker_id, lease_seconds=LEASE_SECONDS, has_lifeline=True
    )


def recover(database: Database) -> list[RunId]:
    with database.begin() as connection:
        return [due.run_id for due in verdicts.recover(connection)]


def execute(database: Database, sql: str, *parameters: object) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(sql, parameters)


# Who is suspected ---------------------------------------------------------------------------------


def test_a_worker_that_holds_its_lifeline_and_lease_is_not_suspected(witness: Witness) -> None:
    assert witness.worker_id not in suspects(witness.database)


def test_a_lifeline_that_is_gone_is_missed_at_once(witness: Witness) -> None:
    witness.lifeline.close()

    seen = eventually(witness.suspect, until=lambda s: s.is_lifeline_missing, deadline_seconds=2)

    assert not seen.is_lease_over


def test_a_lifeline_taken_again_is_not_missed(witness: Witness) -> None:
    witness.die()

    assert witness.lifeline.hold(witness.worker_id)

    assert witness.worker_id not in suspects(witness.database)


def test_a_missing_lifeline_proves_nothing_if_the_server_may_have_restarted(
    witness: Witness,
) -> None:
    """After a crash of the server no session is older than the workers' last renewals."""
    witness.die()
    assert witness.suspect().has_server_run_on

    execute(witness.database, "UPDATE celeriac.workers SET renewed_at = '2000-01-01'")

    seen = witness.suspect()
    assert seen.is_lifeline_missing
    assert not seen.has_server_run_on


def test_a_worker_without_a_lifeline_is_judged_by_its_lease_alone(database: Database) -> None:
    hand = Hand(database)
    assert hand.worker_id not in suspects(database)

    execute(database, "UPDATE celeriac.workers SET lease_until = now() - interval '1 s'")

    seen = eventually(lambda: suspects(database, lease_seconds=0.01), what="a suspect")
    assert seen[hand.worker_id].is_lease_over
    assert not seen[hand.worker_id].is_lifeline_missing


def test_a_lease_counts_anew_from_the_schedulers_own_session(database: Database) -> None:
    """A scheduler that comes up after an outage must give the workers a lease's time to renew."""
    hand = Hand(database)
    execute(database, "UPDATE celeriac.workers SET lease_until = now() - interval '1 hour'")

    assert hand.worker_id not in suspects(database, lease_seconds=60)


# The verdict --------------------------------------------------------------------------------------


def test_only_one_of_two_schedulers_gives_the_verdict(witness: Witness) -> None:
    witness.die()
    together = threading.Barrier(2)

    def judge() -> bool:
        with witness.database.begin() as connection:
            together.wait(5)
            moment = verdicts.declare_dead(connection, witness.worker_id, "lifeline")
            return moment is not None

    with ThreadPoolExecutor(2) as schedulers:
        outcomes = [future.result() for future in [schedulers.submit(judge) for _ in range(2)]]

    assert sorted(outcomes) == [False, True]


def test_a_scheduler_does_not_wait_for_a_frozen_one(witness: Witness, database_url: str) -> None:
    scheduler = Database(database_url, connections=1, lock_timeout_milliseconds=1000)
    with witness.database.begin() as frozen:
        assert verdicts.declare_dead(frozen, witness.worker_id, "lease")

        assert not declare_dead(scheduler, witness.worker_id, "lease")
    scheduler.close()


def test_a_verdict_is_final(witness: Witness) -> None:
    assert declare_dead(witness.database, witness.worker_id, "lifeline")

    assert not declare_dead(witness.database, witness.worker_id, "lease")
    with witness.database.connect() as connection:
        assert not renew(connection, witness)


def test_a_worker_that_said_goodbye_is_not_declared_dead(witness: Witness) -> None:
    with witness.database.connect() as connection:
        workers.stop(connection, witness.worker_id)

    assert not declare_dead(witness.database, witness.worker_id, "lease")


def test_a_verdict_ends_the_workers_sessions_and_their_locks(
    witness: Witness, database_url: str
) -> None:
    run_id = witness.start()
    change = "UPDATE celeriac.runs SET priority = priority + 1 WHERE run_id = %s"
    name = application_name(witness.worker_id)
    frozen = Database(database_url, application_name=lambda: name, connections=1)
    patient = Database(database_url, connections=1, lock_timeout_milliseconds=5000)

    def freeze_until_the_verdict(connection: Connection) -> None:
        connection.exec_driver_sql(change, (run_id,))
        assert declare_dead(witness.database, witness.worker_id, "lease")
        connection.exec_driver_sql(change, (run_id,))

    with pytest.raises(DatabaseUnavailable), frozen.begin() as connection:
        freeze_until_the_verdict(connection)
    execute(patient, change, run_id)

    assert witness.row(run_id).priority == 1
    frozen.close()
    patient.close()


def test_a_verdict_leaves_the_sessions_of_other_workers_alone(
    witness: Witness, database: Database
) -> None:
    other = Witness(database)

    declare_dead(database, witness.worker_id, "lifeline")

    assert not other.lifeline.is_broken
    assert other.worker_id not in suspects(database)
    other.lifeline.close()


# What it held -------------------------------------------------------------------------------------


def killed_in_step(witness: Witness, run_id: RunId, verdict: Verdict = "lifeline") -> Claim:
    """Claim the run's step with a new worker and let that die in it."""
    victim = Witness(witness.database)
    claim = victim.claim(run_id)
    victim.lifeline.close()
    assert declare_dead(witness.database, victim.worker_id, verdict)
    return claim


def test_the_step_of_a_dead_worker_is_queued_again(witness: Witness) -> None:
    run_id = witness.start()
    lost = killed_in_step(witness, run_id)

    assert recover(witness.database) == [run_id]

    row = witness.row(run_id)
    assert (row.status, row.phase, row.step) == ("queued", "waiting_model", lost.step)
    assert row.claim_token is None
    assert row.published_at is not None, "the caller publishes it, nobody else should"
    assert witness.events(run_id) == ["run.created", "run.recovered"]
    assert witness.event_data(run_id, "run.recovered") == {
        "step": 0,
        "epoch": 1,
        "worker_id": lost.worker_id,
        "reason": "lifeline",
    }


def test_recovery_names_the_checkpoint_that_it_goes_on_from(witness: Witness) -> None:
    # features: 002-23
    run_id = witness.start()
    witness.ask_for_calls(run_id)
    killed_in_step(witness, run_id)

    recover(witness.database)

    assert witness.event_data(run_id, "run.recovered")["from_checkpoint"] == 0
    assert witness.row(run_id).phase == Phase.WAITING_TOOL


def test_what_the_dead_worker_still_commits_is_refused(witness: Witness) -> None:
    # features: 003-23
    run_id = witness.start()
    lost = killed_in_step(witness, run_id)
    recover(witness.database)
    successor = witness.claim(run_id)

    with pytest.raises(Fenced, match="nothing of this attempt was written"):
        witness.finish(lost, Next.queued(Phase.WAITING_MODEL))

    assert successor.epoch == lost.epoch + 1
    assert witness.row(run_id).step == 0
    witness.finish(successor, Next.queued(Phase.WAITING_MODEL))
    assert witness.row(run_id).step == 1


def killed_without_lifeline(hand: Hand, run_id: RunId) -> None:
    """As behind a pooler: that the worker is gone, only its lease shows."""
    victim = Hand(hand.database)
    victim.claim(run_id)
    assert declare_dead(hand.database, victim.worker_id, "lease")


def test_a_death_that_the_lifeline_shows_is_a_strike(witness: Witness) -> None:
    run_id = witness.start()
    killed_in_step(witness, run_id, "lifeline")

    recover(witness.database)

    row = witness.row(run_id)
    assert (row.deaths, row.strikes) == (1, 1)


def test_of_the_deaths_that_only_the_lease_shows_every_third_is_a_strike(witness: Witness) -> None:
    """The network's fault as likely as the step's; but not for ever."""
    run_id = witness.start()
    seen = []

    while witness.row(run_id).status == "queued":
        killed_in_step(witness, run_id, "lease")
        recover(witness.database)
        seen.append(witness.row(run_id).strikes)

    assert seen == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert witness.row(run_id).status == "needs_attention"


def test_a_death_without_a_lifeline_is_a_strike(witness: Witness) -> None:
    """Or a step that kills its worker would do so for ever where no worker has a lifeline."""
    run_id = witness.start()

    for _ in range(STRIKES_BEFORE_ATTENTION):
        killed_without_lifeline(witness, run_id)
        recover(witness.database)

    row = witness.row(run_id)
    assert (row.status, row.deaths, row.error["kind"]) == ("needs_attention", 3, "poison")


def test_what_a_worker_left_behind_at_its_goodbye_is_no_strike(witness: Witness) -> None:
    run_id = witness.start()
    witness.claim(run_id)
    with witness.database.connect() as connection:
        workers.stop(connection, witness.worker_id)

    assert recover(witness.database) == [run_id]

    row = witness.row(run_id)
    assert (row.deaths, row.strikes) == (0, 0)
    assert witness.event_data(run_id, "run.recovered")["reason"] == "stopped"


def test_a_committed_step_forgives_the_strikes_and_remembers_the_deaths(witness: Witness) -> None:
    run_id = witness.start()
    killed_in_step(witness, run_id)
    recover(witness.database)

    witness.finish(witness.claim(run_id), Next.queued(Phase.WAITING_MODEL))

    row = witness.row(run_id)
    assert (row.deaths, row.strikes) == (1, 0)


def test_the_third_death_in_a_step_puts_the_run_before_a_person(witness: Witness) -> None:
    run_id = witness.start()
    for _ in range(STRIKES_BEFORE_ATTENTION - 1):
        killed_in_step(witness, run_id)
        assert recover(witness.database) == [run_id]
    last = killed_in_step(witness, run_id)

    assert recover(witness.database) == [], "nobody must publish it any more"

    row = witness.row(run_id)
    assert (row.status, row.deaths, row.strikes) == ("needs_attention", 3, 3)
    assert row.error["kind"] == "poison"
    assert last.worker_id in row.error["message"]
    assert "step 0 was taken from a worker 3 times" in row.error["message"]
    assert witness.event_data(run_id, "run.needs_attention")["error"] == row.error
    with witness.database.connect() as connection:
        assert (
            claims.claim(
                connection,
                run_id,
                0,
                worker_id=witness.worker_id,
                deadlines={AGENT: 60},
                is_alone=True,
            )
            is None
        )


def test_two_schedulers_recover_each_step_once(witness: Witness) -> None:
    runs = [witness.start() for _ in range(20)]
    for run_id in runs:
        witness.claim(run_id)
    declare_dead(witness.database, witness.worker_id, "lease")
    together = threading.Barrier(2)

    def take() -> list[RunId]:
        together.wait(5)
        return recover(witness.database)

    with ThreadPoolExecutor(2) as schedulers:
        taken = [future.result() for future in [schedulers.submit(take) for _ in range(2)]]

    assert sorted([*taken[0], *taken[1]]) == sorted(runs)
    assert [witness.row(run_id).deaths for run_id in runs] == [1] * len(runs)


def test_the_steps_of_a_live_worker_stay_its_own(witness: Witness) -> None:
    run_id = witness.start()
    witness.claim(run_id)

    assert recover(witness.database) == []

    assert witness.row(run_id).status == "running"


# Steps that hang ----------------------------------------------------------------------------------


def test_a_step_past_its_deadline_is_taken_from_a_live_worker(witness: Witness) -> None:
    hanging, working = witness.start(), witness.start()
    witness.claim(working)
    with witness.database.connect() as connection:
        assert claims.claim(
            connection,
            hanging,
            0,
            worker_id=witness.worker_id,
            deadlines={AGENT: 0},
            is_alone=False,
        )

    with witness.database.begin() as connection:
        due = verdicts.take_back_overdue(connection)

    assert [step.run_id for step in due] == [hanging]
    row = witness.row(hanging)
    assert (row.status, row.deaths, row.strikes) == ("queued", 0, 1)
    assert witness.event_data(hanging, "run.recovered")["reason"] == "deadline"
    assert witness.row(working).status == "running"


# Leadership ---------------------------------------------------------------------------------------


def test_one_leads_at_a_time_and_another_when_its_term_is_over(database: Database) -> None:
    with database.connect() as connection:
        assert verdicts.lead(connection, "scheduler", "first", seconds=60)
        assert not verdicts.lead(connection, "scheduler", "second", seconds=60)
        assert verdicts.lead(connection, "scheduler", "first", seconds=0), "a term is renewed"

        assert verdicts.lead(connection, "scheduler", "second", seconds=60)
        assert not verdicts.lead(connection, "scheduler", "first", seconds=60)


@pytest.mark.parametrize("ending", ["dead_at = now(), verdict = 'lease'", "stopped_at = now()"])
def test_agents_live_as_long_as_one_of_their_workers(database: Database, ending: str) -> None:
    hand = Hand(database, agents=("clerk", "cook"))
    Hand(database, agents=("cook",))
    with database.connect() as connection:
        assert set(verdicts.live_agents(connection)) == {"clerk", "cook"}

    execute(database, f"UPDATE celeriac.workers SET {ending} WHERE worker_id = %s", hand.worker_id)

    with database.connect() as connection:
        assert verdicts.live_agents(connection) == ["cook"]


# The scheduler's tick -----------------------------------------------------------------------------


@pytest.fixture
def settings(database_url: str, broker_url: str, queue: str) -> Settings:
    return Settings(
        database_url=SecretStr(database_url),
        broker_url=SecretStr(broker_url),
        queues=queue,
        lease_seconds=LEASE_SECONDS,
    )


def make_failover(witness: Witness, app: Celery, settings: Settings) -> Failover:
    outlet = Outlet(witness.database, Publisher(app), Broker(app))
    return Failover(witness.database, outlet, settings)


def test_two_ticks_without_a_lifeline_are_a_death(witness: Witness, settings: Settings) -> None:
    app = make_app(settings)
    failover = make_failover(witness, app, settings)
    run_id = witness.start()
    witness.claim(run_id)
    witness.die()

    for _ in range(TICKS_BEFORE_VERDICT - 1):
        failover.tick()
        assert witness.row(run_id).status == "running"
    failover.tick()

    assert witness.row(run_id).status == "queued"
    assert Broker(app).queue_length(settings.queue_names[0]) == 1
    app.close()


def test_a_lifeline_that_returns_between_ticks_starts_the_count_again(
    witness: Witness, settings: Settings
) -> None:
    app = make_app(settings)
    failover = make_failover(witness, app, settings)
    for _ in range(3):
        witness.die()
        for _ in range(TICKS_BEFORE_VERDICT - 1):
            failover.tick()
        assert witness.lifeline.hold(witness.worker_id)
        failover.tick()

    with witness.database.connect() as connection:
        assert renew(connection, witness), "it was declared dead"
    app.close()


def test_when_all_lifelines_vanish_at_once_nobody_is_declared_dead(
    witness: Witness, settings: Settings
) -> None:
    app = make_app(settings)
    failover = make_failover(witness, app, settings)
    witness.die()
    execute(witness.database, "UPDATE celeriac.workers SET renewed_at = '2000-01-01'")

    for _ in range(TICKS_BEFORE_VERDICT + 3):
        failover.tick()

    with witness.database.connect() as connection:
        assert renew(connection, witness), "it was declared dead"
    app.close()
