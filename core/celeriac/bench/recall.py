"""Choosing what a model is shown: of a user's memories, and of a long conversation.

Everything is filled and measured in one transaction that is rolled back, so nothing of it is left.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from sqlalchemy import Connection

from celeriac.bench.context import measure_contexts
from celeriac.codec import JsonValue
from celeriac.ids import TenantId, UserId
from celeriac.memory import (
    MemoryCandidate,
    MemoryKind,
    MemoryPolicy,
    Origin,
    Source,
    StaticEmbedder,
)
from celeriac.memory.recall import select
from celeriac_storage import measuring_memory, memory_vectors
from celeriac_storage.database import Database, driver_of
from celeriac_storage.measuring_memory import EMBEDDER, Filled
from celeriac_storage.ranking import Meaning, rank
from celeriac_storage.recalls import MOST_LOOKED_AT
from celeriac_storage.remembering import searched_words

WORDS_OF_A_MEMORY, WORDS_OF_A_QUERY = 20, 12
DIMENSIONS = 256
FULLEST_SHARE = 4  # one sample in so many is of the user with the most memories
POLICY = MemoryPolicy()
_VOCABULARY = [
    first + middle + last
    for first in ("ba", "ke", "lo", "mi", "ru", "sa", "te", "vo", "wi", "zu")
    for middle in ("lan", "mer", "nis", "por", "qua", "ron", "sti", "tal", "ver", "win")
    for last in ("da", "ga", "ka", "ma", "na", "pa", "ra", "sa", "ta", "xa")
]

Figures = dict[str, JsonValue]


def measure_recall(database: Database, users: int, of_each: int, samples: int) -> Iterator[Figures]:
    """One line for each measurement; `median_ms` and `p99_ms` are milliseconds.

    `users` have `of_each` memories, and one more the most that a policy keeps by default. Each
    sample takes a user at random and looks for a few words, once by them alone, then with vectors.
    """
    tenant_id = TenantId(f"bench-{random.getrandbits(64):x}")
    with _passing(database) as connection:
        count = measuring_memory.fill_memories(connection, tenant_id, _memories(users, of_each))
        for with_vectors in (False, True):
            if with_vectors:
                measuring_memory.fill_vectors(connection, tenant_id, DIMENSIONS)
            for of_user, user_ids, times in (
                (of_each, [f"user-{number}" for number in range(users)], samples),
                (POLICY.most_memories, ["fullest"], max(1, samples // FULLEST_SHARE)),
            ):
                recall = _Recall(connection, tenant_id, user_ids, with_vectors)
                yield {
                    "measure": "recall",
                    "ranked_by": recall.ranked_by,
                    "memories": count,
                    "users": users + 1,
                    "memories_of_user": of_user,
                    **_milliseconds(recall, times),
                }
    yield {"measure": "decision", **_milliseconds(_decision(), samples)}
    if find_spec("wordllama") is not None:
        model = StaticEmbedder()
        yield {
            "measure": "embedding",
            "embedder": model.name,
            **_milliseconds(lambda: model.embed([_words(WORDS_OF_A_QUERY)]), samples),
        }
    with _passing(database) as connection:
        yield from measure_contexts(connection, samples)


@contextmanager
def _passing(database: Database) -> Iterator[Connection]:
    """A transaction of which nothing is left."""
    with database.begin() as connection:
        yield connection
        driver_of(connection).rollback()


class _Recall:
    """What a worker does for a step, besides the embedder's work."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: TenantId,
        user_ids: list[str],
        with_vectors: bool,
    ) -> None:
        self._connection = connection
        self._tenant_id = tenant_id
        self._user_ids = user_ids
        self._with_vectors = with_vectors

    @property
    def ranked_by(self) -> str:
        if not self._with_vectors:
            return "words"
        has_extension = "OPERATOR" in memory_vectors.distance(self._connection)
        return "words, pgvector" if has_extension else "words, arrays"

    def __call__(self) -> None:
        user_id = UserId(random.choice(self._user_ids))  # noqa: S311
        meaning = self._meaning(user_id) if self._with_vectors else None
        found, count = rank(
            self._connection,
            self._tenant_id,
            user_id,
            _words(WORDS_OF_A_QUERY),
            namespaces=POLICY.namespaces,
            limit=MOST_LOOKED_AT,
            meaning=meaning,
        )
        select(found, POLICY.recall_tokens, POLICY.recall_most, count)

    def _meaning(self, user_id: UserId) -> Meaning:
        lacking = memory_vectors.lacking(
            self._connection,
            self._tenant_id,
            user_id,
            EMBEDDER,
            namespaces=POLICY.namespaces,
            limit=1,
        )
        assert lacking == []
        return Meaning(EMBEDDER, [random.uniform(-0.1, 0.1) for _ in range(DIMENSIONS)])  # noqa: S311


def _decision() -> Callable[[], object]:
    candidate = MemoryCandidate(
        owner_id=UserId("user-1"),
        key="seat",
        value=_words(WORDS_OF_A_MEMORY),
        kind=MemoryKind.SEMANTIC,
        explicit_user_request=True,
        source=Source(Origin.USER),
    )
    return lambda: POLICY.evaluate(candidate)


def _memories(users: int, of_each: int) -> Iterator[Filled]:
    for user_id, count in (
        *((f"user-{number}", of_each) for number in range(users)),
        ("fullest", POLICY.most_memories),
    ):
        for number in range(count):
            key, content = f"k{number}", _words(WORDS_OF_A_MEMORY)
            yield Filled(user_id, key, content, searched_words(key, content))


def _words(count: int) -> str:
    return " ".join(random.choices(_VOCABULARY, k=count))  # noqa: S311


def _milliseconds(measured: Callable[[], object], samples: int) -> Figures:
    measured()  # loads what is loaded once
    took = []
    for _ in range(samples):
        began = time.perf_counter()
        measured()
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    return {
        "median_ms": round(statistics.median(took), 2),
        "p99_ms": round(took[min(len(took) - 1, len(took) * 99 // 100)], 2),
    }
