"""What it costs to build a model's context, by how much was said before.

A worker that takes a run over reads the conversation from its end. For threads of 10, 1,000 and
10,000 messages of 1 KB, in one run that goes on or in an earlier one of the thread, this reads and
selects what fits the default context, as a worker does, and prints JSON lines: the median of ten.
`whole` reads all that there is instead.

Needs CELERIAC_DATABASE_URL, the URL of an empty or a migrated database; leaves its rows behind.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from sqlalchemy import Connection

from celeriac.codec import dumps
from celeriac.context_policy import ContextPolicy
from celeriac.ids import RunId, ThreadId, new_run_id, new_thread_id, new_worker_id
from celeriac.messages import dump_message, user_message
from celeriac.selection import select
from celeriac_storage import claims, starting, workers
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.schema import migrate
from celeriac_storage.starting import NewRun
from celeriac_storage.workers import WorkerInfo
from celeriac_tasks.lookback import load_end

AGENT = "bench-context"
MESSAGES = (10, 1_000, 10_000)
MESSAGE_BYTES = 1_024
ROOM = ContextPolicy().max_tokens
TIMES = 10
WORKER = new_worker_id()


def main() -> None:
    database = Database(os.environ["CELERIAC_DATABASE_URL"])
    migrate(database)
    with database.begin() as connection:
        starting.register_agent(connection, AGENT, "bench", {"name": AGENT})
        info = WorkerInfo(WORKER, "localhost", os.getpid(), "solo", [AGENT], ["celeriac"])
        workers.register(connection, info, lease_seconds=3600, has_lifeline=False)
    for where in ("one run", "an earlier run of the thread"):
        for count in MESSAGES:
            claim = conversation(database, where, count)
            with database.connect() as connection:
                connection.exec_driver_sql("ANALYZE celeriac.messages, celeriac.runs")
                report = {
                    "where": where,
                    "messages": count,
                    "milliseconds": median(build, connection, claim),
                    "whole_milliseconds": median(read_whole, connection, claim),
                    "messages_read": len(load_end(connection, claim, ROOM)),
                }
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


def build(connection: Connection, claim: Claim) -> None:
    select(load_end(connection, claim, ROOM), ROOM)


def read_whole(connection: Connection, claim: Claim) -> None:
    load_end(connection, claim, None)


def median(
    measured: Callable[[Connection, Claim], None], connection: Connection, claim: Claim
) -> float:
    seconds = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        measured(connection, claim)
        seconds.append(time.perf_counter() - begin)
    return round(statistics.median(seconds) * 1000, 1)


def conversation(database: Database, where: str, count: int) -> Claim:
    """A claimed run, before whose next step so many messages were said."""
    thread_id = new_thread_id()
    first = start(database, thread_id)
    say(database, first, count - 1)
    if where == "one run":
        return claim_of(database, first)
    with database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET status = 'running', worker_id = %s,"
            " claim_token = gen_random_uuid() WHERE run_id = %s",
            (WORKER, first),
        )
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET status = 'completed', phase = NULL, claim_token = NULL,"
            " outcome = 'completed', result = '\"done\"', finished_at = now() WHERE run_id = %s",
            (first,),
        )
    return claim_of(database, start(database, thread_id))


def start(database: Database, thread_id: ThreadId) -> RunId:
    run_id = new_run_id()
    prompt = dump_message(user_message("go on " + "x" * MESSAGE_BYTES))
    with database.begin() as connection:
        starting.start(connection, NewRun(run_id, AGENT, "go on", prompt, {}, thread_id))
    return run_id


def say(database: Database, run_id: RunId, count: int) -> None:
    body = {"kind": "response", "parts": [{"content": "y" * MESSAGE_BYTES}]}
    with database.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO celeriac.messages (run_id, position, role, body, hash)"
            " SELECT %(run_id)s, n, 'assistant', %(body)s::jsonb,"
            " sha256(convert_to(%(body)s::jsonb::text, 'UTF8'))"
            " FROM generate_series(1, %(n)s) AS n",
            {"run_id": run_id, "body": dumps(body), "n": count},
        )
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET message_count = %s WHERE run_id = %s", (count + 1, run_id)
        )


def claim_of(database: Database, run_id: RunId) -> Claim:
    with database.connect() as connection:
        claim = claims.claim(
            connection, run_id, 0, worker_id=WORKER, deadlines={AGENT: 600}, is_alone=True
        )
    assert claim is not None
    return claim


if __name__ == "__main__":
    main()
