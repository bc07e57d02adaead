"""The program `celeriac`: the list of its commands."""

from celeriac.cli import (
    api,
    approvals,
    attest,
    audit,
    bench,
    budgets,
    calls,
    decisions,
    demo,
    doctor,
    erase,
    events,
    flower,
    health,
    memories,
    plans,
    principals,
    processes,
    prune,
    replays,
    rollback,
    runs,
    schedules,
    starting,
    tokens,
    up,
    workers,
    workspaces,
)
from celeriac.cli.application import application

app = application()

for command in (
    up.up,
    demo.demo,
    processes.migrate,
    processes.worker,
    processes.scheduler,
    api.api,
    flower.flower,
    doctor.doctor,
    health.health,
    workers.agents,
    starting.run,
    runs.show,
    runs.runs,
    starting.wait,
    events.events,
    workers.workers,
    decisions.say,
    decisions.send_event,
    decisions.interrupt,
    decisions.cancel,
    decisions.resolve,
    decisions.retry,
    decisions.fork,
    replays.replay,
    replays.diff,
    rollback.rollback,
    calls.calls,
    calls.submit,
    approvals.approvals,
    approvals.approve,
    approvals.edit,
    approvals.reject,
    principals.principals,
    prune.prune,
    attest.attest,
    audit.audit,
):
    app.command()(command)
app.add_typer(schedules.schedules, name="schedules")
app.add_typer(plans.plan, name="plan")
app.add_typer(tokens.token, name="token")
app.add_typer(memories.memories, name="memories")
app.add_typer(budgets.budgets, name="budgets")
app.add_typer(bench.bench, name="bench")
app.add_typer(workspaces.workspaces, name="workspaces")
app.add_typer(erase.erase, name="erase")


if __name__ == "__main__":
    app()
