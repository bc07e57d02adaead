"""Creating runs: whose thread it is, whose turn it is, and whether anybody could work on it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict, RunExists, ThreadBusy, WrongOwner
from celeriac.ids import RunId, TenantId, ThreadId, UserId, new_run_id, new_thread_id
from celeriac.settings import load_settings
from celeriac.states import Phase, RunStatus, StepKind
from celeriac_scheduler.outlet import Outlet
from celeriac_scheduler.redispatch import Redispatch
from celeriac_storage import agents, starting, steps, threads, waking, workers
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database, libpq_url, sqlstate
from celeriac_storage.new_run import NewRun, Started
from celeriac_storage.step_record import Next, StepRecord
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from tests.steps_by_hand import AGENT, ALICE, Hand
from tests.waiting import eventually

BOB = UserId("bob")
QUEUED = Started(RunStatus.QUEUED, Phase.WAITING_MODEL)
WAITS_FOR_THREAD = Started(RunStatus.PAUSED, Phase.WAITING_THREAD)
WAITS_FOR_WORKER = Started(RunStatus.PAUSED, Phase.WAITING_WORKER)


@pytest.fixture
def hand(database: Database) -> Hand:
    """A worker that has the agent, so that runs are queued."""
    return Hand(database)


def new_run(thread_id: ThreadId | None = None) -> NewRun:
    return NewRun(
        run_id=new_run_id(),
        agent=AGENT,
        input={"order": "A-7", "amount": "12.50"},
        user_message={"kind": "request", "parts": [{"content": "hello"}]},
        limits={"steps": 20},
        thread_id=thread_id or new_thread_id(),
        user_id=ALICE,
    )


def start(database: Database, new: NewRun) -> Started:
    with database.begin() as connection:
        return starting.start(connection, new)


def everything(database: Database) -> dict[str, list[str]]:
    """All rows of all tables, as text with the id of the transaction that wrote each."""
    with database.connect() as connection:
        tables = connection.exec_driver_sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'celeriac'"
        ).scalars()
        return {
            table: sorted(
                connection.exec_driver_sql(
                    f'SELECT one.xmin::text || one::text FROM celeriac."{table}" AS one'
                ).scalars()
            )
            for table in tables
        }


# One run ------------------------------------------------------------------------------------------


def test_a_run_and_its_first_message_and_event_begin_together(hand: Hand) -> None:
    # features: 000-01, 000-08, 003-04, 003-16
    new = new_run()

    assert start(hand.database, new) == QUEUED

    row = hand.row(new.run_id)
    assert (row.status, row.phase, row.step, row.epoch) == ("queued", "waiting_model", 0, 0)
    assert row.input == {"order": "A-7", "amount": "12.50"}
    assert (row.result, row.error, row.claim_token) == (None, None, None)
    assert hand.events(new.run_id) == ["run.created"]
    with hand.database.connect() as connection:
        writers = connection.exec_driver_sql(
            "SELECT xmin::text FROM celeriac.runs UNION SELECT xmin::text FROM celeriac.messages"
            " UNION SELECT xmin::text FROM celeriac.events"
        ).all()
        message = connection.exec_driver_sql(
            "SELECT position, role, body, hash = sha256(convert_to(body::text, 'UTF8'))"
            " FROM celeriac.messages"
        ).one()
    assert len(writers) == 1
    assert tuple(message) == (0, "user", new.user_message, True)


def test_a_second_run_of_the_same_id_leaves_the_first_untouched(hand: Hand) -> None:
    # features: 000-10, 003-16
    first = new_run()
    start(hand.database, first)
    hand.complete(first.run_id)
    before = everything(hand.database)

    with pytest.raises(RunExists, match=first.run_id):
        start(hand.database, replace(new_run(), run_id=first.run_id, input={"order": "other"}))

    assert everything(hand.database) == before


def test_of_many_starts_with_one_id_exactly_one_creates_it(hand: Hand) -> None:
    run_id = new_run_id()
    together = threading.Barrier(8)

    def race(_: int) -> bool:
        new = replace(new_run(), run_id=run_id)
        together.wait(5)
        try:
            start(hand.database, new)
        except RunExists:
            return False
        return True

    with ThreadPoolExecutor(8) as clients:
        assert sorted(clients.map(race, range(8))) == [False] * 7 + [True]
    assert hand.events(run_id) == ["run.created"]


def test_a_run_in_anothers_thread_is_refused_without_a_trace(hand: Hand) -> None:
    # features: 000-06, 000-07
    thread = ThreadId("of-alice")
    start(hand.database, new_run(thread))
    before = everything(hand.database)

    with pytest.raises(WrongOwner, match="belongs to another user than bob"):
        start(hand.database, replace(new_run(thread), user_id=BOB))

    assert everything(hand.database) == before


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"thread_id": None}, "23502"),
        ({"user_id": None}, "23502"),
        ({"tenant_id": None}, "23502"),
        ({"thread_id": "nowhere"}, "23503"),
        ({"user_id": "bob"}, "23503"),  # who is a user, but not of this thread
        ({"tenant_id": "other"}, "23503"),
    ],
    ids=str,
)
def test_the_database_takes_no_run_without_a_thread_of_its_user_and_tenant(
    hand: Hand, changed: dict[str, str | None], code: str
) -> None:
    # features: 000-06
    start(hand.database, new_run(ThreadId("of-alice")))
    start(hand.database, replace(new_run(ThreadId("of-bob")), user_id=BOB))
    start(hand.database, replace(new_run(), tenant_id=TenantId("other")))
    copied = {"run_id": "copied", "thread_position": None, **changed}

    with pytest.raises(DBAPIError) as refused, hand.database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.runs SELECT (jsonb_populate_record(run, %s)).*"
            " FROM celeriac.runs AS run WHERE thread_id = 'of-alice'",
            (dumps(copied),),
        )

    assert sqlstate(refused.value) == code


@pytest.mark.parametrize("user_id", [None, "nobody"])
def test_the_database_takes_no_thread_without_its_user(hand: Hand, user_id: str | None) -> None:
    # features: 000-06
    start(hand.database, new_run())

    with pytest.raises(DBAPIError) as refused, hand.database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.threads (tenant_id, thread_id, user_id)"
            " VALUES ('default', 't', %s)",
            (user_id,),
        )

    assert sqlstate(refused.value) in ("23502", "23503")


@pytest.mark.parametrize("name", ["alice", "bob", "first"])
def test_an_id_of_a_user_or_a_run_opens_no_thread(hand: Hand, name: str) -> None:
    # features: 000-07
    start(hand.database, replace(new_run(ThreadId("letters")), run_id=RunId("first")))
    before = everything(hand.database)

    with pytest.raises(WrongOwner, match="not of a thread"):
        start(hand.database, replace(new_run(ThreadId(name)), user_id=BOB))

    assert everything(hand.database) == before


def test_two_tenants_may_name_a_thread_alike(hand: Hand) -> None:
    thread = ThreadId("support")
    start(hand.database, new_run(thread))

    other = replace(new_run(thread), tenant_id=TenantId("other"), user_id=BOB)

    assert start(hand.database, other) == QUEUED, "the other tenant's thread is not busy"


def test_a_run_that_its_caller_rolls_back_was_never_there(hand: Hand) -> None:
    new = new_run()
    before = everything(hand.database)

    with hand.database.begin() as connection:
        starting.start(connection, new)
        connection.rollback()

    assert everything(hand.database) == before


def test_a_scheduler_hears_of_a_run_when_it_is_committed(hand: Hand, database_url: str) -> None:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as ears:
        ears.execute("LISTEN celeriac_started")
        with hand.database.begin() as connection:
            starting.start(connection, new_run())
            assert list(ears.notifies(timeout=0.2)) == [], "not before the commit"

        assert len(list(ears.notifies(timeout=5, stop_after=1))) == 1
        assert start(hand.database, replace(new_run(), is_published=True)) == QUEUED
        assert list(ears.notifies(timeout=0.2)) == [], "its caller publishes it"


# Its thread ---------------------------------------------------------------------------------------


def test_a_run_waits_for_its_turn_in_the_thread(hand: Hand) -> None:
    thread = ThreadId("t1")
    first, second = new_run(thread), new_run(thread)
    assert start(hand.database, first) == QUEUED

    assert start(hand.database, second) == WAITS_FOR_THREAD

    row = hand.row(second.run_id)
    assert (row.thread_position, row.resume_phase) == (1, "waiting_model")
    assert hand.events(second.run_id) == ["run.created", "run.paused"]
    assert hand.event_data(second.run_id, "run.paused") == {"phase": "waiting_thread"}


def test_other_threads_of_the_same_user_are_not_kept_waiting(hand: Hand) -> None:
    start(hand.database, new_run(ThreadId("t1")))

    assert start(hand.database, new_run(ThreadId("t2"))) == QUEUED


def test_a_busy_thread_can_be_refused_instead(hand: Hand) -> None:
    thread = ThreadId("t1")
    first = new_run(thread)
    start(hand.database, first)
    before = everything(hand.database)

    with pytest.raises(ThreadBusy, match=first.run_id):
        start(hand.database, replace(new_run(thread), on_busy="reject"))

    assert everything(hand.database) == before


def test_an_idle_thread_refuses_nobody(hand: Hand) -> None:
    thread = ThreadId("t1")
    first = new_run(thread)
    start(hand.database, first)
    hand.complete(first.run_id)

    assert start(hand.database, replace(new_run(thread), on_busy="reject")) == QUEUED


ENDINGS = [
    Next(RunStatus.COMPLETED, outcome="completed", result="done"),
    Next.failed("model_failed", {"kind": "timeout", "message": "no answer"}),
    Next.cancelled(),
    Next.needs_attention(Phase.WAITING_MODEL, {"kind": "poison", "message": "look at it"}),
    Next(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=Phase.WAITING_MODEL),
    Next(RunStatus.PAUSED, Phase.WAITING_APPROVAL, resume_phase=Phase.WAITING_TOOL),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda n: str(n.phase or n.status))
def test_whoever_ends_or_waits_for_a_person_wakes_the_next_in_line(
    hand: Hand, ending: Next
) -> None:
    thread = ThreadId("t1")
    first, second, third = (new_run(thread) for _ in range(3))
    for new in (first, second, third):
        start(hand.database, new)

    hand.finish(hand.claim(first.run_id), ending)

    row = hand.row(second.run_id)
    assert (row.status, row.phase, row.resume_phase) == ("queued", "waiting_model", None)
    assert row.published_at is None, "the scheduler publishes it"
    assert hand.event_data(second.run_id, "run.woken") == {"waited_for": "thread"}
    assert hand.row(third.run_id).phase == "waiting_thread"
    with hand.database.connect() as connection:
        writers = connection.exec_driver_sql(
            "SELECT DISTINCT xmin::text FROM celeriac.runs WHERE run_id IN (%s, %s)",
            (first.run_id, second.run_id),
        ).all()
    assert len(writers) == 1, "woken by the very transaction that ended the first"


@pytest.mark.parametrize(
    "going_on",
    [
        Next.queued(Phase.WAITING_MODEL),
        Next(RunStatus.PAUSED, Phase.WAITING_TIMER, resume_phase=Phase.WAITING_MODEL),
        Next(RunStatus.PAUSED, Phase.WAITING_CHILD, resume_phase=Phase.WAITING_MODEL),
        Next(RunStatus.PAUSED, Phase.WAITING_EXTERNAL, resume_phase=Phase.WAITING_TOOL),
    ],
    ids=lambda n: str(n.phase),
)
def test_a_run_that_goes_on_by_itself_keeps_the_thread(hand: Hand, going_on: Next) -> None:
    thread = ThreadId("t1")
    first, second = new_run(thread), new_run(thread)
    start(hand.database, first)
    start(hand.database, second)

    hand.finish(hand.claim(first.run_id), going_on)

    assert hand.row(second.run_id).phase == "waiting_thread"
    assert start(hand.database, new_run(thread)) == WAITS_FOR_THREAD


def test_an_end_does_not_wait_for_a_client_that_holds_the_thread(
    hand: Hand, database_url: str
) -> None:
    """A client may keep its transaction open for as long as it likes; the scheduler wakes later."""
    thread = ThreadId("t1")
    first, second = new_run(thread), new_run(thread)
    start(hand.database, first)
    claim = hand.claim(first.run_id)
    ending = Database(database_url, connections=1)
    with hand.database.begin() as connection:
        assert starting.start(connection, second) == WAITS_FOR_THREAD
        finish(ending, claim)
        assert hand.row(first.run_id).status == "completed"
    ending.close()
    assert hand.row(second.run_id).phase == "waiting_thread"

    with hand.database.connect() as connection:
        ((tenant_id, thread_id),) = threads.idle_threads(connection)
    with hand.database.begin() as connection:
        threads.wake_next_of_thread(connection, tenant_id, thread_id)

    assert hand.row(second.run_id).status == "queued"


def test_a_start_during_the_end_of_the_run_before_it_waits_and_then_goes_at_once(
    hand: Hand, database_url: str
) -> None:
    thread = ThreadId("t1")
    first, second, third = (new_run(thread) for _ in range(3))
    start(hand.database, first)
    claim = hand.claim(first.run_id)
    coming = Database(database_url, application_name=lambda: "coming", connections=1)
    with ThreadPoolExecutor(1) as client:
        with hand.database.begin() as connection:
            steps.commit(connection, claim, ENDING)
            started = client.submit(start, coming, second)
            eventually(lambda: waits_for_a_lock(hand.database, "coming"), what="a waiting start")
        assert started.result(10) == QUEUED
    assert start(hand.database, third) == WAITS_FOR_THREAD
    coming.close()


ENDING = StepRecord(ENDINGS[0], StepKind.THINK, "terminal")


def finish(database: Database, claim: Claim) -> None:
    with database.begin() as connection:
        steps.commit(connection, claim, ENDING)


def waits_for_a_lock(database: Database, application_name: str) -> bool:
    with database.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
            " AND datname = current_database()",
            (application_name,),
        ).fetchone()
        return found is not None


def test_many_runs_of_a_thread_go_one_at_a_time_in_order(hand: Hand) -> None:
    thread = ThreadId("t1")
    runs = [new_run(thread) for _ in range(5)]
    for new in runs:
        start(hand.database, new)

    order: list[RunId] = []
    while len(order) < len(runs):
        (active,) = [new.run_id for new in runs if hand.row(new.run_id).status == "queued"]
        hand.complete(active)
        order.append(active)

    assert order == [new.run_id for new in runs]


def test_a_thread_in_which_a_run_waits_for_nobody_is_woken_by_the_scheduler(hand: Hand) -> None:
    thread = ThreadId("t1")
    first, second = new_run(thread), new_run(thread)
    start(hand.database, first)
    start(hand.database, second)
    hand.poisoned(first.run_id)  # put before a person by strikes, which wake nobody
    assert hand.row(second.run_id).phase == "waiting_thread"

    with hand.database.begin() as connection:
        ((tenant_id, thread_id),) = threads.idle_threads(connection)
        threads.wake_next_of_thread(connection, tenant_id, thread_id)
        assert threads.idle_threads(connection) == []

    assert hand.row(second.run_id).status == "queued"


def test_a_thread_that_somebody_holds_does_not_keep_others_from_being_woken(
    hand: Hand, database_url: str
) -> None:
    held: list[RunId] = []
    free: list[RunId] = []
    for number in range(5):
        thread = ThreadId(f"t{number}")
        first, second = new_run(thread), new_run(thread)
        start(hand.database, first)
        start(hand.database, second)
        hand.poisoned(first.run_id)
        (held if number else free).append(second.run_id)
    scheduler = Database(database_url, connections=1, lock_timeout_milliseconds=100)
    settings = load_settings(database_url=database_url, broker_url="redis://127.0.0.1:1/0")
    app = make_app(settings)
    broker = Broker(app)
    redispatch = Redispatch(scheduler, Outlet(scheduler, Publisher(app), broker), broker, settings)

    with hand.database.begin() as somebody:
        somebody.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = ANY (%s) FOR UPDATE", (held,)
        )
        redispatch.mind_threads()

        assert [hand.row(run_id).status for run_id in free] == ["queued"]
    redispatch.mind_threads()
    assert {hand.row(run_id).status for run_id in held} == {"queued"}
    scheduler.close()


# Its worker ---------------------------------------------------------------------------------------


def test_a_run_without_a_worker_for_its_agent_says_so(database: Database) -> None:
    new = new_run()

    assert start(database, new) == WAITS_FOR_WORKER

    with database.connect() as connection:
        assert not workers.has_live_worker(connection, AGENT, "celeriac")


@pytest.mark.parametrize(
    "gone",
    ["dead_at = now(), verdict = 'lease'", "stopped_at = now()", "lease_until = now()"],
)
def test_a_worker_that_is_gone_does_not_count(hand: Hand, gone: str) -> None:
    with hand.database.connect() as connection:
        connection.exec_driver_sql(f"UPDATE celeriac.workers SET {gone}")

    assert start(hand.database, new_run()) == WAITS_FOR_WORKER


def test_the_first_worker_with_the_agent_wakes_the_runs_that_wait_for_it(
    database: Database,
) -> None:
    mine, others = new_run(), replace(new_run(), agent="cook")
    start(database, mine)
    start(database, others)

    hand = Hand(database)

    assert hand.row(mine.run_id).status == "queued"
    assert hand.events(mine.run_id) == ["run.created", "run.paused", "run.woken"]
    assert hand.event_data(mine.run_id, "run.woken") == {"waited_for": "worker"}
    assert hand.row(others.run_id).phase == "waiting_worker"


def test_a_run_that_waits_for_a_worker_keeps_its_thread(database: Database) -> None:
    thread = ThreadId("t1")
    start(database, new_run(thread))

    assert start(database, new_run(thread)) == WAITS_FOR_THREAD


def test_a_queued_run_whose_last_worker_left_is_parked_after_a_moment(hand: Hand) -> None:
    fresh, old = new_run(), new_run()
    start(hand.database, fresh)
    start(hand.database, old)
    with hand.database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET published_at = now() - interval '3 s' WHERE run_id = %s",
            (old.run_id,),
        )
        workers.stop(connection, hand.worker_id)

        assert waking.park_without_worker(connection) == 1

    row = hand.row(old.run_id)
    assert (row.status, row.phase, row.resume_phase) == (
        "paused",
        "waiting_worker",
        "waiting_model",
    )
    assert hand.events(old.run_id) == ["run.created", "run.paused"]
    assert hand.row(fresh.run_id).status == "queued", "a deploy replaces workers one by one"


def test_a_definition_that_is_registered_again_is_the_latest(hand: Hand) -> None:
    """As when a deploy is rolled back: what is started then is judged by what the workers have."""
    for agent_hash, queue in [("v1", "old"), ("v2", "new"), ("v1", "old")]:
        with hand.database.connect() as connection:
            agents.register_agent(connection, AGENT, agent_hash, {"queue": queue})

        with hand.database.connect() as connection:
            assert agents.latest_definition(connection, AGENT) == {"queue": queue}


def test_a_start_that_is_told_to_a_run_of_one_thread_starts_none_in_another_at_once(
    hand: Hand,
) -> None:
    threads = [new_thread_id(), new_thread_id()]
    listeners = [hand.start(thread_id=thread) for thread in threads]
    body: dict[str, JsonValue] = {"kind": "request", "parts": [{"content": "hello"}]}
    first, second = (
        replace(new_run(t), run_id=RunId("mine"), on_busy="say", word=body) for t in threads
    )

    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        connection = stack.enter_context(hand.database.begin())
        assert starting.start(connection, first).said_to == listeners[0]
        starts = pool.submit(start, hand.database, second)
        eventually(lambda: _waits_for_a_lock(hand), what="the second start to wait for the first")
        stack.close()
        with pytest.raises(Conflict, match=f"told to run {listeners[0]} of thread {threads[0]}"):
            starts.result()

    with hand.database.connect() as connection:
        runs = connection.exec_driver_sql("SELECT run_id FROM celeriac.runs ORDER BY run_id")
        assert {row[0] for row in runs} == set(listeners)


def _waits_for_a_lock(hand: Hand) -> bool:
    with hand.database.connect() as connection:
        row = connection.exec_driver_sql(
            "SELECT FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
    return row is not None
