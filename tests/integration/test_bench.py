"""`celeriac bench` measures real processes; here, as little as it takes to see each figure."""

import json
from typing import Any

import pytest

from celeriac_storage import measuring
from celeriac_storage.database import Database
from tests.processes import Processes
from tests.steps_by_hand import Hand

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


@on_redis
@pytest.mark.processes
def test_growth_is_measured_along_one_run(processes: Processes) -> None:
    points = measure(processes, "growth", "--steps", "40", "--effects")["points"]

    assert [point["step"] for point in points] == sorted({20, *range(4, 41, 4)})
    assert all(point["milliseconds"] > 0.0 for point in points)
    sizes = [point["bytes"] for point in points]
    assert 0 < sizes[-1] == max(sizes)


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
