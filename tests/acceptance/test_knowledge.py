"""Where what a model is told comes from, and where it stays."""

import json

import pytest

from tests.acceptance.agents import ANSWER, LARGE_ANSWER
from tests.acceptance.terminal import Terminal


# features: 000-05
@pytest.mark.parametrize(
    ("question", "answer", "place"),
    [("it", ANSWER, "effects"), ("all of it", LARGE_ANSWER, "artifacts")],
)
def test_what_a_tool_looked_up_is_its_result_and_stands_nowhere_else(
    terminal: Terminal, question: str, answer: str, place: str
) -> None:
    terminal.open()

    run = terminal.run("librarian", question)

    assert run["result"] == "found it"
    assert tables_that_hold(terminal, ANSWER) == {place}
    ((stored,),) = terminal.query(
        "SELECT coalesce(result, convert_from(content, 'UTF8')::jsonb)"
        " FROM celeriac.effects LEFT JOIN celeriac.artifacts ON hash = result_artifact"
    )
    assert stored == answer
    terminal.assert_sound()


def tables_that_hold(terminal: Terminal, words: str) -> set[str]:
    """The tables of the schema with these words in a row, be it in bytes."""
    tables = terminal.query(
        "SELECT table_name FROM information_schema.tables"
        " WHERE table_schema = 'celeriac' AND table_type = 'BASE TABLE'"
    )
    return {
        table
        for (table,) in tables
        if terminal.query(
            f"SELECT FROM celeriac.{table} AS t WHERE strpos(t::text, %s) > 0"
            " OR strpos(t::text, encode(convert_to(%s, 'UTF8'), 'hex')) > 0 LIMIT 1",
            words,
            words,
        )
    }


# features: 002-04
def test_a_model_is_shown_the_conversation_and_nothing_of_what_is_kept_for_audit(
    terminal: Terminal,
) -> None:
    # With a recovery in its history, there is something to tell.
    terminal.open(test_points="act.after_tool@1=kill")

    run = terminal.run("witness", "What do you see?")

    assert terminal.workers_killed == 1
    shown = run["result"]
    assert "What do you see?" in shown
    assert ANSWER in shown
    kept = {run["run_id"], run["thread_id"], run["effects"][0]["key"]}
    kept |= {step["worker_id"] for step in run["steps"]}
    kept |= {row for (row,) in terminal.query("SELECT type FROM celeriac.events")}
    kept |= {row for (row,) in terminal.query("SELECT encode(hash, 'hex') FROM celeriac.messages")}
    assert "run.recovered" in kept
    assert [fact for fact in kept if fact in shown] == []
    assert len(json.loads(shown)) == 3, "the question, the call, and its result"
