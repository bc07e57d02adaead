"""What people and other processes type: say, interrupt, calls, submit, and a start that says."""

import json
from collections.abc import Iterator
from dataclasses import fields

import pytest

from celeriac.cli.words import waiting_for
from celeriac.reports import RequestedCall
from celeriac.states import RunStatus
from celeriac_storage import agents
from celeriac_storage.database import Database
from tests.integration.conftest import Cli
from tests.steps_by_hand import definition
from tests.talk import Calls, Talk

TWO_SCANS: Calls = [("scan", {"shelf": "a"}), ("scan", {"shelf": "b"})]


@pytest.fixture
def talk(database: Database, broker_url: str) -> Iterator[Talk]:
    talk = Talk(database, broker_url, TWO_SCANS)
    talk.start()
    yield talk
    talk.close()


def wait_in_words(talk: Talk) -> str | None:
    return waiting_for(talk.client.get(talk.run_id), talk.client.waits_for(talk.run_id))


def test_an_interrupted_run_says_how_it_goes_on(talk: Talk, cli: Cli) -> None:
    stopped = cli("interrupt", talk.run_id, "--as", "alice")

    assert f"celeriac say {talk.run_id} TEXT" in stopped.stdout
    assert wait_in_words(talk) == f"for its user: `celeriac say {talk.run_id} TEXT`"

    told = cli("say", talk.run_id, "go on", "--as", "alice", "--json")
    assert json.loads(told.stdout) == {"run_id": talk.run_id, "status": "queued"}
    authors = talk.query("SELECT author FROM celeriac.inbox")
    assert [row[0] for row in authors] == ["alice"]


def test_a_word_said_again_under_its_key_is_told_once(talk: Talk, cli: Cli) -> None:
    for _ in range(2):
        assert cli("say", talk.run_id, "quick", "--key", "k1").exit_code == 0

    assert talk.row.words_waiting == 1


def test_what_a_run_cannot_hear_is_said_on_standard_error(talk: Talk, cli: Cli) -> None:
    talk.client.cancel(talk.run_id)

    refused = [cli(command, talk.run_id, *more) for command, more in
               (("say", ["hello"]), ("interrupt", []))]  # fmt: skip

    assert [result.exit_code for result in refused] == [1, 1]
    assert ["is cancelled" in result.stderr for result in refused] == [True, True]


def test_another_process_lists_its_calls_and_submits_both(talk: Talk, cli: Cli) -> None:
    talk.go_on()

    listed = [json.loads(line) for line in cli("calls", "--json").stdout.splitlines()]
    assert [list(call) for call in listed] == [[each.name for each in fields(RequestedCall)]] * 2
    assert [call["arguments"] for call in listed] == [{"shelf": "a"}, {"shelf": "b"}]
    assert f"celeriac submit {talk.run_id} 0.0 --result JSON" in str(wait_in_words(talk))

    both = ["--result", '{"number": 7}', "--result", "2", "--as", "warehouse"]
    assert cli("submit", talk.run_id, "0.0", "0.1", *both).exit_code == 0
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-2:] == ["{'number': 7}", "2"]


def test_a_failed_call_is_told_in_words(talk: Talk, cli: Cli) -> None:
    talk.go_on()

    cli("submit", talk.run_id, "0.0", "0.1", "--error", "no light", "--error", "no shelf")

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-2:] == ["no light", "no shelf"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["0.0"],
        ["0.0", "0.1", "--result", "1"],
        ["0.0", "0.1", "--result", "1", "--error", "no"],
        ["0.0", "0.0", "--result", "1", "--result", "2"],
        ["0.0", "--result", "{"],
    ],
    ids=["nothing", "one of two", "mixed", "twice", "no JSON"],
)
def test_a_batch_that_does_not_add_up_is_wrong_usage(
    talk: Talk, cli: Cli, arguments: list[str]
) -> None:
    talk.go_on()

    assert cli("submit", talk.run_id, *arguments).exit_code == 2

    assert talk.states == ["in_flight", "in_flight"]


def test_run_on_busy_say_names_the_run_that_was_told(
    talk: Talk, cli: Cli, database: Database
) -> None:
    with database.begin() as connection:
        agents.register_agent(connection, "talker", "hash-1", definition("talker"))
    start = ["run", "talker", "--thread", "t1", "--on-busy", "say", "--json", "--input"]
    first = json.loads(cli(*start, '"hello"').stdout)

    assert json.loads(cli(*start, '"and a cup"').stdout) == first

    assert talk.worker.row(first["run_id"]).words_waiting == 1
