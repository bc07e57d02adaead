"""What a model was sent, told from rows alone; and where two runs part."""

# features: 004-07
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from celeriac import Agent, Client, ContextPolicy, MemoryPolicy, model_loop
from celeriac.errors import Conflict, InvalidInput, UnknownRun
from celeriac.ids import DEFAULT_USER, RunId
from celeriac.reports import to_json
from celeriac.scripted import ScriptedModel, Turn, call, say
from tests.integration.conftest import Cli
from tests.retold import BROKEN, TURNS, Retold


def replayed(retold: Retold, run_id: RunId) -> list[list[Any]]:
    """The messages of each question, as they are replayed. Nothing may be missing or broken."""
    replay = retold.client.replay(run_id)
    assert replay.broken == []
    assert [question.missing for question in replay.questions] == [[]] * len(replay.questions)
    return [
        [message.message for message in replay.messages_of(question)]
        for question in replay.questions
    ]


def test_each_question_is_replayed_as_it_was_asked(retold: Retold) -> None:
    run_id = retold.tell(*TURNS)

    assert replayed(retold, run_id) == retold.asked
    replay = retold.client.replay(run_id)
    assert [question.step for question in replay.questions] == [0, 2, 4]
    assert len(replay.messages) == 5  # each once
    answers = [each.answer or {} for each in replay.questions]
    assert answers[:2] == [replay.messages[1].message, replay.messages[3].message]
    assert answers[2]["parts"] == [{"content": "ink is on its way"}]
    (attempt,) = replay.questions[0].attempts
    assert (attempt.outcome, attempt.input_tokens, attempt.output_tokens) == ("answered", 100, 20)
    (instructions,) = replay.instructions.values()
    assert instructions == "Tell what there is."
    (tools,) = replay.tools.values()
    assert tools == [
        {
            "name": each.name,
            "description": each.description,
            "parameters": each.definition().parameters_json_schema,
        }
        for each in retold.agent.tools
    ]


def test_nobody_outside_the_database_is_asked(
    retold: Retold, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = retold.tell(*TURNS)
    asked = len(retold.asked)
    retold.retire()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a replay asked somebody")

    monkeypatch.setattr(socket.socket, "connect", refuse)  # libpq has sockets of its own
    monkeypatch.setattr(model_loop, "submit", refuse)
    monkeypatch.setattr(ScriptedModel, "answer", refuse)
    with Client(retold.database.url) as client:
        replay = client.replay(run_id)

    assert len(replay.questions) == asked == len(retold.asked)
    assert len(retold.orders) == 1


def test_earlier_runs_words_forks_and_retries_are_replayed_as_they_were_shown(
    retold: Retold,
) -> None:
    retold.tell(say("hi"), thread_id="chat")
    told = retold.client.start("teller", "hello", thread_id="chat").run_id
    retold.client.say(told, "and be quick")
    retold.go_on(told, *TURNS[:2], BROKEN)
    retried = retold.go_on(retold.client.retry(told).run_id, call("look", shelf="B"), say("done"))
    fork = retold.go_on(retold.client.fork(retried, 1).run_id, say("look again"))
    later = retold.tell(say("bye"), thread_id="chat")

    asked = [each for run_id in (told, retried, fork, later) for each in replayed(retold, run_id)]

    assert asked == retold.asked[1:]


def test_a_selection_is_replayed_with_what_was_left_out_and_cut(
    made: Callable[..., Retold],
) -> None:
    retold = made(context=ContextPolicy(2_000))
    turns = [call("order", what=f"{number}{'x' * 1_500}") for number in range(5)]
    run_id = retold.tell(*turns, call("look", shelf="A", times=3_000), say("done"))

    assert replayed(retold, run_id) == retold.asked
    assert len(retold.asked[-1]) < 13
    assert "characters are shown]" in str(retold.asked[-1])


def test_memories_are_replayed_until_they_are_changed(made: Callable[..., Retold]) -> None:
    retold = made(memory=MemoryPolicy())
    kept = retold.client.remember("colour", "prefers blue ink", user_id=DEFAULT_USER)
    assert kept.store
    run_id = retold.tell(call("look", shelf="ink"), say("blue"))
    assert "prefers blue ink" in str(retold.asked[0])

    assert replayed(retold, run_id) == retold.asked

    retold.client.forget("colour", user_id=DEFAULT_USER)
    for question in retold.client.replay(run_id).questions:
        (missing,) = question.missing
        assert missing == "memory default/colour in its version 1, changed or forgotten since"


def test_a_deploy_in_between_shows_each_question_with_the_instructions_of_its_time(
    retold: Retold,
) -> None:
    run_id = retold.client.start("teller", "hello").run_id
    retold.turns = [TURNS[0]]
    retold.worker.step(run_id)
    newer = Agent("teller", retold.agent.model, "Tell it shortly.", tools=retold.agent.tools)
    retold.deploy(newer)
    retold.go_on(run_id, say("done"))

    replay = retold.client.replay(run_id)

    assert [replay.instructions[each.prompt_hash or ""] for each in replay.questions] == [
        "Tell what there is.", "Tell it shortly.",
    ]  # fmt: skip


def test_what_was_changed_in_the_rows_is_found(retold: Retold, cli: Cli) -> None:
    run_id = retold.tell(*TURNS)
    with retold.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE celeriac.messages SET body = replace(body::text, 'hello', 'bye')::jsonb"
            " WHERE run_id = %s AND position = 0",
            (run_id,),
        )

    result = cli("replay", run_id)

    assert result.exit_code == 1
    assert f"message 0 of run {run_id} is not what was recorded" in result.stderr
    assert retold.client.replay(run_id).broken == [f"message 0 of run {run_id}"]
    with retold.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE celeriac.messages SET body = replace(body::text, 'bye', 'hello')::jsonb"
            " WHERE run_id = %s AND position = 0",
            (run_id,),
        )


def test_the_command_line_replays_for_people_and_programs(retold: Retold, cli: Cli) -> None:
    run_id = retold.tell(*TURNS[:2], BROKEN)

    everything = cli("replay", run_id).stdout
    at_one = cli("replay", run_id, "--step", "2").stdout
    document = json.loads(cli("replay", run_id, "--step", "4", "--json").stdout)

    assert everything.count("user-prompt: hello") == 1
    assert "2 messages as above" not in everything.split("step 2")[0]
    assert "attempt 1" in everything
    assert "the model is broken" in everything
    assert "look → A: empty" in at_one
    assert "instructions  Tell what there is." in at_one
    (question,) = document["questions"]
    assert (question["step"], question["shown"]) == (4, [[0, 5]])
    assert question["answer"] is None
    assert cli("replay", run_id, "--step", "3").exit_code == 1


def test_what_cannot_be_replayed_is_said(retold: Retold) -> None:
    run_id = retold.tell(*TURNS)

    with pytest.raises(InvalidInput, match="has not asked its model at step 1"):
        retold.client.replay(run_id, step=1)
    with pytest.raises(UnknownRun):
        retold.client.replay("nosuch")
    with retold.database.begin() as connection:
        connection.exec_driver_sql("SELECT celeriac.erase_runs(%s)", ([run_id],))
    for ask in (lambda: retold.client.replay(run_id), lambda: retold.client.diff(run_id, run_id)):
        with pytest.raises(Conflict, match="erased"):
            ask()


def test_no_order_rests_on_a_time(retold: Retold) -> None:
    # features: 004-14
    first = retold.tell(*TURNS, thread_id="chat")
    failed = retold.tell(*TURNS[:2], BROKEN, thread_id="chat")
    retried = retold.go_on(retold.client.retry(failed).run_id, say("done"))
    runs = (first, failed, retried)

    def told() -> list[Any]:
        client = retold.client
        return [
            [without_times(to_json(client.get(run_id))) for run_id in runs],
            [without_times(to_json(list(client.events(run_id)))) for run_id in runs],
            [without_times(to_json(client.replay(run_id))) for run_id in runs],
            to_json(client.diff(failed, retried)),
        ]

    before = told()
    with retold.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        columns = connection.exec_driver_sql(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'celeriac' AND data_type LIKE 'timestamp%%'"
            " AND table_name = ANY (%s)",
            (["runs", "checkpoints", "events", "effects", "effect_attempts", "model_calls"],),
        ).all()
        assert len(columns) > 15
        for table, column in columns:
            connection.exec_driver_sql(
                f"UPDATE celeriac.{table} SET {column} = '2026-01-01Z' WHERE {column} IS NOT NULL"
            )

    assert told() == before


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: without_times(each)
            for name, each in value.items()
            if not (name == "at" or name.endswith("_at"))
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


# Diff -------------------------------------------------------------------------------------------


def test_runs_that_did_the_same_do_not_part(retold: Retold) -> None:
    left, right = retold.tell(*TURNS), retold.tell(*TURNS)

    found = retold.client.diff(left, right)

    assert (found.same_stages, found.parts_by, found.same_input) == (5, None, True)
    assert (found.left.stages, found.right.stages) == ([], [])
    assert (found.left.use, found.left.tool_calls) == (found.right.use, 2)


@pytest.mark.parametrize(
    ("turns", "same", "by"),
    [
        ((say("nothing"),), 0, "said"),
        ((call("look", shelf="B"), *TURNS[1:]), 0, "asked"),
        ((*TURNS[:2], say("no ink")), 4, "said"),
        ((*TURNS[:2], BROKEN), 4, "ends"),
    ],
)
def test_runs_part_where_the_first_thing_is_another(
    retold: Retold, turns: tuple[Turn, ...], same: int, by: str
) -> None:
    left, right = retold.tell(*TURNS), retold.tell(*turns)

    found = retold.client.diff(left, right)

    assert (found.same_stages, found.parts_by) == (same, by)
    assert len(found.left.stages) == 5 - same


def test_a_fork_parts_from_its_origin_where_it_went_another_way(retold: Retold, cli: Cli) -> None:
    origin = retold.tell(*TURNS)
    fork = retold.go_on(retold.client.fork(origin, 3).run_id, say("ordered again"))

    found = retold.client.diff(origin, fork)

    assert (found.same_stages, found.parts_by) == (4, "said")
    assert [stage.run_id for stage in found.right.stages] == [fork]
    assert found.right.stages[0].said == ["ordered again"]
    assert json.loads(cli("diff", origin, fork, "--json").stdout) == to_json(found)
    shown = cli("diff", origin, fork).stdout
    assert "the same for 4 steps; then they part by what was said" in shown
    assert "ordered again" in shown
