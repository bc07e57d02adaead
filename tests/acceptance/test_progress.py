"""Where a run is, how far it may go, and when: told by its rows while no worker is left."""

import pytest

from tests.acceptance.shop import DEDUCT, NOTIFY, ORDER, Shop
from tests.acceptance.terminal import Terminal


# features: 002-07, 003-10
@pytest.mark.parametrize(
    ("point", "step", "phase", "pending"),
    [
        (f"think.before_model_call@{DEDUCT - 1}", DEDUCT - 1, "waiting_model", None),
        (f"think.after_model_call@{DEDUCT - 1}", DEDUCT - 1, "waiting_model", None),
        (f"act.after_tool@{DEDUCT}", DEDUCT, "waiting_tool", ["2.0"]),
        (f"act.after_call@{NOTIFY}", NOTIFY, "waiting_tool", ["4.0"]),
    ],
)
def test_what_a_run_waits_for_is_written_before_the_wait(
    shop: Shop, point: str, step: int, phase: str, pending: list[str] | None
) -> None:
    (worker,) = shop.open(workers=1, test_points=f"{point}=kill")

    run_id = shop.begin("order-desk", ORDER)
    shop.wait_for_death(worker)

    shop.shown(run_id, step=step, phase=phase)
    ((found,),) = shop.query(
        "SELECT state -> 'pending' FROM celeriac.checkpoints WHERE run_id = %s AND step = %s",
        run_id,
        step - 1,
    )
    assert found == pending


# features: 003-03
def test_a_limit_counts_the_steps_of_all_workers_together(terminal: Terminal) -> None:
    terminal.open()
    undisturbed = terminal.run("endless", "go", exit_code=1)
    for process in terminal.processes.started[1:]:
        process.kill_group()
    terminal.processes.start_workers(2, terminal.agents, test_points="step.after_claim@3=kill")

    killed = terminal.run("endless", "go", exit_code=1)

    assert (undisturbed["deaths"], killed["deaths"]) == (0, 1)
    for run in (undisturbed, killed):
        assert (run["status"], run["outcome"]) == ("failed", "limit_exceeded")
        assert "has used 5 of the 5 steps" in run["error"]["message"]
        assert terminal.calls(run["run_id"]) == ["look_up", "look_up"]
    assert [step["kind"] for step in killed["steps"]] == [
        step["kind"] for step in undisturbed["steps"]
    ]
    terminal.assert_sound()


# features: 003-14, 003-22
def test_a_runs_times_are_in_order_whoever_made_its_steps(terminal: Terminal) -> None:
    terminal.open(test_points="step.before_commit@1=kill")

    run = terminal.run("witness", "go")

    assert (run["deaths"], run["epoch"]) == (1, len(run["steps"]) + 1)
    times = [run["created_at"]]
    for step in run["steps"]:
        times += [step["started_at"], step["committed_at"]]
    assert times == sorted(times)
    assert times[-2] < run["finished_at"]
    assert terminal.query(
        "SELECT started_at BETWEEN created_at AND finished_at FROM celeriac.runs WHERE run_id = %s",
        run["run_id"],
    ) == [(True,)], "it has been running"
