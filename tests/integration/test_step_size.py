"""What a step writes does not grow with what the run has behind it."""

# features: 004-10
from celeriac import Agent, Client, Limits, Plan, PlanRunner, PlanStep, ToolContext, tool
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, call
from celeriac_storage.database import Database
from tests.family import Family
from tests.worker_in_process import Worker

STEPS, WINDOW = 200, 20
TABLES = ("checkpoints", "messages", "events", "effects", "effect_attempts", "model_calls")
DIGITS = 1.05  # step 180 is written with a digit more than step 18


@tool(effect="transactional")
def book(ctx: ToolContext, pages: str) -> str:
    """Write a row."""
    ctx.connection.exec_driver_sql("SELECT 1")
    return pages


def bytes_of(database: Database, run_id: RunId, table: str) -> int:
    """Of all rows of the run in the table."""
    with database.connect() as connection:
        size: int = connection.exec_driver_sql(
            f"SELECT coalesce(sum(pg_column_size(this)), 0) FROM celeriac.{table} AS this"
            " WHERE run_id = %s",
            (run_id,),
        ).scalar_one()
    return size


def test_a_step_late_in_a_run_writes_as_much_as_an_early_one(
    database: Database, broker_url: str
) -> None:
    # The same 1 KB each time, so that what differs is what the runtime itself adds.
    model = ScriptedModel(lambda _: call("book", pages="x" * 1024))
    agent = Agent("clerk", model, tools=[book], limits=Limits(steps=10**6, tool_calls=10**6))
    worker = Worker(database.url, broker_url, [agent])
    worker.process.start()
    with Client(database.url) as client:
        run_id = client.start(agent, "go").run_id
    added: list[int] = []
    rewritten: list[int] = []
    before = 0
    for step in range(STEPS):
        worker.step(run_id)
        if (step + 1) % WINDOW == 0:
            now = sum(bytes_of(database, run_id, table) for table in TABLES)
            added.append(now - before)
            rewritten.append(bytes_of(database, run_id, "runs"))
            before = now
    reached = worker.row(run_id).step
    worker.process.stop()

    assert reached == STEPS
    assert max(added) <= DIGITS * added[1], added  # the first window has the start in it
    assert max(rewritten) <= DIGITS * min(rewritten), rewritten
    with database.connect() as connection:
        largest = connection.exec_driver_sql(
            "SELECT max(pg_column_size(state)) FROM celeriac.checkpoints WHERE run_id = %s",
            (run_id,),
        ).scalar_one()
    assert largest < 200  # only ids of pending calls and counters, however long the run is


@tool(effect="none")
def turn(page: int) -> int:
    """Turn a page."""
    return page


def test_a_plan_writes_as_much_for_its_last_steps_as_for_its_first(
    database_url: str, broker_url: str
) -> None:
    runner = PlanRunner("plans", [turn])
    chain = [
        PlanStep(f"s{n:03}", tool="turn", arguments={"page": 1000 + n},
                 needs=[f"s{n - 1:03}"] if n else [])
        for n in range(STEPS)
    ]  # fmt: skip
    family = Family(database_url, broker_url, [runner])
    run_id = family.client.start_plan(Plan(chain)).run_id
    added: list[int] = []
    rewritten: list[int] = []
    before = 0
    for done in range(WINDOW, STEPS + 1, WINDOW):
        while family.worker.row(run_id).step < done:
            family.step(run_id)
            activity = family.rows(
                "SELECT run_id FROM celeriac.runs WHERE status = 'queued' AND run_id <> %s", run_id
            )
            family.step(activity[0][0])
        now = sum(
            bytes_of(family.database, run_id, table) for table in (*TABLES, "activities", "plans")
        )
        added.append(now - before)
        rewritten.append(bytes_of(family.database, run_id, "runs"))
        before = now
    family.go_on()
    status = family.run(run_id).status
    violations = family.violations()
    family.close()

    assert (status, violations) == ("completed", [])
    assert max(added[1:]) <= DIGITS * added[1], added  # the first window has the plan in it
    assert max(rewritten) <= DIGITS * min(rewritten), rewritten
