"""What a model is shown of a long conversation, what is recorded of it, and that all is kept."""

# features: 000-30, 002-04
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart

from celeriac import Agent, Client, ContextPolicy, tool
from celeriac.codec import dumps
from celeriac.errors import InvalidAgent
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import RunStatus
from celeriac.token_count import message_tokens
from celeriac_storage.database import Database
from celeriac_tasks.loaded_agent import load_agent
from tests.worker_in_process import Worker

ROOM = 10_000
RUNS, PROMPT_BYTES = 60, 90_000

Asked = list[list[ModelMessage]]


@tool(effect="none")
def read_book() -> str:
    """Read a book."""
    return "once upon a time " * 60_000


@pytest.fixture
def workers(database_url: str, broker_url: str) -> Iterator[Callable[..., Worker]]:
    with ExitStack() as stack:

        def make(*agents: Agent) -> Worker:
            worker = Worker(database_url, broker_url, agents)
            worker.process.start()
            stack.callback(worker.process.stop)
            return worker

        yield make


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


def listening(
    asked: Asked, answer: Callable[[Sequence[ModelMessage]], Turn], room: int = ROOM
) -> Agent:
    """An agent that keeps what its model is shown."""

    def script(messages: Sequence[ModelMessage]) -> Turn:
        if not asked or asked[-1] != list(messages):  # a script is looked at twice for one question
            asked.append(list(messages))
        return answer(messages)

    return Agent("listener", ScriptedModel(script), tools=[read_book], context=ContextPolicy(room))


def take(worker: Worker, run_id: RunId) -> None:
    while worker.row(run_id).status == RunStatus.QUEUED:
        worker.step(run_id)


def prompts(messages: Sequence[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


def one(database: Database, query: str, *values: object) -> Any:
    with database.connect() as connection:
        return connection.exec_driver_sql(query, values).scalar_one()


def test_of_five_megabytes_a_model_is_shown_what_fits_and_all_is_kept(
    database: Database, workers: Callable[..., Worker], client: Client
) -> None:
    asked: Asked = []
    worker = workers(listening(asked, lambda _: say("noted"), room=100_000))

    for number in range(RUNS):
        prompt = f"{number} " + "x" * PROMPT_BYTES
        take(worker, client.start("listener", prompt, thread_id="long").run_id)

    assert len(asked) == RUNS
    assert all(sum(map(message_tokens, messages)) <= 100_000 for messages in asked)
    assert [int(text.split()[0]) for text in prompts(asked[-1])] == [57, 58, 59]
    stored = "SELECT sum(octet_length(body::text)), count(*) FROM celeriac.messages"
    with database.connect() as connection:
        size, count = connection.exec_driver_sql(stored).one()
    assert (size > 5_000_000, count) == (True, 2 * RUNS)
    selection = one(
        database,
        "SELECT selection FROM celeriac.model_calls JOIN celeriac.runs USING (run_id)"
        " WHERE thread_position = %s",
        RUNS - 1,
    )
    assert selection["tokens"] <= selection["room"] < 100_000
    assert len(selection["included"]) == 3
    assert one(database, "SELECT count(*) FROM celeriac.selections WHERE selection = %s::jsonb",
               dumps(selection)) == 1  # fmt: skip


def test_nothing_is_recorded_where_everything_fits(
    database: Database, workers: Callable[..., Worker], client: Client
) -> None:
    worker = workers(listening([], lambda _: say("noted")))

    take(worker, client.start("listener", "hello").run_id)

    assert one(database, "SELECT selection FROM celeriac.model_calls") is None
    assert one(database, "SELECT count(*) FROM celeriac.selections") == 0


def test_who_asks_again_sends_the_same_even_if_it_would_select_otherwise(
    database: Database, workers: Callable[..., Worker], client: Client
) -> None:
    asked: Asked = []

    def fail_at_last(messages: Sequence[ModelMessage]) -> Turn:
        is_last = prompts(messages)[-1].startswith("2 ")
        return Turn(error=TimeoutError()) if is_last else say("noted")

    first = workers(listening(asked, fail_at_last))
    for number in range(3):
        earlier = client.start("listener", f"{number} " + "x" * 12_000, thread_id="t").run_id
        take(first, earlier)
    assert first.row(earlier).phase == "waiting_timer"
    with database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET status = 'queued', phase = resume_phase,"
            " resume_phase = NULL, wake_at = NULL WHERE run_id = %s",
            (earlier,),
        )
    again: Asked = []
    second = workers(listening(again, lambda _: say("noted"), room=100_000))

    take(second, earlier)

    assert second.row(earlier).status == "completed"
    assert prompts(again[-1]) == prompts(asked[-1])
    assert len(prompts(asked[-1])) == 2
    attempts = "SELECT count(DISTINCT selection::text) FROM celeriac.model_calls WHERE run_id = %s"
    assert one(database, attempts, earlier) == 1


def test_a_run_is_not_told_of_an_earlier_one_that_has_ended_since_it_began(
    workers: Callable[..., Worker], client: Client
) -> None:
    asked: Asked = []

    def read_at_first(messages: Sequence[ModelMessage]) -> Turn:
        return call("read_book") if prompts(messages)[-1] == "second" else say("noted")

    agent = listening(asked, read_at_first)
    first = workers(agent)
    earlier = client.start("listener", "first", thread_id="t").run_id
    client.interrupt(earlier)
    later = client.start("listener", "second", thread_id="t").run_id
    first.step(later)
    client.interrupt(later)
    client.say(earlier, "go on")
    take(first, earlier)
    assert first.row(earlier).status == "completed"
    client.say(later, "leave it")

    take(workers(agent), later)  # which reads the conversation anew

    assert prompts(asked[-1]) == ["second", "leave it"]
    take(first, client.start("listener", "third", thread_id="t").run_id)
    assert prompts(asked[-1]) == ["first", "go on", "second", "leave it", "third"]


def test_a_result_that_is_longer_than_the_context_is_cut_for_the_model_alone(
    database: Database, workers: Callable[..., Worker], client: Client
) -> None:
    asked: Asked = []
    worker = workers(
        listening(asked, lambda m: call("read_book") if len(m) == 1 else say("a long book"))
    )

    run_id = client.start("listener", "read").run_id
    take(worker, run_id)

    assert worker.row(run_id).status == "completed"
    (result,) = asked[-1][-1].parts
    assert isinstance(result, ToolReturnPart)
    assert "of 1020000 characters are shown]" in str(result.content)
    assert sum(map(message_tokens, asked[-1])) <= ROOM
    whole = one(database, "SELECT length(convert_from(content, 'UTF8')) FROM celeriac.artifacts")
    assert whole == 1_020_002


def test_a_prompt_that_does_not_fit_ends_the_run_before_the_model_is_asked(
    database: Database, workers: Callable[..., Worker], client: Client
) -> None:
    asked: Asked = []
    worker = workers(listening(asked, lambda _: say("noted")))

    run_id = client.start("listener", "x" * 100_000).run_id
    take(worker, run_id)

    row = worker.row(run_id)
    assert (row.status, row.error["kind"]) == ("failed", "context_too_long")
    assert asked == []
    assert one(database, "SELECT count(*) FROM celeriac.model_calls") == 0


def test_an_agent_whose_instructions_leave_no_room_is_refused() -> None:
    verbose = Agent(
        "verbose", ScriptedModel([say("x")]), "be brief " * 400, context=ContextPolicy(1000)
    )

    with pytest.raises(InvalidAgent, match="take about 1200 tokens of the 1000"):
        load_agent(verbose)
    with pytest.raises(InvalidAgent, match="below 500"):
        ContextPolicy(10)
