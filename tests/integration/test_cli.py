"""The command line, in this process: what it prints where, and with which code it exits."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac.cli.words import waiting_for
from celeriac.client import Client
from celeriac.ids import RunId, ThreadId
from celeriac.settings import Settings
from celeriac.states import Phase, RunStatus
from celeriac.workspace.shadow import git_program
from celeriac_storage.database import Database, libpq_url
from celeriac_storage.step_record import Next
from tests.processes import Processes
from tests.steps_by_hand import AGENT, Hand
from tests.waiting import eventually

Cli = Callable[..., Result]
NOWHERE = "postgresql://shop:hunter2secret@127.0.0.1:1/shop"
AGENTS_MODULE = '''
from celeriac import Agent, tool
from celeriac.scripted import ScriptedModel, call, say

@tool(effect="none")
def look(sku: str) -> str:
    """Look for it.

    Args:
        sku: What to look for.
    """
    return sku

desk = Agent("desk", ScriptedModel([call("look", sku="A-7"), say("done")]), "Serve.", [look])
'''


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


@pytest.fixture
def cli(database_url: str) -> Cli:
    """Runs `celeriac ARGUMENTS` on the test's database."""
    return lambda *arguments, **more: _invoke(database_url, arguments, **more)


def _invoke(
    database_url: str | None, arguments: tuple[str, ...], stdin: str | None = None, **settings: str
) -> Result:
    # CliRunner's environment is added to ours: what a developer has set must not reach the test.
    nothing = {f"CELERIAC_{name}": "" for name in ("DATABASE_URL", "BROKER_URL", "AGENTS")}
    given = {f"CELERIAC_{name.upper()}": value for name, value in settings.items()}
    if database_url is not None:
        given = {"CELERIAC_DATABASE_URL": database_url} | given
    result = CliRunner().invoke(app, list(arguments), input=stdin, env=nothing | given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="session")
def agents_module(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("agents") / "shop_agents.py"
    path.write_text(AGENTS_MODULE)
    return str(path)


def _document(result: Result) -> Any:
    """The one JSON document that the command printed."""
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def _lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def _error(result: Result, code: int) -> str:
    """The one line on standard error of a command that printed nothing else."""
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


# Starting and watching ----------------------------------------------------------------------------


def test_run_prints_the_id_of_the_run_it_started(cli: Cli, hand: Hand) -> None:
    document = _document(cli("run", AGENT, "--input", '"hello"', "--json"))

    assert list(document) == ["run_id"]
    assert hand.row(document["run_id"]).input == "hello"


def test_run_passes_on_ids_and_thread(cli: Cli, hand: Hand) -> None:
    arguments = ["--thread", "t1", "--user", "alice", "--run-id", "order-7"]
    assert cli("run", AGENT, "--input", '"hello"', *arguments).exit_code == 0

    shown = _document(cli("show", "order-7", "--json"))
    assert (shown["thread_id"], shown["user_id"]) == ("t1", "alice")
    assert hand.events(shown["run_id"]) == ["run.created"]


def test_run_takes_a_long_input_from_standard_input(cli: Cli, hand: Hand) -> None:
    text = "x" * 300_000  # more than one argument of a command may have

    document = _document(cli("run", AGENT, "--input", "-", "--json", stdin=json.dumps(text)))

    assert hand.row(document["run_id"]).input == text


def test_run_checks_the_input_by_the_agents_code_where_it_is_at_hand(
    cli: Cli, agents_module: str
) -> None:
    document = _document(cli("run", "desk", "--input", "{}", "--json", "--agents", agents_module))

    assert _document(cli("show", document["run_id"], "--json"))["phase"] == "waiting_worker"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{'sku': 1}", "line 1 column 2"),
        ('{"sku": 1', "line 1 column 10"),
        ("hello", "line 1 column 1"),
        ('{"sku": NaN}', "NaN is not a JSON number (/sku)"),
        ('{"sku": 1, "sku": 2}', "the key 'sku' stands twice"),
    ],
)
def test_run_says_where_the_input_is_no_json(cli: Cli, hand: Hand, text: str, said: str) -> None:
    error = _error(cli("run", AGENT, "--input", text), 2)

    assert "--input: " in error
    assert said in error
    assert _lines(cli("runs", "--json")) == []
    assert hand.worker_id


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nosuch", "--input", "1"], "agent 'nosuch'; known are: clerk"),
        (["run", AGENT, "--input", "1"], "agent clerk cannot be used: 1 is not a string"),
        (["run", AGENT, "--input", '"x"', "--run-id", "order-7"], "run order-7 exists already"),
        (["run", AGENT, "--input", '"x"', "--thread", "t1", "--user", "bob"], "another user"),
        (
            ["run", AGENT, "--input", '"x"', "--thread", "t1", "--user", "alice",
             "--on-busy", "reject"],
            "thread t1 is busy with run order-7",
        ),
        (["show", "nosuch"], "no run nosuch"),
        (["events", "nosuch", "--follow"], "no run nosuch"),
        (["cancel", "nosuch"], "no run nosuch"),
        (["audit", "nosuch"], "no run nosuch"),
        (["retry", "order-7"], "does not need attention"),
        (["resolve", "order-7", "9.9", "--not-done"], "has no call 9.9"),
        (["worker", "--broker-url", "redis://x", "--agents", "no.such"], "module no.such"),
    ],
)  # fmt: skip
# features: 000-06, 000-10, 003-16
def test_a_failed_operation_is_one_line_and_code_1(
    cli: Cli, hand: Hand, arguments: list[str], said: str
) -> None:
    cli("run", AGENT, "--input", '"x"', "--run-id", "order-7", "--thread", "t1", "--user", "alice")
    before = _lines(cli("runs", "--json"))

    assert said in _error(cli(*arguments), 1)

    assert _lines(cli("runs", "--json")) == before
    assert hand.worker_id


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["--nosuch"],
        ["run", AGENT],
        ["run", AGENT, "--input", "1", "--on-busy", "never"],
        ["runs", "--status", "sleeping"],
        ["resolve", "r1", "0.0"],
        ["resolve", "r1", "0.0", "--not-done", "--committed", "1"],
        ["resolve", "r1", "0.0", "--committed", "{"],
        ["scheduler"],
        ["worker", "--steps-per-task", "none", "--broker-url", "redis://127.0.0.1:1"],
        ["runs", "--database-url", "mysql://localhost/shop"],
        ["bench", "throughput", "--steps-per-task", "some"],
        ["bench", "failover"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(cli: Cli, arguments: list[str]) -> None:
    _error(cli(*arguments), 2)


def test_the_version_is_told_without_a_database() -> None:
    said = _invoke(None, ("--version",))
    assert (said.exit_code, said.output) == (0, f"celeriac {version('celeriac')}\n")


def test_a_command_without_a_database_says_how_to_name_one() -> None:
    assert "CELERIAC_DATABASE_URL" in _error(_invoke(None, ("runs",)), 2)


def test_the_global_options_stand_before_or_after_the_command(
    database_url: str, hand: Hand
) -> None:
    run_id = hand.start()
    for arguments in (
        ("--database-url", database_url, "runs", "--json"),
        ("runs", "--json", "--database-url", database_url),
        ("runs", f"--database-url={database_url}", "--json"),
    ):
        (line,) = _lines(_invoke(None, arguments))
        assert line["run_id"] == run_id


@pytest.mark.processes
def test_a_workers_tools_find_the_servers_that_its_options_named(
    processes: Processes, broker_url: str, tmp_path: Path, database: Database
) -> None:
    agents = tmp_path / "asking.py"
    agents.write_text(ASKING_MODULE)
    for name in ("CELERIAC_DATABASE_URL", "CELERIAC_BROKER_URL"):
        del processes.environment[name]
    processes.start(
        ["worker", "--database-url", database.url, "--broker-url", broker_url, f"--agents={agents}"]
    )

    with Client(database.url, broker_url) as client:
        eventually(client.workers, what="the worker")
        run_id = client.start("asking", "which servers?").run_id
        run = client.wait(run_id, timeout_seconds=30)

    assert run.result == " ".join(url.rpartition("@")[2] for url in (database.url, broker_url))


ASKING_MODULE = """
import os

from celeriac import Agent
from celeriac.scripted import ScriptedModel, say

urls = [os.environ["CELERIAC_DATABASE_URL"], os.environ["CELERIAC_BROKER_URL"]]
said = " ".join(url.rpartition("@")[2] for url in urls)  # without a password, which is redacted
asking = Agent("asking", ScriptedModel([say(said)]), queue=os.environ["CELERIAC_QUEUES"])
"""


def test_run_wait_ends_with_code_1_when_a_person_is_needed(cli: Cli, hand: Hand) -> None:
    def poison() -> None:
        eventually(lambda: hand.row(RunId("r1")), what="the run")
        hand.poisoned(RunId("r1"))

    worker = threading.Thread(target=poison)
    worker.start()
    result = cli("run", AGENT, "--input", '"hello"', "--run-id", "r1", "--wait")
    worker.join(30)

    assert result.exit_code == 1
    assert "needs_attention" in result.stdout
    assert "celeriac retry" in result.stdout


# features: 003-22
@pytest.mark.processes
def test_run_wait_shows_a_failover_as_it_happens(
    processes: Processes, cli: Cli, broker_url: str, agents_module: str
) -> None:
    processes.start_scheduler()
    processes.start_worker(agents_module, test_points="step.before_commit@1=kill")
    eventually(lambda: _lines(cli("workers", "--json")), what="the worker")
    terminal, output = pty.openpty()
    command = ["run", "desk", "--input", "{}", "--run-id", "r1", "--wait"]
    with subprocess.Popen(
        [sys.executable, "-m", "celeriac.cli.main", *command],
        env=processes.environment | {"TERM": "xterm", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=output,
    ) as running:
        os.close(output)
        eventually(lambda: processes.reached("step.before_commit@1"))
        processes.start_worker(agents_module)
        seen = _everything_on(terminal)

    assert running.returncode == 0
    shown = _document(cli("show", "r1", "--json"))
    first, second = (shown["steps"][number]["worker_id"] for number in (0, 1))
    assert first != second
    for line in (
        rf"step 0 +think +on {first}",
        rf"worker {first} was lost \(\w+\): step 1 goes to another",
        rf"step 1 +act +on {second}",
        r"look \(0\.0\) committed",
        r"status +completed",
    ):
        assert re.search(line, seen), f"{line!r} is not in:\n{seen}"
    assert shown["deaths"] == 1
    events = _lines(cli("events", "r1", "--follow", "--json", broker_url=broker_url))
    assert [event["type"] for event in events][-1] == "run.completed"
    assert _document(cli("audit", "--json"))["ok"]


def _everything_on(terminal: int) -> str:
    """What was written to the terminal until nobody has it open any more, without its colours."""
    chunks = []
    with suppress(OSError):  # on Linux, reading from a terminal that was left raises EIO
        while chunk := os.read(terminal, 65536):
            chunks.append(chunk)
    os.close(terminal)
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", b"".join(chunks).decode())


# A database or a broker that is not there ---------------------------------------------------------


@pytest.mark.parametrize("command", [["runs"], ["migrate"], ["run", AGENT, "--input", "1"]])
def test_an_unreachable_database_is_named_without_its_password(command: list[str]) -> None:
    error = _error(_invoke(NOWHERE, tuple(command)), 1)

    assert "PostgreSQL at postgresql://shop:" in error
    assert "127.0.0.1:1/shop cannot be used" in error
    assert "that its URL is right" in error
    assert "hunter2secret" not in error


def test_an_unreachable_broker_is_named_by_what_cannot_do_without(cli: Cli) -> None:
    error = _error(cli("scheduler", broker_url="redis://127.0.0.1:1/0"), 1)

    assert "the broker at redis://127.0.0.1:1/0 does not answer" in error
    assert "that its URL is right" in error


def test_migrate_makes_an_empty_database_ready(empty_database_url: str) -> None:
    refused = _error(_invoke(empty_database_url, ("runs",)), 1)
    assert "run `celeriac migrate`" in refused

    for _ in range(2):  # again: nothing to do
        document = _document(_invoke(empty_database_url, ("migrate", "--json")))
        assert re.fullmatch(r"\d{4}", document["revision"])

    assert _lines(_invoke(empty_database_url, ("runs", "--json"))) == []


@pytest.mark.parametrize("command", ["runs", "migrate", "audit"])
def test_a_database_that_is_too_new_is_left_alone(cli: Cli, hand: Hand, command: str) -> None:
    with hand.database.connect() as connection:
        connection.exec_driver_sql("UPDATE celeriac_schema_version SET version_num = '9999'")

    assert "revision 9999" in _error(cli(command), 1)


# Looking ------------------------------------------------------------------------------------------


def test_runs_lists_the_newest_first_and_filters(cli: Cli, hand: Hand) -> None:
    first, second = hand.start(), hand.start()
    hand.complete(first)

    assert [line["run_id"] for line in _lines(cli("runs", "--json"))] == [second, first]
    assert [line["run_id"] for line in _lines(cli("runs", "--json", "--status", "completed"))] == [
        first
    ]
    assert _lines(cli("runs", "--json", "--agent", "nosuch")) == []
    assert first in cli("runs").stdout
    assert "no runs" in cli("runs", "--agent", "nosuch").stdout


def test_events_are_lines_up_to_the_last(cli: Cli, hand: Hand) -> None:
    run_id = hand.start()
    hand.complete(run_id)

    lines = _lines(cli("events", run_id, "--follow", "--json"))

    assert [list(line) for line in lines] == [["run_id", "seq", "type", "at", "data"]] * 2
    assert [line["type"] for line in lines] == ["run.created", "run.completed"]
    assert _lines(cli("events", run_id, "--after", "1", "--json")) == lines[1:]


def test_workers_show_who_lives_and_what_they_hold(cli: Cli, hand: Hand) -> None:
    run_id = hand.start()
    hand.claim(run_id)

    (line,) = _lines(cli("workers", "--json"))

    assert line == {
        "worker_id": hand.worker_id,
        "hostname": "localhost",
        "pid": 4711,
        "alive": True,
        "running": [run_id],
    }
    assert run_id in cli("workers").stdout


def test_agents_lists_those_of_the_modules_and_those_of_workers(
    cli: Cli, hand: Hand, agents_module: str
) -> None:
    lines = {
        line["agent"]: line for line in _lines(cli("agents", "--json", "--agents", agents_module))
    }

    assert sorted(lines) == ["clerk", "desk"]
    assert lines["clerk"]["workers"] == [hand.worker_id]
    assert not lines["clerk"]["in_modules"]
    assert (lines["desk"]["in_modules"], lines["desk"]["tools"]) == (True, ["look"])
    assert lines["desk"]["workers"] == []


def test_what_a_tool_returned_cannot_command_the_terminal(cli: Cli, hand: Hand) -> None:
    run_id = hand.start()
    hand.complete(run_id, "\x1b[2J[bold]shipped[/bold]\ud83d")

    result = cli("show", run_id)

    assert "\x1b" not in result.stdout
    assert "[bold]shipped[/bold]" in result.stdout
    assert _document(cli("show", run_id, "--json"))["result"] == "\x1b[2J[bold]shipped[/bold]\ud83d"


def test_a_run_without_a_worker_says_which_one_it_needs(cli: Cli, hand: Hand) -> None:
    run_id = hand.start(agent="porter")

    shown = " ".join(cli("show", run_id).stdout.split())

    assert "waiting_worker" in shown
    assert "no live worker has agent porter; start one with `celeriac worker --agents" in shown


def test_each_wait_is_told_in_words(hand: Hand, database_url: str) -> None:
    thread_id = ThreadId("t1")
    active = hand.start(thread_id=thread_id)
    behind = hand.start(thread_id=thread_id)
    unknown, call = hand.unknown_effect()
    timer, person = hand.start(), hand.start()
    for run_id, phase, seconds in (
        (timer, Phase.WAITING_TIMER, 60.0),
        (person, Phase.WAITING_USER, None),
    ):
        hand.finish(
            hand.claim(run_id),
            Next(
                RunStatus.PAUSED,
                phase,
                resume_phase=Phase.WAITING_MODEL,
                wake_after_seconds=seconds,
            ),
        )
    with Client(database_url) as client:
        told = {
            run_id: waiting_for(client.get(run_id), client.waits_for(run_id)) or ""
            for run_id in (active, behind, unknown, timer, person)
        }
        client.cancel(unknown)
        settled_later = waiting_for(client.get(unknown), client.waits_for(unknown)) or ""

    assert told[active] == "for a worker of queue celeriac to take step 0"
    assert told[behind] == f"for its turn in thread t1, behind run {active}"
    assert f"celeriac resolve {unknown} {call} --committed JSON" in told[unknown]
    assert (
        f'ship with {{"order": 7}} and the idempotency key default:{unknown}:{call}'
        in told[unknown]
    )
    assert re.match(r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", told[timer])
    assert told[person] == f"for its user: `celeriac say {person} TEXT`"
    assert f"celeriac resolve {unknown} {call}" in settled_later


# Deciding -----------------------------------------------------------------------------------------


def test_cancel_says_what_became_of_the_run(cli: Cli, hand: Hand) -> None:
    queued, running = hand.start(), hand.start()
    hand.claim(running)

    assert _document(cli("cancel", queued, "--json"))["status"] == "cancelled"
    assert _document(cli("cancel", running, "--json"))["status"] == "running"
    assert "asked to end" in cli("cancel", running).stdout


def test_resolve_lets_the_run_go_on(cli: Cli, hand: Hand) -> None:
    run_id, call = hand.unknown_effect()
    assert "resolve" in _error(cli("retry", run_id), 1)

    document = _document(
        cli("resolve", run_id, call, "--committed", '{"id": 7}', "--as", "alice", "--json")
    )

    assert document == {"run_id": run_id, "status": "queued"}
    assert hand.effect(run_id, call).result == {"id": 7}
    assert hand.event_data(run_id, "effect.resolved")["by"] == "alice"


def test_retry_lets_a_poisoned_run_try_again(cli: Cli, hand: Hand) -> None:
    run_id = hand.poisoned()

    assert _document(cli("retry", run_id, "--json")) == {"run_id": run_id, "status": "queued"}


# Checking -----------------------------------------------------------------------------------------


def test_audit_of_a_sound_database_finds_nothing(cli: Cli, hand: Hand) -> None:
    cancelled, _ = hand.unknown_effect()
    cli("cancel", cancelled)
    completed = hand.start()
    hand.complete(completed)

    assert _document(cli("audit", "--json")) == {"ok": True, "violations": []}
    assert cli("audit", completed).exit_code == 0


def test_audit_tells_each_violation_and_exits_with_1(cli: Cli, hand: Hand) -> None:
    run_id = hand.start()
    with hand.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET last_event_seq = last_event_seq + 1 WHERE run_id = %s",
            (run_id,),
        )

    result = cli("audit", run_id, "--json")

    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert not document["ok"]
    assert list(document["violations"][0]) == ["invariant", "run_id", "detail"]
    assert document["violations"][0]["run_id"] == run_id


def test_doctor_lists_every_setting_and_finds_nothing_wrong(
    cli: Cli, hand: Hand, broker_url: str, agents_module: str
) -> None:
    assert hand.worker_id

    document = _document(cli("doctor", "--json", broker_url=broker_url, agents=agents_module))

    assert document["ok"]
    states = {check["check"]: check["state"] for check in document["checks"]}
    assert states | {"workers": "ok", "scheduler": "ok"} == dict.fromkeys(states, "ok")
    settings = {setting["name"]: setting for setting in document["settings"]}
    assert list(settings["CELERIAC_LEASE_SECONDS"]) == ["name", "value", "default", "description"]
    assert settings["CELERIAC_LEASE_SECONDS"]["default"] == 10.0
    assert all(setting["description"] for setting in settings.values())
    assert "PostgreSQL" in cli("doctor", broker_url=broker_url).stdout


@pytest.mark.parametrize(
    "name",
    [name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)],
)
def test_doctor_masks_every_secret_setting(name: str) -> None:
    schemes = {"broker_url": "redis", "flower_auth": "", "token": "", "metrics_token": ""}
    scheme = schemes.get(name, "postgresql")
    password = f"Zx9{name}2Qw8"  # of its own: one that was seen before is known as a secret
    secret = f"operator:{password}"
    value = f"{scheme}://{secret}@127.0.0.1:1/0" if scheme else secret

    given = {name: value}
    result = _invoke(given.pop("database_url", None), ("doctor", "--json"), **given)

    settings = {each["name"]: each["value"] for each in json.loads(result.stdout)["settings"]}
    shown = "[redacted]" if name.endswith("token") else value.replace(password, "[redacted]")
    assert settings[f"CELERIAC_{name.upper()}"] == shown
    assert password not in result.output


def test_doctor_says_what_is_missing_and_exits_with_1(tmp_path: Path) -> None:
    module = tmp_path / "costly_agents.py"
    module.write_text(
        'from celeriac import Agent\ncostly = Agent("costly", "nosuchprovider:model")\n'
    )
    result = _invoke(
        NOWHERE, ("doctor", "--json"), broker_url="redis://127.0.0.1:1/0", agents=str(module)
    )

    assert result.exit_code == 1
    document = json.loads(result.stdout)
    failed = {check["check"]: check["detail"] for check in document["checks"]}
    assert {check["state"] for check in document["checks"]} == {"fail"}
    assert sorted(failed) == ["agent costly", "broker", "database"]
    assert "hunter2secret" not in result.stdout


@pytest.mark.parametrize(
    ("git", "state", "words"),
    [
        ("echo git version 2.31.0", "ok", "git version 2.31.0 at "),
        ("echo git version 2.30.9", "fail", "git 2.31 is needed"),
        (None, "fail", "this worker has no git"),
    ],
)
def test_doctor_looks_for_git_where_an_agent_works_on_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git: str | None, state: str, words: str
) -> None:
    module = tmp_path / f"filing_{tmp_path.name}.py"  # imported once under each name
    module.write_text(
        "from celeriac import Agent\n"
        "from celeriac.scripted import ScriptedModel, say\n"
        "from celeriac.workspace.tools import workspace_tools\n"
        'filing = Agent("filing", ScriptedModel([say("x")]), tools=workspace_tools())\n'
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    if git is not None:
        (programs / "git").write_text(f"#!/bin/sh\n{git}\n")
        (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    git_program.cache_clear()

    result = _invoke(None, ("doctor", "--json"), agents=str(module))

    git_program.cache_clear()
    (check,) = [each for each in json.loads(result.stdout)["checks"] if each["check"] == "git"]
    assert (check["state"], words in check["detail"]) == (state, True), check


def test_a_broker_url_that_no_library_takes_is_told_in_one_line(cli: Cli, hand: Hand) -> None:
    assert hand.worker_id
    url = "redis://127.0.0.1:1/0?nonsense=1"

    checks = json.loads(cli("doctor", "--json", "--broker-url", url).stdout)["checks"]
    (broker,) = [check["detail"] for check in checks if check["check"] == "broker"]
    told = _error(cli("run", AGENT, "--input", '"hello"', "--broker-url", url), 1)
    assert told == f"Error: {broker}"
    assert "the broker URL cannot be used" in broker


def test_doctor_of_an_empty_database_says_to_migrate(empty_database_url: str) -> None:
    result = _invoke(empty_database_url, ("doctor", "--json"))

    checks = {check["check"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 1
    assert checks["database"]["state"] == "ok"
    assert checks["schema"]["state"] == "fail"
    assert "celeriac migrate" in checks["schema"]["detail"]


@pytest.fixture
def guest_url(empty_database_url: str) -> Iterator[str]:
    """The empty database by a login that may only read there."""
    name, url = f"guest_{uuid4().hex[:12]}", make_url(empty_database_url)
    with psycopg.connect(libpq_url(empty_database_url), autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'guest-2secret'".encode())
        yield url.set(username=name, password="guest-2secret").render_as_string(hide_password=False)
        owner.execute(f"DROP ROLE {name}".encode())


def test_what_postgresql_refuses_is_told_in_one_line_without_the_statement(guest_url: str) -> None:
    told = _error(_invoke(guest_url, ("migrate",)), 1)

    assert "(42501)" in told
    assert "permission denied" in told
    assert "the database's owner" in told
    assert "CREATE" not in told


def test_a_parameter_of_the_database_url_that_is_unknown_is_told_in_one_line() -> None:
    told = _error(_invoke("postgresql://127.0.0.1:1/x?nonsense=1", ("runs",)), 1)

    assert 'invalid connection option "nonsense"' in told


def test_run_wait_tells_what_a_pause_waits_for_and_for_how_long_it_waits_is_given(
    cli: Cli, agents_module: str
) -> None:
    wait = ["--wait", "--timeout", "0.5", "--json"]

    waited = cli("run", "desk", "--input", '"hello"', "--agents", agents_module, *wait)

    assert (waited.exit_code, waited.stdout) == (1, "")
    pause, given_up = waited.stderr.splitlines()
    assert "waits for a worker: no live worker has agent desk" in pause
    assert "is still paused after 0.5 s; it goes on all the same" in given_up


@pytest.mark.parametrize("group", [[], ["bench"]])
def test_a_group_without_a_command_shows_its_help_as_it_is(group: list[str]) -> None:
    shown = _invoke(None, tuple(group))

    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr == _invoke(None, (*group, "--help")).stdout


def test_help_imports_no_driver_no_broker_and_no_model() -> None:
    # They take a second, and a shell's help must not.
    heavy = ["sqlalchemy", "psycopg", "celery", "pydantic", "pydantic_ai", "alembic"]
    code = (
        "import sys; from celeriac.cli.main import app\n"
        "try: app(['--help'])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_events_can_be_asked_for_their_schema_without_a_run_or_a_server(cli: Cli) -> None:
    printed = cli("events", "--schema")

    assert "run.created" in json.dumps(json.loads(printed.stdout))
    assert cli("events").exit_code == 2
