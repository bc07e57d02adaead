"""`celeriac bench` measures real processes; here, as little as it takes to see each figure."""

import json
import signal
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from celeriac.bench import failover
from celeriac.client import Client
from celeriac_storage import measuring
from celeriac_storage.database import Database
from tests.processes import Processes
from tests.steps_by_hand import Hand
from tests.waiting import eventually

BENCH_SECONDS = 110.0
on_redis = pytest.mark.parametrize("broker", ["redis"])
"""The measured processes serve the queue `celeriac`, which on RabbitMQ is everybody's."""


def measure(processes: Processes, *arguments: str) -> Any:
    process = processes.start(["bench", *arguments, "--json"])
    exit_code = process.wait(BENCH_SECONDS)
    assert exit_code == 0, process.output
    return json.loads(process.output.splitlines()[-1])


@on_redis
@pytest.mark.processes
def test_failover_is_measured_from_a_kill_to_the_next_claim(processes: Processes) -> None:
    figures = measure(processes, "failover", "--kills", "1")

    assert 0.0 < figures.pop("median_seconds") == figures.pop("p99_seconds") < 30.0
    assert figures == {"kills": 1, "doubled_effects": 0, "lost_runs": 0}


class NoProcesses:
    """As if every worker were lost."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "NoProcesses":
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: SimpleNamespace(pid=-1)


def test_a_run_that_does_not_come_back_is_counted_as_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "Processes", NoProcesses)
    monkeypatch.setattr(failover, "REACH_SECONDS", 0.1)
    monkeypatch.setattr(failover, "LOST_SECONDS", 0.1)

    with Client(database.url) as client:
        figures = failover.measure_failover(client, database, kills=2)

    assert (figures.kills, figures.lost_runs, figures.median_seconds) == (0, 2, None)


@on_redis
@pytest.mark.processes
def test_no_process_outlives_a_measurement_that_is_killed(processes: Processes) -> None:
    bench = processes.start(["bench", "growth", "--steps", "100000", "--json"])
    started = eventually(lambda: bench.pids[1:], until=lambda pids: len(pids) == 2)
    children = [psutil.Process(pid) for pid in started]

    bench.send(signal.SIGTERM)
    bench.wait(BENCH_SECONDS)

    _, left = psutil.wait_procs(children, timeout=30)
    assert left == []


@on_redis
@pytest.mark.processes
def test_growth_is_measured_along_one_run(processes: Processes) -> None:
    points = measure(processes, "growth", "--steps", "40", "--effects")["points"]

    assert [point["step"] for point in points] == sorted({20, *range(4, 41, 4)})
    assert all(point["milliseconds"] > 0.0 for point in points)
    sizes = [point["bytes"] for point in points]
    assert 0 < sizes[-1] == max(sizes)


@on_redis
@pytest.mark.processes
def test_recall_is_measured_and_leaves_nothing(processes: Processes, database: Database) -> None:
    arguments = ["--users", "3", "--memories", "5", "--samples", "1"]
    process = processes.start(["bench", "recall", *arguments, "--json"])
    exit_code = process.wait(BENCH_SECONDS)
    assert exit_code == 0, process.output

    lines = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    recalls = [line for line in lines if line["measure"] == "recall"]
    assert [(line["ranked_by"], line["memories_of_user"]) for line in recalls] == [
        ("words", 5),
        ("words", 1000),
        ("words, arrays", 5),
        ("words, arrays", 1000),
    ]
    assert all(0 < line["median_ms"] <= line["p99_ms"] for line in recalls)
    contexts = [line for line in lines if line["measure"] == "context"]
    assert [line["messages"] for line in contexts] == [10, 1_000, 10_000] * 2
    with database.connect() as connection:
        for table in ("memories", "memory_decisions", "runs", "workers", "tenants"):
            rows = connection.exec_driver_sql(f"SELECT FROM celeriac.{table}").all()
            assert rows == [], table


def test_only_a_row_beyond_one_for_each_call_counts_as_doubled(database: Database) -> None:
    hand = Hand(database)
    run_id, other = hand.start(), hand.start()
    calls = hand.ask_for_calls(run_id, count=2)
    with database.begin() as connection:
        measuring.create_tables(connection)
        measuring.create_tables(connection)  # there already
        for run, call in ((run_id, calls[0]), (run_id, calls[1]), (other, calls[0])):
            measuring.insert_effect(connection, run, call)
        assert measuring.count_doubled_effects(connection, [run_id, other]) == 0

        measuring.insert_effect(connection, run_id, calls[1])

        assert measuring.count_doubled_effects(connection, [run_id, other]) == 1
        assert measuring.count_doubled_effects(connection, [other]) == 0
