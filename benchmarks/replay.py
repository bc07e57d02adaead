"""What a workflow's code costs, without servers: to replay a log from its start, and to go on entry
by entry where it is in memory. The workflow calls a tool with two arguments, in sequence or fanned
out. Prints JSON lines of CPU time, of replays the median of five.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from celeriac import Workflow, WorkflowContext, tool, workflow
from celeriac.workflows.entry import Entry
from celeriac.workflows.flow import Flow

ENTRIES = (10, 100, 1_000, 10_000)
TIMES = 5
NOW = datetime.now(UTC)


@tool(effect="none")
def reserve(sku: str, quantity: int) -> str:
    """Reserve pieces of an article."""
    return f"{quantity} of {sku}"


@workflow(tools=[reserve])
async def in_sequence(ctx: WorkflowContext, count: int) -> None:
    for number in range(count):
        await ctx.activity(reserve, sku="A-1", quantity=number)


@workflow(tools=[reserve])
async def fanned_out(ctx: WorkflowContext, count: int) -> None:
    await ctx.gather(
        *(ctx.activity(reserve, sku="A-1", quantity=number) for number in range(count))
    )


def main() -> None:
    for declared in (in_sequence, fanned_out):
        for count in ENTRIES:
            log, turn_seconds = played(declared, count)
            replay_seconds = median(lambda: Flow(declared, count, NOW).advance(log))  # noqa: B023 - called at once
            report = {
                "workflow": declared.name,
                "entries": count,
                "replay_milliseconds": round(1_000 * replay_seconds, 2),
                "replay_microseconds_per_entry": round(1_000_000 * replay_seconds / count, 1),
                "turn_microseconds_per_entry": round(1_000_000 * turn_seconds / count, 1),
            }
            sys.stdout.write(json.dumps(report) + "\n")


def played(declared: Workflow[None], count: int) -> tuple[list[Entry], float]:
    """The log of a run, and the seconds that the code took, being in memory all the time."""
    flow = Flow(declared, count, NOW)
    log: list[Entry] = []
    began = time.process_time()
    new = list[Entry]()
    while True:
        turn = flow.advance(new)
        flow.committed()
        new = [Entry(asked, len(log) + at, "1 of A-1") for at, asked in enumerate(turn.asked)]
        log += new
        if turn.end is not None:
            return log, time.process_time() - began


def median(measured: Callable[[], object]) -> float:
    seconds: list[float] = []
    for _ in range(TIMES):
        began = time.process_time()
        measured()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
