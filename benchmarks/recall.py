"""Recalling from 100,000 memories of 1,000 users, and deciding about a candidate.

    python benchmarks/recall.py [USERS] [MEMORIES_OF_EACH]

Needs CELERIAC_DATABASE_URL: a migrated database of its own, which it fills in the tenant `recall`.
Prints one JSON line: the median and the 99th percentile, in milliseconds, of choosing what a model
call is shown, for a query of twelve words; the same for one user with the most memories that a
policy allows by default; and of the policy's decision.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy import Connection

from celeriac import MemoryCandidate, MemoryPolicy
from celeriac.ids import TenantId, UserId
from celeriac.memory import MemoryKind, Origin, Source
from celeriac.memory.recall import select
from celeriac.settings import settings
from celeriac_storage import memories
from celeriac_storage.database import Database, driver_of
from celeriac_storage.recalls import MOST_LOOKED_AT
from celeriac_storage.remembering import searched_words

TENANT = TenantId("recall")
SAMPLES = 2000
WORDS_OF_A_MEMORY, WORDS_OF_A_QUERY = 20, 12
POLICY = MemoryPolicy()
VOCABULARY = [
    first + middle + last
    for first in ("ba", "ke", "lo", "mi", "ru", "sa", "te", "vo", "wi", "zu")
    for middle in ("lan", "mer", "nis", "por", "qua", "ron", "sti", "tal", "ver", "win")
    for last in ("da", "ga", "ka", "ma", "na", "pa", "ra", "sa", "ta", "xa")
]

_DECIDE = """
INSERT INTO celeriac.memory_decisions (tenant_id, user_id, verdict, reason, namespace, memory_key,
    kind, content_hash, origin, proposed_by, policy_version)
SELECT %(tenant)s, user_id, 'allow', 'explicit_request', 'default', key, 'semantic',
    sha256(convert_to(to_jsonb(content)::text, 'UTF8')), 'person', 'benchmark', 'benchmark'
FROM filling
"""
_KEEP = """
INSERT INTO celeriac.memories (tenant_id, user_id, namespace, memory_key, kind, version, content,
    content_hash, search, decision_id)
SELECT tenant_id, user_id, namespace, memory_key, kind, 1, to_jsonb(content), '',
    to_tsvector('english', searched), decision_id
FROM filling JOIN celeriac.memory_decisions AS decided USING (user_id)
WHERE tenant_id = %(tenant)s AND memory_key = key
"""


def rows(users: int, of_each: int) -> Iterator[tuple[str, str, str, str]]:
    for user in range(users):
        for number in range(of_each if user else POLICY.most_memories):
            key = f"k{number}"
            content = " ".join(random.choices(VOCABULARY, k=WORDS_OF_A_MEMORY))  # noqa: S311
            yield f"user-{user}", key, content, searched_words(key, content)


def fill(connection: Connection, users: int, of_each: int) -> None:
    sql = connection.exec_driver_sql
    sql("CREATE TEMP TABLE filling (user_id text, key text, content text, searched text)")
    with (
        driver_of(connection).cursor() as cursor,
        cursor.copy("COPY filling FROM STDIN") as copy,
    ):
        for row in rows(users, of_each):
            copy.write_row(row)
    sql("INSERT INTO celeriac.tenants VALUES (%s)", (TENANT,))
    sql("INSERT INTO celeriac.users SELECT DISTINCT %s, user_id FROM filling", (TENANT,))
    sql(_DECIDE, {"tenant": TENANT})
    sql("ANALYZE celeriac.memory_decisions")
    sql("ANALYZE filling")
    sql(_KEEP, {"tenant": TENANT})


def percentiles(measure: Callable[[], object], samples: int) -> dict[str, float]:
    took = []
    for _ in range(samples):
        began = time.perf_counter()
        measure()
        took.append((time.perf_counter() - began) * 1000)
    return {
        "median_ms": round(statistics.median(took), 2),
        "p99_ms": round(statistics.quantiles(took, n=100)[98], 2),
    }


def main(users: int, of_each: int) -> dict[str, object]:
    url = settings().database_url
    assert url is not None, "set CELERIAC_DATABASE_URL"
    database = Database(url.get_secret_value(), connections=1)
    with database.begin() as connection:
        fill(connection, users, of_each)
    with database.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE celeriac.memories")

        def recall(user: str) -> None:
            query = " ".join(random.choices(VOCABULARY, k=WORDS_OF_A_QUERY))  # noqa: S311
            found, count = memories.rank(
                connection,
                TENANT,
                UserId(user),
                query,
                namespaces=POLICY.namespaces,
                limit=MOST_LOOKED_AT,
            )
            select(found, POLICY.recall_tokens, POLICY.recall_most, count)

        candidate = MemoryCandidate(
            owner_id=UserId("user-1"),
            key="seat",
            value=" ".join(VOCABULARY[:WORDS_OF_A_MEMORY]),
            kind=MemoryKind.SEMANTIC,
            explicit_user_request=True,
            source=Source(Origin.USER),
        )
        assert POLICY.evaluate(candidate).store  # imports the detectors
        return {
            "memories": connection.exec_driver_sql(
                "SELECT count(*) FROM celeriac.memories WHERE tenant_id = %s", (TENANT,)
            ).scalar_one(),
            "users": users,
            "recall": percentiles(
                lambda: recall(f"user-{random.randrange(1, users)}"),  # noqa: S311
                SAMPLES,
            ),
            "recall_of_the_fullest": percentiles(lambda: recall("user-0"), SAMPLES // 4),
            "decision": percentiles(lambda: POLICY.evaluate(candidate), SAMPLES),
        }


if __name__ == "__main__":
    users, of_each, *_ = [*map(int, sys.argv[1:3]), *(1000, 100)[len(sys.argv) - 1 :]]
    sys.stdout.write(json.dumps(main(users, of_each)) + "\n")
