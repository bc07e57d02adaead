"""What clients ask about memories: look at them, put one in, have it forgotten, export all."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.named import run_named, user_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import (
    LONGEST_PAGE,
    Flow,
    delete,
    get,
    pages,
    put,
    refuse_speaker,
)
from celeriac.codec import JsonValue
from celeriac.ids import TenantId, UserId
from celeriac.memory.candidate import (
    DEFAULT_NAMESPACE,
    MemoryCandidate,
    MemoryKind,
    Origin,
    Source,
    checked_key,
)
from celeriac.memory.policy import MemoryPolicy
from celeriac.reports import FoundMemories, Memory, MemoryDecision, MemoryExport, Remembered
from celeriac.schemas import strict_json
from celeriac_storage import memories, ranking
from celeriac_storage import remembering as storage
from celeriac_storage.owners import know_user
from celeriac_storage.tenancy import Transactions
from celeriac_tasks.embedding import configured, meaning_of

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk

EXPORTED_DECISIONS = 10_000
"""The latest ones, in one export."""


@dataclass(frozen=True, slots=True)
class Remember(Operation[Remembered]):
    """Have the default policy decide about what a person puts in for the owner, and keep it."""

    tenant_id: TenantId
    owner_id: UserId
    namespace: str
    key: str
    value: JsonValue
    kind: str
    by: UserId
    replaces_version: int | None = None
    expires_days: float | None = None

    def act(self, connection: Connection) -> Remembered:
        candidate = MemoryCandidate(
            owner_id=self.owner_id,
            key=self.key,
            value=self.value,
            kind=self.kind,
            explicit_user_request=True,
            namespace=self.namespace,
            expires_days=self.expires_days,
            source=Source(Origin.PERSON),
        )
        # Whoever may put it in may name the place: an agent's own policy says what it recalls.
        policy = MemoryPolicy(namespaces=[self.namespace])
        know_user(connection, self.tenant_id, self.owner_id)
        done = storage.remember(
            connection,
            self.tenant_id,
            candidate,
            policy,
            proposed_by=self.by,
            replaces_version=self.replaces_version,
        )
        decision = done.decision
        return Remembered(
            done.decision_id, decision.store, decision.reason, decision.why, done.version
        )


@dataclass(frozen=True, slots=True)
class Forget(Operation[None]):
    """Delete what is remembered under a key. Raises `UnknownMemory` if there is nothing."""

    tenant_id: TenantId
    owner_id: UserId
    namespace: str
    key: str
    by: UserId

    def act(self, connection: Connection) -> None:
        if not memories.forget(
            connection, self.tenant_id, self.owner_id, self.namespace, self.key, by=self.by
        ):
            raise memories.unknown_memory(self.owner_id, self.namespace, self.key)


def export(connection: Connection, tenant_id: TenantId, owner_id: UserId) -> MemoryExport:
    """All that is remembered of the user, with what was decided, the latest first."""
    return MemoryExport(
        owner_id,
        memories.list_memories(connection, tenant_id, owner_id, limit=memories.MOST_EXPORTED),
        memories.list_decisions(connection, tenant_id, owner_id, limit=EXPORTED_DECISIONS),
    )


def list_memories(
    user_id: str,
    *,
    namespace: str | None = None,
    kind: MemoryKind | None = None,
    limit: int = 100,
) -> Ask[list[Memory]]:
    """What is remembered of the user, the latest first; in that namespace, of that kind."""
    user = user_named(user_id)

    def in_database(desk: "DatabaseDesk") -> list[Memory]:
        return desk.read(
            lambda connection: memories.list_memories(
                connection,
                desk.tenant_id,
                user,
                namespace=namespace,
                kind=kind,
                limit=limit,
            )
        )

    def over_http() -> Flow[list[Memory]]:
        asked = {"user_id": user, "namespace": namespace, "kind": kind}
        return (yield from pages("/v1/memories", "memories", reader(Memory), limit, asked))

    return Ask(in_database, over_http)


def search_memories(
    query: str,
    *,
    user_id: str,
    namespace: str | None = None,
    kind: MemoryKind | None = None,
    limit: int = 50,
) -> Ask[FoundMemories]:
    """What is remembered of the user and has to do with `query`, at most 200. With
    `CELERIAC_EMBEDDER`, over HTTP the API's, by words and meaning together, the best first; else
    what has one of the words, the latest first. `found_by` says which."""
    user, most = user_named(user_id), min(limit, LONGEST_PAGE)

    def in_database(desk: "DatabaseDesk") -> FoundMemories:
        found = find_by_meaning(
            desk.ready(),
            desk.tenant_id,
            user,
            query,
            embedder=desk.embedder,
            namespace=namespace,
            kind=kind,
            limit=most,
        )
        if found is not None:
            return found
        by_words = desk.read(
            lambda connection: memories.list_memories(
                connection,
                desk.tenant_id,
                user,
                namespace=namespace,
                kind=kind,
                query=query,
                limit=most,
            )
        )
        return FoundMemories(by_words, ranking.ways_of_listing(query))

    def over_http() -> Flow[FoundMemories]:
        asked = {"user_id": user, "namespace": namespace, "kind": kind, "query": query}
        return reader(FoundMemories)((yield get("/v1/memories", **asked, limit=most)))

    return Ask(in_database, over_http)


def find_by_meaning(
    transactions: Transactions,
    tenant_id: TenantId,
    owner_id: UserId,
    query: str,
    *,
    embedder: str | None,
    namespace: str | None,
    kind: MemoryKind | None,
    limit: int,
) -> FoundMemories | None:
    """What `query` finds by words and meaning together, the best first; None if only words are
    left: without an embedder, which is named as in `CELERIAC_EMBEDDER`, without a query, and if the
    embedder fails."""
    namespaces = None if namespace is None else [namespace]
    meaning = meaning_of(
        transactions,
        nullcontext(),
        tenant_id,
        owner_id,
        configured(embedder),
        query,
        namespaces=namespaces,
    )
    if meaning is None:
        return None
    with transactions.begin() as connection:
        found = ranking.search_with_sources(
            connection,
            tenant_id,
            owner_id,
            query,
            namespaces=namespaces,
            kind=kind,
            limit=limit,
            meaning=meaning,
        )
    return FoundMemories(found, ranking.ways(meaning))


def get_memory(key: str, *, user_id: str, namespace: str = DEFAULT_NAMESPACE) -> Ask[Memory]:
    """What is remembered under the key. Raises `UnknownMemory`."""
    user = user_named(user_id)

    def in_database(desk: "DatabaseDesk") -> Memory:
        return desk.read(
            lambda connection: memories.read(connection, desk.tenant_id, user, namespace, key)
        )

    def over_http() -> Flow[Memory]:
        return reader(Memory)((yield get(_path(namespace, key), user_id=user)))

    return Ask(in_database, over_http)


def remember(
    key: str,
    value: object,
    *,
    user_id: str,
    kind: str = MemoryKind.SEMANTIC,
    namespace: str = DEFAULT_NAMESPACE,
    replaces_version: int | None = None,
    expires_days: float | None = None,
    by: str | None = None,
) -> Ask[Remembered]:
    """Put in something to remember of the user, for the default `MemoryPolicy` to decide about;
    what it decided. A memory that is there is replaced only by its version. What is procedural
    is refused here: agents propose that, and people decide by `approve`.
    """
    user, person = user_named(user_id), user_or_default(by)
    place, content = checked_key(namespace, "namespace"), strict_json(value)

    def in_database(desk: "DatabaseDesk") -> Remembered:
        return desk.perform(
            Remember(
                desk.tenant_id,
                user,
                place,
                key,
                content,
                kind,
                person,
                replaces_version,
                expires_days,
            )
        )

    def over_http() -> Flow[Remembered]:
        refuse_speaker(by)
        body: dict[str, JsonValue] = {
            "value": content,
            "kind": str(kind),
            "replaces_version": replaces_version,
            "expires_days": expires_days,
            "user_id": user,
        }
        return reader(Remembered)((yield put(_path(place, key), body)))

    return Ask(in_database, over_http)


def forget(
    key: str, *, user_id: str, namespace: str = DEFAULT_NAMESPACE, by: str | None = None
) -> Ask[None]:
    """Delete what is remembered of the user under the key. No later model call is shown it. The
    conversations in which it was said stay as they are. Raises `UnknownMemory`."""
    user, person = user_named(user_id), user_or_default(by)

    def over_http() -> Flow[None]:
        refuse_speaker(by)
        yield delete(_path(namespace, key), user_id=user)

    return Ask(
        lambda desk: desk.perform(Forget(desk.tenant_id, user, namespace, key, person)), over_http
    )


def list_decisions(
    user_id: str,
    *,
    store: bool | None = None,
    run_id: str | None = None,
    limit: int = 100,
) -> Ask[list[MemoryDecision]]:
    """What was decided about candidates of the user's, the latest first: all, or those that
    were kept or were not, or those of one run."""
    user, run = user_named(user_id), None if run_id is None else run_named(run_id)

    def in_database(desk: "DatabaseDesk") -> list[MemoryDecision]:
        return desk.read(
            lambda connection: memories.list_decisions(
                connection, desk.tenant_id, user, store=store, run_id=run, limit=limit
            )
        )

    def over_http() -> Flow[list[MemoryDecision]]:
        asked = {
            "user_id": user,
            "run_id": run,
            "store": None if store is None else str(store).lower(),
        }
        return (
            yield from pages(
                "/v1/memories/decisions", "decisions", reader(MemoryDecision), limit, asked
            )
        )

    return Ask(in_database, over_http)


def export_memories(user_id: str) -> Ask[MemoryExport]:
    """All that is remembered of the user, with what was decided about it, as of one moment."""
    user = user_named(user_id)

    def in_database(desk: "DatabaseDesk") -> MemoryExport:
        with desk.ready().begin() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return export(connection, desk.tenant_id, user)

    def over_http() -> Flow[MemoryExport]:
        return reader(MemoryExport)((yield get("/v1/memories/export", user_id=user)))

    return Ask(in_database, over_http)


def _path(namespace: str, key: str) -> str:
    return f"/v1/memories/{quote(namespace, safe='')}/{quote(key, safe='')}"
