"""A run whose model says that it is done, and is not: told so, and in the end refused."""

# features: 004-34, 004-35, 004-36, 004-37
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row

from celeriac import Agent, Client, Contract, ToolContext, external_tool, tool
from celeriac.client import NotDone, TookEffect
from celeriac.codec import JsonValue
from celeriac.ids import RunId
from celeriac.reports import Run
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.settings import settings
from celeriac.states import RunStatus
from celeriac.workspace.place import prepare
from celeriac.workspace.tools import workspace_tools
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.attesting_host import Host
from tests.worker_in_process import Worker

TESTS = [sys.executable, "-c", "import pathlib; exec(pathlib.Path('check.py').read_text())"]
PASSES = "print('3 passed')"
FAILS = "print('1 failed, 2 passed'); raise SystemExit(1)"


@external_tool(mutates_workspace=True)
def patch(path: str) -> str:
    """Have another process change a file."""
    return path


@external_tool(verifies=True)
def check() -> str:
    """Have another process run the tests."""
    return ""


@tool(effect="transactional")
def book(ctx: ToolContext) -> str:
    """Write a row."""
    ctx.connection.exec_driver_sql("SELECT 1")
    return "booked"


class Coding:
    """Runs of the agent `coder` on one folder, whose model follows what a test gives."""

    def __init__(self, database: Database, broker_url: str, folder: Path) -> None:
        self.database, self.broker_url, self.folder = database, broker_url, folder
        self.client = Client(database.url)
        self.told: list[str] = []
        self.worker: Worker | None = None

    def deploy(self, contract: Contract | None, *turns: Turn) -> None:
        """Begin to work with an agent of this contract, instead of the one before."""

        def script(messages: Sequence[Any]) -> Turn:
            (*_, last) = messages[-1].parts
            self.told.append(str(last.content))
            turn: Turn = turns[sum(message.kind == "response" for message in messages)]
            return turn

        agent = Agent(
            "coder",
            ScriptedModel(script),
            tools=[*workspace_tools(folder=self.folder, tests=TESTS), patch, check, book],
            contract=contract,
        )
        self.close()
        self.worker = Worker(self.database.url, self.broker_url, [agent])
        self.worker.process.start()

    def start(self) -> RunId:
        return self.client.start("coder", "go").run_id

    def go_on(self, run_id: RunId) -> Run:
        assert self.worker is not None
        for _ in range(30):
            if self.worker.row(run_id).status != RunStatus.QUEUED:
                break
            self.worker.step(run_id)
        return self.client.get(run_id)

    def run(self, contract: Contract, *turns: Turn) -> Run:
        self.deploy(contract, *turns)
        return self.go_on(self.start())

    def events(self, run: Run) -> list[str]:
        return [event.type for event in self.client.events(run.run_id)]

    def query(self, sql: str, *values: object) -> list[Row[Any]]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, values))

    def close(self) -> None:
        if self.worker is not None:
            self.worker.process.stop()
            self.worker = None


@pytest.fixture
def coding(
    database: Database, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coding]:
    prepare(tmp_path / "workspaces")
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("CELERIAC_WORKSPACES", str(tmp_path / "workspaces"))
    settings.cache_clear()
    coding = Coding(database, broker_url, tmp_path / "project")
    yield coding
    coding.close()
    coding.client.close()
    settings.cache_clear()
    assert audit(database) == []


def write(path: str = "a.py", content: str = "new") -> Turn:
    return call("write_file", path=path, content=content)


MUTATED = Contract(require_workspace_mutation=True, max_corrections=2)
TESTED = Contract(require_focused_verification=True, max_corrections=1)
DONE = say("done")


def test_a_model_that_has_changed_nothing_is_told_so_and_may_go_on(coding: Coding) -> None:
    run = coding.run(MUTATED, DONE, write(), DONE)

    assert (run.status, run.outcome, run.result) == (RunStatus.COMPLETED, "completed", "done")
    assert "no file differs" in coding.told[1]
    assert coding.events(run).count("contract.refused") == 1
    assert coding.events(run)[-2:] == ["contract.met", "run.completed"]
    assert run.contract is not None
    assert (run.contract.is_met, run.contract.corrections) == (True, 1)
    roles = coding.query(
        "SELECT role FROM celeriac.messages WHERE run_id = %s ORDER BY position", run.run_id
    )
    assert [row[0] for row in roles[:3]] == ["user", "assistant", "question"]


def test_one_that_insists_ends_without_a_result(coding: Coding) -> None:
    run = coding.run(MUTATED, DONE, DONE, DONE)

    assert (run.status, run.outcome, run.result) == (RunStatus.FAILED, "contract_unmet", None)
    assert isinstance(run.error, dict)
    assert run.error["unmet"] == [
        {
            "requirement": "require_workspace_mutation",
            "why": "no file differs from what it was at the beginning",
        }
    ]
    assert coding.events(run)[-2:] == ["contract.unmet", "run.failed"]
    assert "the last time" in coding.told[2]
    assert "the last time" not in coding.told[1]
    assert run.contract is not None
    assert (run.contract.is_met, run.contract.corrections) == (False, 2)


def test_an_advisory_contract_lets_the_run_complete_and_says_what_is_missing(
    coding: Coding,
) -> None:
    advisory = Contract(require_focused_verification=True, enforcement="advisory")
    run = coding.run(advisory, write(), DONE)

    assert (run.status, run.outcome) == (RunStatus.COMPLETED, "completed")
    assert coding.events(run)[-2:] == ["contract.unmet", "run.completed"]
    assert run.contract is not None
    assert run.contract.is_met is False
    assert run.contract.unmet == [
        {"requirement": "require_focused_verification", "why": "the tests have not been run"}
    ]
    assert (coding.folder / "a.py").read_text() == "new", "the work stays"


def test_the_work_stays_where_a_strict_contract_ends_the_run(coding: Coding) -> None:
    run = coding.run(TESTED, write(), DONE, DONE)

    assert run.outcome == "contract_unmet"
    assert (coding.folder / "a.py").read_text() == "new"


STORIES: dict[str, tuple[Contract, list[Turn], str | None]] = {
    "the tests passed": (TESTED, [write("check.py", PASSES), call("run_tests")], None),
    "the tests failed": (
        TESTED, [write("check.py", FAILS), call("run_tests")], "failed with exit code 1",
    ),
    "they passed, and then failed": (
        TESTED,
        [
            write("check.py", PASSES), call("run_tests"),
            write("check.py", FAILS), call("run_tests"),
        ],
        "failed with exit code 1",
    ),
    "they passed before the last change": (
        TESTED, [write("check.py", PASSES), call("run_tests"), write()], "before the last change",
    ),
    "no test was run": (TESTED, [write("check.py", "print('0 passed')"), call("run_tests")],
        "it ran no test"),
    "a change was taken back": (
        MUTATED, [write(), call("delete_file", path="a.py")], "no file differs",
    ),
    "another file was changed": (
        Contract(paths_changed=["src/**"], max_corrections=1), [write()], "of the pattern 'src/**'",
    ),
    "the right file was changed by a command": (
        Contract(paths_changed=["src/**"]),
        [call("run_command", command=["sh", "-c", "mkdir src && echo x > src/a.py"])], None,
    ),
    "a command failed": (
        Contract(command_succeeded=[["test", "-e", "a.py"]], max_corrections=1),
        [call("run_command", command=["test", "-e", "a.py"])], "ended with 1",
    ),
    "a command succeeded": (
        Contract(command_succeeded=[["test", "-e", "a.py"]]),
        [write(), call("run_command", command=["test", "-e", "a.py"])], None,
    ),
    "a file is no effect elsewhere": (
        Contract(require_observed_effect=True, max_corrections=1), [write()], "no effect was seen",
    ),
    "a row is an effect": (Contract(require_observed_effect=["book"]), [call("book")], None),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_what_the_workers_own_calls_did_is_held_against_the_contract(
    coding: Coding, story: str
) -> None:
    contract, turns, missing = STORIES[story]
    run = coding.run(contract, *turns, DONE, DONE, DONE)

    if missing is None:
        assert run.status is RunStatus.COMPLETED, run.error
        assert run.contract is not None
        assert run.contract.corrections == 0
        return
    assert run.outcome == "contract_unmet"
    assert missing in str(run.error)


def test_a_deploy_does_not_change_the_contract_of_a_run(coding: Coding) -> None:
    coding.deploy(MUTATED, DONE, DONE, DONE)
    run_id = coding.start()
    assert coding.worker is not None
    coding.worker.step(run_id)
    coding.deploy(None, DONE, DONE, DONE)

    run = coding.go_on(run_id)

    assert run.outcome == "contract_unmet"
    with pytest.raises(Exception, match="its contract never changes"):
        coding.query(
            "UPDATE celeriac.runs SET contract = NULL WHERE run_id = %s RETURNING 1", run_id
        )


def test_what_is_said_meanwhile_is_heard_before_the_contract_is_asked(coding: Coding) -> None:
    coding.deploy(MUTATED, DONE, DONE, write(), DONE)
    run_id = coding.start()
    coding.client.say(run_id, "hurry")

    run = coding.go_on(run_id)

    assert run.status is RunStatus.COMPLETED
    assert "contract.refused" in coding.events(run)


# Calls that another process executes -------------------------------------------------------------


def elsewhere(coding: Coding, tmp_path: Path, run_id: RunId) -> Host:
    folder = tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    return Host(coding.client, run_id, folder)


PATCH, CHECK = call("patch", path="a.txt"), call("check")
PASSED: dict[str, JsonValue] = {"exit_code": 0, "command": ["pytest"], "output": "3 passed"}


def answered(
    coding: Coding, host: Host, deeds: Sequence[Callable[[], object] | dict[str, JsonValue]]
) -> Run:
    """The run, after its calls were executed: what changes files by a deed, others by a result."""
    run = coding.go_on(RunId(host.run_id))
    for deed in deeds:
        (requested,) = host.requested
        if callable(deed):
            host.submit(host.receipt(deed))
        else:
            coding.client.submit(run.run_id, {requested.call_id: deed})
        run = coding.go_on(run.run_id)
    return run


def test_receipts_and_results_from_elsewhere_are_evidence_as_well(
    coding: Coding, tmp_path: Path
) -> None:
    contract = Contract(paths_changed=["*.txt"], require_focused_verification=True)
    coding.deploy(contract, PATCH, CHECK, DONE)
    host = elsewhere(coding, tmp_path, coding.start())

    run = answered(coding, host, [host.write("a.txt", "new"), PASSED])

    assert run.status is RunStatus.COMPLETED
    assert coding.events(run)[-2:] == ["contract.met", "run.completed"]


def test_a_change_elsewhere_that_was_taken_back_is_none(coding: Coding, tmp_path: Path) -> None:
    contract = Contract(require_workspace_mutation=True, max_corrections=0)
    coding.deploy(contract, PATCH, PATCH, DONE)
    host = elsewhere(coding, tmp_path, coding.start())

    run = answered(coding, host, [host.write("a.txt", "new"), (host.folder / "a.txt").unlink])

    assert run.outcome == "contract_unmet"


def test_files_that_somebody_else_has_changed_have_to_be_tested_again(
    coding: Coding, tmp_path: Path
) -> None:
    contract = Contract(require_focused_verification=True, max_corrections=0)
    coding.deploy(contract, PATCH, CHECK, PATCH, DONE)
    host = elsewhere(coding, tmp_path, coding.start())
    run = answered(coding, host, [host.write("a.txt", "new"), PASSED])
    host.write("a.txt", "by somebody else")()
    host.submit(host.receipt())
    assert coding.go_on(run.run_id).status is RunStatus.NEEDS_ATTENTION
    coding.client.resolve(run.run_id, "4.0", TookEffect("looked"))

    run = coding.go_on(run.run_id)

    assert run.outcome == "contract_unmet"
    assert "before the last change" in str(run.error)


def test_tests_that_were_asked_for_before_a_change_do_not_show_that_it_works(
    coding: Coding, tmp_path: Path
) -> None:
    """Both were requested at once: the tests may have run on the old files, whenever they ended."""
    contract = Contract(require_focused_verification=True, max_corrections=0)
    coding.deploy(contract, Turn(calls=(*CHECK.calls, *PATCH.calls)), DONE)
    run_id = coding.start()
    host = elsewhere(coding, tmp_path, run_id)
    coding.go_on(run_id)

    host.submit(host.receipt(host.write("a.txt", "new")))
    coding.client.submit(run_id, {"0.0": PASSED})

    assert coding.go_on(run_id).outcome == "contract_unmet"


# The audit ---------------------------------------------------------------------------------------


def test_the_audit_finds_a_run_that_completed_without_what_its_contract_requires(
    coding: Coding,
) -> None:
    run = coding.run(MUTATED, write(), DONE)
    assert audit(coding.database) == []
    with coding.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE celeriac.effect_attempts SET evidence = evidence - 'changes' WHERE run_id = %s",
            (run.run_id,),
        )

    (violation,) = audit(coding.database)

    assert (violation.invariant, violation.run_id) == (4, run.run_id)
    assert "has met it: require_workspace_mutation" in violation.detail
    assert audit(coding.database, run.run_id) == [violation]
    with coding.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE celeriac.runs SET contract = NULL")


def test_a_rollback_after_the_end_takes_nothing_back_from_the_judgement(coding: Coding) -> None:
    run = coding.run(MUTATED, write(), DONE)

    back = coding.go_on(coding.client.rollback(run.run_id).run_id)

    assert back.status is RunStatus.COMPLETED, back.error
    assert not (coding.folder / "a.py").exists()
    assert audit(coding.database) == []


def test_a_call_declared_not_done_is_no_change(coding: Coding, tmp_path: Path) -> None:
    contract = Contract(require_workspace_mutation=True, max_corrections=0)
    coding.deploy(contract, PATCH, PATCH, DONE)
    host = elsewhere(coding, tmp_path, coding.start())
    run = answered(coding, host, [host.write("a.txt", "new")])
    host.write("a.txt", "by somebody else")()
    host.submit(host.receipt())
    coding.go_on(run.run_id)
    coding.client.resolve(run.run_id, "2.0", NotDone())

    run = answered(coding, host, [host.write("a.txt", "third")])

    assert run.status is RunStatus.COMPLETED
