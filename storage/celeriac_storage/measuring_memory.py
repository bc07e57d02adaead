"""Rows to measure recalling and the building of contexts on, in a transaction to be rolled back."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import RunId, TenantId
from celeriac_storage.database import driver_of

EMBEDDER = "measured"

_DECIDE = """
INSERT INTO celeriac.memory_decisions (tenant_id, user_id, verdict, reason, namespace, memory_key,
    kind, content_hash, origin, proposed_by, policy_version)
SELECT %(tenant_id)s, user_id, 'allow', 'explicit_request', 'default', key, 'semantic',
    sha256(convert_to(to_jsonb(content)::text, 'UTF8')), 'person', 'measurement', 'measurement'
FROM filling
"""
_KEEP = """
INSERT INTO celeriac.memories (tenant_id, user_id, namespace, memory_key, kind, version, content,
    content_hash, search, decision_id)
SELECT tenant_id, user_id, namespace, memory_key, kind, 1, to_jsonb(content), '',
    to_tsvector('english', searched), decision_id
FROM filling JOIN celeriac.memory_decisions AS decided USING (user_id)
WHERE tenant_id = %(tenant_id)s AND memory_key = key
"""


class Filled(NamedTuple):
    """A memory to be there."""

    user_id: str
    key: str
    content: str
    searched: str  # its words


def fill_memories(connection: Connection, tenant_id: TenantId, rows: Iterable[Filled]) -> int:
    """Have these memories kept, in a tenant that there is not yet; how many they are."""
    sql = connection.exec_driver_sql
    sql("CREATE TEMP TABLE filling (user_id text, key text, content text, searched text)")
    with (
        driver_of(connection).cursor() as cursor,
        cursor.copy("COPY filling FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)
    sql("INSERT INTO celeriac.tenants VALUES (%s)", (tenant_id,))
    sql("INSERT INTO celeriac.users SELECT DISTINCT %s, user_id FROM filling", (tenant_id,))
    sql(_DECIDE, {"tenant_id": tenant_id})
    sql("ANALYZE celeriac.memory_decisions")
    sql("ANALYZE filling")
    kept = sql(_KEEP, {"tenant_id": tenant_id}).rowcount
    sql("ANALYZE celeriac.memories")
    return kept


def fill_vectors(connection: Connection, tenant_id: TenantId, dimensions: int) -> None:
    """Give each memory of the tenant a vector of random numbers: how long it takes to compare them
    does not depend on what they say."""
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.memory_vectors (tenant_id, user_id, namespace, memory_key, embedder,
            version, embedding)
        SELECT tenant_id, user_id, namespace, memory_key, %s, version, ARRAY(
            SELECT ((random() - 0.5) * 0.2)::real FROM generate_series(1, %s)
            WHERE memory_key IS NOT NULL)  -- or one array would do for all
        FROM celeriac.memories WHERE tenant_id = %s
        """,
        (EMBEDDER, dimensions, tenant_id),
    )
    connection.exec_driver_sql("ANALYZE celeriac.memory_vectors")


def add_messages(connection: Connection, run_id: RunId, body: JsonValue, count: int) -> None:
    """Have the model say the same so many times, after what opens the run."""
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
    connection.exec_driver_sql("ANALYZE celeriac.messages")


def complete(connection: Connection, run_id: RunId) -> None:
    """End a run that somebody has claimed."""
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET status = 'completed', phase = NULL, claim_token = NULL,"
        " outcome = 'completed', result = '\"done\"', finished_at = clock_timestamp()"
        " WHERE run_id = %s",
        (run_id,),
    )
