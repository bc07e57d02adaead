"""Memories found by meaning: the owner's alone, by vectors of one embedder, and never without
words."""

# features: 000-20, 000-21, 000-30, 000-38, 002-29
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import MemoryPolicy
from celeriac.cli.checks import check_all
from celeriac.ids import DEFAULT_TENANT, TenantId, UserId
from celeriac.memory import Embedder, HashingEmbedder, StaticEmbedder
from celeriac.scripted import ToolCall
from celeriac.settings import load_settings
from celeriac_storage import memory_vectors, pruning
from celeriac_storage.database import Database
from celeriac_storage.pruning import Policy
from tests.rememberer import Rememberer

MakeRememberer = Callable[[Embedder], Rememberer]
KNOWN = {
    "diet": "Is vegetarian",
    "seat": "Prefers aisle seats",
    "home": "Lives in Berlin",
    "trip": "The last trip went to Kyoto",
}
ASKS = "What do I like to eat?"


class Counting:
    """An embedder that tells how often it was asked, and does something meanwhile."""

    def __init__(self, name: str = "counting") -> None:
        self.name = name
        self.texts: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self._hashing = HashingEmbedder(32)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        self.meanwhile()
        return self._hashing.embed(texts)


@pytest.fixture
def make(database: Database, broker_url: str) -> Iterator[MakeRememberer]:
    with ExitStack() as stack:

        def made(embedder: Embedder) -> Rememberer:
            rememberer = Rememberer(database, broker_url, MemoryPolicy(embedder=embedder))
            stack.callback(rememberer.close)
            for key, value in KNOWN.items():
                rememberer.client.remember(key, value, user_id="alice")
            return rememberer

        yield made


@pytest.fixture(params=["pgvector", "arrays"])
def model(request: pytest.FixtureRequest, make: MakeRememberer) -> Rememberer:
    """With the model of the package, in a database that has the extension, and in one without."""
    rememberer = make(StaticEmbedder())
    if request.param == "pgvector":
        try:
            with rememberer.database.begin() as connection:
                connection.exec_driver_sql("CREATE EXTENSION vector")
        except DBAPIError as error:
            pytest.skip(f"this server has no pgvector: {error.orig}")
    return rememberer


def shown(rememberer: Rememberer, run_id: str) -> list[str]:
    """The keys that the run's first question was shown, the best first."""
    (recall,) = rememberer.rows(
        "SELECT selection FROM celeriac.recalls WHERE run_id = %s AND step = 0", run_id
    )
    return [each["key"] for each in recall.selection["included"]]


def vectors(rememberer: Rememberer) -> list[tuple[str, str, int]]:
    return [
        tuple(row)
        for row in rememberer.rows(
            "SELECT memory_key, embedder, version FROM celeriac.memory_vectors ORDER BY 1, 2"
        )
    ]


def ranked_by(rememberer: Rememberer, run_id: str) -> list[str]:
    (recall,) = rememberer.rows(
        "SELECT selection FROM celeriac.recalls WHERE run_id = %s AND step = 0", run_id
    )
    return list(recall.selection["ranked_by"])


def test_what_means_the_same_is_shown_first(model: Rememberer) -> None:
    run_id = model.talk(ASKS)

    assert shown(model, run_id)[0] == "diet"
    assert ranked_by(model, run_id) == ["words", StaticEmbedder().name]
    assert {key for key, _, _ in vectors(model)} == set(KNOWN)
    assert model.violations() == []


def test_numbers_next_to_nothing_keep_no_vector_from_being_stored(make: MakeRememberer) -> None:
    class Faint(Counting):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return [[*vector, 1e-60] for vector in super().embed(texts)]

    rememberer = make(Faint())

    assert ranked_by(rememberer, rememberer.talk(ASKS)) == ["words", "counting"]
    assert {key for key, _, _ in vectors(rememberer)} == set(KNOWN)


def test_words_and_meaning_count_together(model: Rememberer) -> None:
    model.client.remember("lunch", "Eats lunch at noon", user_id="alice")

    assert shown(model, model.talk("What do I eat for lunch?"))[0] == "lunch"


def test_a_search_finds_by_meaning_and_nobody_elses(model: Rememberer) -> None:
    model.client.remember("diet", "Loves steaks and sausages", user_id="bob")

    model.talk("Hello.", ToolCall("recall", {"query": "food that I eat"}), user="alice")

    told = model.asked[-1][-1]
    assert "vegetarian" in told
    assert "steaks" not in "".join(model.asked[-1])
    for query in ("%", "_", "***"):
        model.talk("Hello.", ToolCall("recall", {"query": query}), user="alice")
        assert "vegetarian" not in model.asked[-1][-1], "a query without words finds nothing"


def test_a_memory_is_embedded_once_and_its_next_version_again(make: MakeRememberer) -> None:
    embedder = Counting()
    rememberer = make(embedder)

    rememberer.talk("Hello.")
    rememberer.talk("Hello again.")
    assert len(embedder.texts) == len(KNOWN) + 2, "each memory, and each query"
    rememberer.client.remember("seat", "Prefers windows", user_id="alice", replaces_version=1)
    assert "seat" not in {key for key, _, _ in vectors(rememberer)}
    rememberer.talk("Hello.")

    assert embedder.texts[-1] == "seat: Prefers windows"
    assert ("seat", "counting", 2) in vectors(rememberer)
    assert rememberer.violations() == []


def test_vectors_of_two_embedders_are_never_compared(
    make: MakeRememberer, database: Database, broker_url: str
) -> None:
    first = make(Counting("old"))
    first.talk("Hello.")
    with database.begin() as connection:  # what the other would take for nearest
        connection.exec_driver_sql(
            "UPDATE celeriac.memory_vectors SET embedding = '{1}' WHERE memory_key = 'trip'"
        )
    embedder = Counting("new")
    second = Rememberer(database, broker_url, MemoryPolicy(embedder=embedder))

    run_id = second.talk("Prefers aisle seats")

    assert len(embedder.texts) == len(KNOWN) + 1, "all of them are embedded anew"
    assert shown(second, run_id)[0] == "seat"
    assert {by for _, by, _ in vectors(second)} == {"old", "new"}
    second.close()


@pytest.fixture
def two_made(make: MakeRememberer, database: Database, broker_url: str) -> Iterator[Rememberer]:
    """Each memory has a vector of the embedder that the agent had before, and of the one it has."""
    make(Counting("old")).talk("Hello.")
    second = Rememberer(database, broker_url, MemoryPolicy(embedder=Counting("new")))
    second.talk("Hello.")
    yield second
    second.close()


def test_pruning_takes_vectors_whose_embedder_no_agent_has_any_more(
    two_made: Rememberer, database: Database
) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.memory_vectors SET made_at = made_at - interval '10 days'"
            " WHERE memory_key <> 'trip'"
        )
        assert pruning.extent(connection, Policy(older_than_days=9)).vectors == len(KNOWN) - 1

    done = pruning.prune(database, Policy(older_than_days=9))

    assert done.vectors == len(KNOWN) - 1
    left = vectors(two_made)
    assert {key for key, by, _ in left if by == "new"} == set(KNOWN)
    assert [key for key, by, _ in left if by == "old"] == ["trip"], "it is younger"
    assert pruning.prune(database, Policy(0, tenant_id=TenantId("rival"))).vectors == 0
    assert pruning.prune(database, Policy(0)).vectors == 1
    assert two_made.violations() == []


@pytest.mark.usefixtures("two_made")
def test_only_a_login_of_retention_takes_vectors_away(database_url: str) -> None:
    for role, may in (("worker", False), ("api", False), ("retention", True)):
        login = Database(f"{database_url}?options=-crole%3Dceleriac_{role}")
        with ExitStack() as stack:
            if not may:
                stack.enter_context(pytest.raises(DBAPIError, match="permission denied"))
            with login.begin() as connection:
                assert pruning.sweep_vectors(connection, Policy(0), at_most=3) == 3
                assert pruning.sweep_vectors(connection, Policy(0)) == len(KNOWN) - 3
        login.close()


def test_what_is_forgotten_leaves_no_vector(make: MakeRememberer) -> None:
    rememberer = make(Counting())
    rememberer.talk("Hello.")

    rememberer.client.forget("diet", user_id="alice", by="alice")

    assert {key for key, _, _ in vectors(rememberer)} == set(KNOWN) - {"diet"}
    assert rememberer.violations() == []


def test_what_is_forgotten_while_it_is_embedded_leaves_none_either(make: MakeRememberer) -> None:
    embedder = Counting()
    rememberer = make(embedder)
    embedder.meanwhile = lambda: rememberer.client.forget("diet", user_id="alice", by="alice")

    rememberer.talk("Hello.")

    assert "diet: Is vegetarian" in embedder.texts
    assert {key for key, _, _ in vectors(rememberer)} == set(KNOWN) - {"diet"}
    assert rememberer.violations() == []


def test_without_its_embedder_a_memory_is_found_by_its_words(make: MakeRememberer) -> None:
    embedder = Counting()
    rememberer = make(embedder)

    def fail() -> None:
        raise ConnectionError("no answer")

    embedder.meanwhile = fail
    run_id = rememberer.talk("Which aisle?", ToolCall("recall", {"query": "aisle"}))

    assert rememberer.worker.row(run_id).status == "completed"
    assert shown(rememberer, run_id)[0] == "seat"
    assert ranked_by(rememberer, run_id) == ["words"]
    assert "aisle" in rememberer.asked[-1][-1]
    assert vectors(rememberer) == []


def test_a_step_embeds_no_more_than_a_batch_and_the_next_one_goes_on(
    make: MakeRememberer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celeriac_tasks.embedding.MOST_EMBEDDED", 3)
    rememberer = make(Counting())

    first = rememberer.talk("Where do I live, Berlin?")
    assert len(vectors(rememberer)) == 3
    assert set(shown(rememberer, first)) == set(KNOWN), "those without a vector are there as well"
    rememberer.talk("Hello.")

    assert len(vectors(rememberer)) == len(KNOWN)


def test_no_transaction_is_open_while_an_embedder_works(make: MakeRememberer) -> None:
    embedder = Counting()
    rememberer = make(embedder)
    held: list[int] = []

    def look() -> None:
        (row,) = rememberer.rows(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%%'"
        )
        held.append(row[0])

    embedder.meanwhile = look
    rememberer.talk("Hello.", ToolCall("recall", {"query": "home"}))

    assert held == [0, 0, 0]


def test_both_ways_to_compute_a_distance_come_to_the_same(model: Rememberer) -> None:
    model.talk("Hello.")
    (query,) = StaticEmbedder().embed(["food"])

    with model.database.connect() as connection:
        ours = memory_vectors.distance(connection)
        rows = connection.exec_driver_sql(
            f"SELECT {ours}, -(SELECT sum(one * other) FROM unnest(embedding, %(vector)s::real[])"
            " AS pair (one, other)) FROM celeriac.memory_vectors",
            {"vector": memory_vectors.as_text(query)},
        ).all()
        assert ("OPERATOR" in ours) == bool(
            connection.exec_driver_sql("SELECT FROM pg_extension WHERE extname = 'vector'").all()
        )

    assert len(rows) == len(KNOWN)
    for one, other in rows:
        assert one == pytest.approx(other, abs=1e-5)


def test_doctor_says_what_compares_the_vectors(model: Rememberer, database_url: str) -> None:
    settings = load_settings(database_url=database_url)
    assert "memory vectors" not in {each.check for each in check_all(settings)}

    model.talk("Hello.")

    (check,) = [each for each in check_all(settings) if each.check == "memory vectors"]
    with model.database.connect() as connection:
        has_extension = "OPERATOR" in memory_vectors.distance(connection)
    assert check.state == ("ok" if has_extension else "warn")


def test_keeping_vectors_takes_no_more_rights_than_a_workers(
    make: MakeRememberer, database_url: str
) -> None:
    rememberer = make(HashingEmbedder(16))
    worker = Database(f"{database_url}?options=-crole%3Dceleriac_worker")
    alice = UserId("alice")
    with worker.begin() as connection:
        lacking = memory_vectors.lacking(
            connection, DEFAULT_TENANT, alice, "x", namespaces=["default"], limit=9
        )
        made = [(each, [1.0]) for each in lacking]
        assert memory_vectors.keep(connection, DEFAULT_TENANT, alice, "x", made) == len(KNOWN)
    worker.close()
    assert rememberer.violations() == []
