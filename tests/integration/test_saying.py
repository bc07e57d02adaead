"""What a user says to a run: told once, in order, and where the conversation can take it."""

# features: 003-08
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from celeriac import Agent
from celeriac.errors import Conflict, InvalidInput, RunExists, ThreadBusy, UnknownRun
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, say
from celeriac.states import Phase, RunStatus
from celeriac_storage import inbox
from celeriac_storage.admitting import word
from celeriac_storage.database import Database
from tests.steps_by_hand import ALICE
from tests.talk import Calls, Talk
from tests.waiting import eventually

TWO_NOTES: Calls = [("note", {"text": "a"}), ("note", {"text": "b"})]


@pytest.fixture
def talk(database: Database, broker_url: str) -> Iterator[Talk]:
    talk = Talk(database, broker_url, TWO_NOTES)
    yield talk
    talk.close()


def test_what_is_said_before_the_first_question_is_part_of_it(talk: Talk) -> None:
    run_id = talk.start()

    assert talk.client.say(run_id, "in blue", by="alice") is RunStatus.QUEUED

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "in blue"]
    assert talk.events[1:3] == ["run.said", "run.heard"]
    assert talk.roles == ["user", "user", "assistant", "results", "results", "assistant"]


def test_what_is_said_between_two_calls_follows_all_their_results(talk: Talk) -> None:
    run_id = talk.start()
    talk.during_call = [
        lambda: talk.client.say(run_id, "one"),
        lambda: talk.client.say(run_id, "two"),
    ]

    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.roles == ["user", "assistant", "results", "results", "user", "user", "assistant"]
    assert talk.shown[-1][-4:] == ["noted a", "noted b", "one", "two"]


def test_what_is_said_during_the_last_answer_is_answered_as_well(talk: Talk) -> None:
    run_id = talk.start()
    talk.step(3)
    talk.during_think = [lambda: talk.client.say(run_id, "and in red?")]

    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.shown[-1][-2:] == ["answer 2", "and in red?"]
    assert talk.worker.row(run_id).result == "answer 3"
    assert talk.roles[-3:] == ["assistant", "user", "assistant"]


def test_a_word_that_comes_in_while_a_claim_waits_for_the_row_is_not_lost(talk: Talk) -> None:
    # A claim that waits for the run's lock sees other tables as they were before it began to wait.
    run_id = talk.start()
    with talk.database.begin() as connection:
        inbox.say(connection, run_id, word("quick"), ALICE)
        claiming = threading.Thread(target=talk.worker.step, args=(run_id,))
        claiming.start()
        _wait_until_somebody_waits_for_a_lock(talk.database)
    claiming.join(10)

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "quick"]


def _wait_until_somebody_waits_for_a_lock(database: Database) -> None:
    def waiting() -> int:
        with database.connect() as connection:
            return int(
                connection.exec_driver_sql(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                ).scalar_one()
            )

    eventually(waiting, what="somebody waits for a lock")


def test_what_many_say_at_once_is_told_once_each_in_the_order_of_the_inbox(talk: Talk) -> None:
    run_id = talk.start()
    words = [f"word {number}" for number in range(12)]
    speakers = [threading.Thread(target=talk.client.say, args=(run_id, text)) for text in words]

    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join(10)
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.shown[0][0] == "hello"
    assert sorted(talk.shown[0][1:]) == sorted(words)
    with talk.database.connect() as connection:
        order = connection.exec_driver_sql(
            "SELECT body -> 'parts' -> 0 ->> 'content' FROM celeriac.inbox ORDER BY inbox_id"
        ).scalars()
        assert talk.shown[0][1:] == list(order)


def test_a_run_that_has_ended_refuses_and_keeps_nothing(talk: Talk) -> None:
    run_id = talk.start()
    talk.client.cancel(run_id)

    with pytest.raises(Conflict, match="is cancelled and hears nothing"):
        talk.client.say(run_id, "wait!")

    with talk.database.connect() as connection:
        assert connection.exec_driver_sql("SELECT FROM celeriac.inbox").fetchone() is None


def test_an_unknown_run_and_an_empty_word_are_refused(talk: Talk) -> None:
    with pytest.raises(UnknownRun):
        talk.client.say("nobody", "hello")
    with pytest.raises(InvalidInput, match="empty"):
        talk.client.say(talk.start(), "  ")


@pytest.mark.parametrize("ended", [False, True])
def test_the_same_word_under_its_key_is_told_once(talk: Talk, ended: bool) -> None:
    run_id = talk.start()
    talk.client.say(run_id, "in blue", key="k1")
    if ended:
        assert talk.go_on() is RunStatus.COMPLETED
    before = talk.worker.row(run_id)

    assert talk.client.say(run_id, "in blue", key="k1") == before.status

    assert talk.worker.row(run_id) == before
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "in blue"]


def test_another_word_under_the_same_key_is_refused(talk: Talk) -> None:
    run_id = talk.start()
    talk.client.say(run_id, "in blue", key="k1")

    with pytest.raises(Conflict, match="something else under the key k1"):
        talk.client.say(run_id, "in red", key="k1")
    talk.client.say(run_id, "in blue", key="k2")

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "in blue", "in blue"]


def test_a_key_belongs_to_one_run(talk: Talk) -> None:
    first, second = talk.start(), talk.start()

    talk.client.say(first, "in blue", key="k1")
    talk.client.say(second, "in red", key="k1")

    assert [talk.worker.row(run).words_waiting for run in (first, second)] == [1, 1]


def test_a_word_that_is_said_twenty_times_at_once_is_told_once(talk: Talk) -> None:
    run_id = talk.start()

    with ThreadPoolExecutor(20) as speakers:
        said = [speakers.submit(talk.client.say, run_id, "in blue", key="k1") for _ in range(20)]
    assert {each.result() for each in said} == {RunStatus.QUEUED}

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "in blue"]


# `on_busy="say"` ----------------------------------------------------------------------------------


def start_in_thread(talk: Talk, text: str, **more: Any) -> RunId:
    return talk.client.start("talker", text, thread_id="t1", on_busy="say", **more).run_id


def test_the_input_goes_to_the_threads_active_run_instead_of_a_new_one(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello")

    assert start_in_thread(talk, "and a cup") == talk.run_id

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "and a cup"]
    assert len(talk.client.runs()) == 1


def test_an_idle_thread_starts_a_new_run(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello")
    assert talk.go_on() is RunStatus.COMPLETED

    second = start_in_thread(talk, "again")

    assert second != talk.run_id
    assert talk.worker.row(second).status == RunStatus.QUEUED


def test_the_input_wakes_the_threads_run_that_waits_for_its_user(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello")
    talk.client.interrupt(talk.run_id)

    told = talk.client.start("talker", "go on", thread_id="t1", on_busy="say")

    assert (told.run_id, told.status, told.phase) == (
        talk.run_id,
        RunStatus.QUEUED,
        Phase.WAITING_MODEL,
    )
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "go on"]


def test_a_start_that_is_repeated_under_its_id_does_not_speak_to_its_own_run(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello", run_id="mine")

    with pytest.raises(RunExists):
        start_in_thread(talk, "hello", run_id="mine")

    assert talk.worker.row(talk.run_id).words_waiting == 0


@pytest.mark.parametrize("ended", [False, True])
def test_a_start_that_was_said_instead_is_not_said_again_under_its_id(
    talk: Talk, ended: bool
) -> None:
    talk.run_id = start_in_thread(talk, "hello")
    start_in_thread(talk, "and a cup", run_id="mine")
    if ended:  # the thread is idle now, and would take a new run
        assert talk.go_on() is RunStatus.COMPLETED
    before = talk.row

    again = talk.client.start("talker", "and a cup", thread_id="t1", on_busy="say", run_id="mine")

    assert (again.run_id, again.status, again.phase) == (talk.run_id, before.status, before.phase)
    assert talk.row == before
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[0] == ["hello", "and a cup"]
    assert [run.run_id for run in talk.client.runs()] == [talk.run_id]


def test_the_id_of_a_start_that_was_said_stands_for_that_input_and_thread(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello")
    start_in_thread(talk, "and a cup", run_id="mine")

    with pytest.raises(Conflict, match="something else under the key mine"):
        start_in_thread(talk, "and a pot", run_id="mine")
    with pytest.raises(Conflict, match="and not to thread t2"):
        talk.client.start("talker", "and a cup", thread_id="t2", on_busy="say", run_id="mine")

    assert talk.row.words_waiting == 1
    assert len(talk.client.runs()) == 1


def test_twenty_starts_under_one_id_at_once_are_said_once(talk: Talk) -> None:
    talk.run_id = start_in_thread(talk, "hello")

    with ThreadPoolExecutor(20) as callers:
        started = [
            callers.submit(start_in_thread, talk, "and a cup", run_id="mine") for _ in range(20)
        ]
    assert {each.result() for each in started} == {talk.run_id}

    assert talk.row.words_waiting == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_start_that_is_retried_while_the_run_it_was_said_to_ends_takes_effect_once(
    talk: Talk, is_kept: bool
) -> None:
    """Whether the first commits or not, the retry finds the thread free when its turn comes."""
    talk.run_id = start_in_thread(talk, "hello")
    talk.worker.step(talk.run_id)
    again = partial(start_in_thread, talk, "and a cup", run_id="mine")

    with ThreadPoolExecutor(2) as callers, ExitStack() as stack:
        connection = stack.enter_context(talk.database.begin())
        told = talk.client.start(
            "talker",
            "and a cup",
            thread_id="t1",
            on_busy="say",
            run_id="mine",
            connection=connection,
        )
        assert told.run_id == talk.run_id
        retried = callers.submit(again)
        eventually(lambda: _waits_for_a_lock(talk), what="the retry to wait for the first")
        if not is_kept:
            connection.exec_driver_sql("ROLLBACK")
        stack.close()
        heard_by = retried.result(60)

    assert heard_by == talk.run_id
    assert again() == talk.run_id
    assert talk.go_on() is RunStatus.COMPLETED
    assert again() == talk.run_id  # the thread is free
    assert [text for shown in talk.shown[-1:] for text in shown].count("and a cup") == 1
    assert [run.run_id for run in talk.client.runs()] == [talk.run_id]


def test_a_start_that_was_said_starts_no_run_under_its_id_however_it_is_repeated(
    talk: Talk,
) -> None:
    talk.run_id = start_in_thread(talk, "hello")
    start_in_thread(talk, "and a cup", run_id="mine")

    for thread in ("t1", "t2"):
        with pytest.raises(RunExists, match=f"was told to run {talk.run_id}"):
            talk.client.start("talker", "and a cup", thread_id=thread, run_id="mine")

    assert [run.run_id for run in talk.client.runs()] == [talk.run_id]


def test_a_start_whose_listener_ends_in_that_moment_starts_one_run_however_often_it_is_repeated(
    talk: Talk,
) -> None:
    """It has the thread and waits for the run; the run's last commit comes first."""
    talk.run_id = start_in_thread(talk, "hello")
    for _ in range(3):  # the first turn and its two calls; the last answer is next
        talk.worker.step(talk.run_id)
    started: list[Future[Any]] = []

    def start_twice() -> None:
        eventually(lambda: _lock_waits(talk) == 1, what="the last commit to wait")
        for _ in range(2):
            waits = _lock_waits(talk) + 1
            started.append(callers.submit(start_in_thread, talk, "and a cup", run_id="mine"))
            eventually(partial(_has_lock_waits, talk, waits), what="the start to wait")
        holder.close()

    def hold_the_run() -> None:
        connection = holder.enter_context(talk.database.begin())
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (talk.run_id,)
        )
        started.append(callers.submit(start_twice))

    with ThreadPoolExecutor(3) as callers, ExitStack() as holder:
        talk.during_think.append(hold_the_run)
        talk.worker.step(talk.run_id)
        started[0].result(60)
        first, second = started[1:]
        assert first.result(60) == "mine"
        with pytest.raises(RunExists):
            second.result(60)

    assert talk.row.status == RunStatus.COMPLETED
    assert talk.row.words_waiting == 0
    assert {run.run_id for run in talk.client.runs()} == {talk.run_id, "mine"}


def _waits_for_a_lock(talk: Talk) -> bool:
    return _lock_waits(talk) > 0


def _has_lock_waits(talk: Talk, count: int) -> bool:
    return _lock_waits(talk) == count


def _lock_waits(talk: Talk) -> int:
    with talk.database.connect() as connection:
        return int(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).scalar_one()
        )


def test_another_agents_run_is_not_told(talk: Talk) -> None:
    start_in_thread(talk, "hello")
    other = Agent("other", ScriptedModel([say("done")]))

    with pytest.raises(ThreadBusy, match="of agent talker"):
        talk.client.start(other, "hello", thread_id="t1", on_busy="say")
