"""What it costs to build a model's context, by how much was said before.

A worker that takes a run over reads the conversation from its end. For threads of 10, 1,000 and
10,000 messages of 1 KB, in one run that goes on or in an earlier one of the thread, this reads and
selects what fits the default context, as a worker does; and beside it, reads all that there is.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.context_policy import ContextPolicy
from celeriac.ids import RunId, ThreadId, WorkerId, new_run_id, new_thread_id, new_worker_id
from celeriac.prompt import prompt_body
from celeriac.selection import select
from celeriac_storage import agents, claims, measuring_memory, starting, workers
from celeriac_storage.claims import Claim
from celeriac_storage.new_run import NewRun
from celeriac_storage.workers import WorkerInfo
from celeriac_tasks.lookback import Log, load_end

AGENT = "bench-context"
MESSAGES = (10, 1_000, 10_000)
MESSAGE_BYTES = 1_024
ROOM = ContextPolicy().max_tokens
MOST_TIMES = 10
PLACES = {"one run": False, "an earlier run of the thread": True}


def measure_contexts(connection: Connection, samples: int) -> Iterator[dict[str, JsonValue]]:
    """One line for each place and number of messages, of so many samples, but at most `MOST_TIMES`.
    Needs a transaction, to be rolled back."""
    times = min(samples, MOST_TIMES)
    worker_id = new_worker_id()
    agents.register_agent(connection, AGENT, "bench", {"name": AGENT})
    info = WorkerInfo(worker_id, "localhost", os.getpid(), "solo", [AGENT], ["celeriac"])
    workers.register(connection, info, lease_seconds=3600, has_lifeline=False)
    for where, is_earlier in PLACES.items():
        for count in MESSAGES:
            claim = _conversation(connection, worker_id, count, is_earlier=is_earlier)
            log = Log(claim.run_id, claim.message_count, has_givers=False)
            read = load_end(connection, log, ROOM)
            yield {
                "measure": "context",
                "where": where,
                "messages": count,
                "messages_read": len(read),
                "median_ms": _median(partial(_build, connection, log), times),
                "whole_median_ms": _median(partial(load_end, connection, log, None), times),
            }


def _build(connection: Connection, log: Log) -> None:
    select(load_end(connection, log, ROOM), ROOM)


def _median(measured: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        measured()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1000, 1)


def _conversation(
    connection: Connection, worker_id: WorkerId, count: int, *, is_earlier: bool
) -> Claim:
    """A claimed run, before whose next step so many messages were said."""
    thread_id = new_thread_id()
    first = _start(connection, thread_id)
    said: JsonValue = {"kind": "response", "parts": [{"content": "y" * MESSAGE_BYTES}]}
    measuring_memory.add_messages(connection, first, said, count - 1)
    claim = _claim(connection, worker_id, first)
    if not is_earlier:
        return claim
    measuring_memory.complete(connection, first)
    return _claim(connection, worker_id, _start(connection, thread_id))


def _start(connection: Connection, thread_id: ThreadId) -> RunId:
    run_id = new_run_id()
    prompt = prompt_body("go on " + "x" * MESSAGE_BYTES)
    starting.start(connection, NewRun(run_id, AGENT, "go on", prompt, {}, thread_id))
    return run_id


def _claim(connection: Connection, worker_id: WorkerId, run_id: RunId) -> Claim:
    claim = claims.claim(
        connection, run_id, 0, worker_id=worker_id, deadlines={AGENT: 600}, is_alone=True
    )
    assert claim is not None
    return claim
