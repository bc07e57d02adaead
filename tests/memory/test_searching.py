"""Searches over HTTP and by the client go by meaning as an agent's recall does, if there is an
embedder; nobody finds what is another's."""

# features: 000-20, 000-38
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from celeriac import Client
from celeriac.cli.main import app
from celeriac.errors import EmbedderFailed
from celeriac.ids import DEFAULT_TENANT
from celeriac.memory import StaticEmbedder
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.tenancy import TenantDatabase
from celeriac_tasks.embedding import configured
from tests.api.server import Api, serving

EMBEDDER = "celeriac.memory:StaticEmbedder"
BY_MEANING = ["words", StaticEmbedder().name]
FOOD = "/v1/memories?query=what+do+I+like+to+eat"


@pytest.fixture(autouse=True)
def remembered(database: Database) -> None:
    with Client(database.url) as client:
        client.remember("seat", "Prefers aisle seats", user_id="alice")
        client.remember("diet", "Is vegetarian", user_id="alice")
        client.remember("home", "Lives in Berlin", user_id="alice", namespace="travel")
        client.remember("diet", "Loves steaks and sausages", user_id="bob")


@pytest.fixture
def api(database: Database) -> Iterator[Api]:
    with serving(database, embedder=EMBEDDER) as api:
        yield api


def owners_of_vectors(database: Database) -> set[str]:
    with database.connect() as connection:
        return set(
            connection.exec_driver_sql("SELECT user_id FROM celeriac.memory_vectors").scalars()
        )


def test_a_search_over_http_finds_what_says_the_same_in_other_words(
    api: Api, database: Database
) -> None:
    told = api.person("alice").get(FOOD).json()

    assert told["found_by"] == BY_MEANING
    assert told["memories"][0]["key"] == "diet"
    assert told["memories"][0]["reason"] == "explicit_request"
    assert {each["user_id"] for each in told["memories"]} == {"alice"}
    assert told["next_cursor"] is None
    assert owners_of_vectors(database) == {"alice"}


def test_a_search_by_meaning_keeps_to_its_namespace_kind_and_limit(api: Api) -> None:
    alice = api.person("alice")

    def keys(more: str) -> list[str]:
        return [each["key"] for each in alice.get(FOOD + more).json()["memories"]]

    assert keys("&namespace=travel") == ["home"]
    assert keys("&kind=episodic") == []
    assert keys("&limit=1") == ["diet"]


def test_one_finds_anothers_only_as_an_operator_who_names_the_user(api: Api) -> None:
    olga = api.person("olga", "operator")

    of_bob = olga.get(FOOD + "&user_id=bob").json()
    of_all = olga.get(FOOD).json()

    assert [each["value"] for each in of_bob["memories"]] == ["Loves steaks and sausages"]
    assert of_bob["found_by"] == BY_MEANING
    assert of_all["found_by"] == ["words"]
    assert api.person("alice").get(FOOD + "&user_id=bob").status_code == 403


def test_without_an_embedder_a_search_goes_by_words_and_says_so(database: Database) -> None:
    with serving(database) as api:
        alice = api.person("alice")
        other_words = alice.get("/v1/memories?query=food").json()
        same_word = alice.get("/v1/memories?query=aisle").json()
        everything = alice.get("/v1/memories").json()

    assert (other_words["found_by"], other_words["memories"]) == (["words"], [])
    assert [each["key"] for each in same_word["memories"]] == ["seat"]
    assert (everything["found_by"], len(everything["memories"])) == ([], 3)
    assert owners_of_vectors(database) == set()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("tests.nowhere:Embedder", "tests.nowhere"),
        ("tests.waiting:Embedder", "tests.waiting has no Embedder"),
        ("tests.waiting:eventually", "has not a name and a method `embed`"),
    ],
)
def test_an_embedder_that_cannot_be_loaded_leaves_words_and_a_warning(
    database: Database, place: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    configured.cache_clear()
    with caplog.at_level(logging.WARNING), serving(database, embedder=place) as api:
        told = api.person("alice").get("/v1/memories?query=aisle").json()

    assert told["found_by"] == ["words"]
    assert [each["key"] for each in told["memories"]] == ["seat"]
    assert "memories are found by their words" in caplog.text
    assert why in caplog.text


def test_an_embedder_that_fails_leaves_words(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EmbedderFailed("no answer")

    monkeypatch.setattr("celeriac_tasks.embedding.unit_vectors", fail)
    told = api.person("alice").get("/v1/memories?query=aisle").json()

    assert told["found_by"] == ["words"]
    assert [each["key"] for each in told["memories"]] == ["seat"]


def test_a_slow_embedder_leaves_threads_for_other_requests(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Semaphore(0), threading.Event()

    def answer_late(*_: object) -> None:
        asked.release()
        answers.wait()
        raise EmbedderFailed("too late")

    monkeypatch.setattr("celeriac_tasks.embedding.unit_vectors", answer_late)
    with serving(database, embedder=EMBEDDER, connections=4) as api, ThreadPoolExecutor() as pool:
        alice = api.person("alice")
        try:
            slow = [pool.submit(alice.get, FOOD) for _ in range(2)]
            for _ in slow:
                assert asked.acquire(timeout=60)

            told = alice.get("/v1/memories?query=aisle").json()
        finally:
            answers.set()

        assert told["found_by"] == ["words"]
        assert [each["key"] for each in told["memories"]] == ["seat"]
        assert [each.result().status_code for each in slow] == [200, 200]


def test_the_client_finds_the_same_in_the_database_and_over_http(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERIAC_EMBEDDER", EMBEDDER)
    with (
        Client(database.url) as direct,
        Client(url=api.url, token=api.token("alice")) as over_http,
    ):
        found = direct.search_memories("food", user_id="alice")

        assert found.found_by == BY_MEANING
        assert found.memories[0].key == "diet"
        assert over_http.search_memories("food", user_id="alice") == found
        listed = direct.search_memories(" ", user_id="alice")
        assert (len(listed.memories), listed.found_by) == (3, []), "nothing was searched for"
        assert over_http.search_memories(" ", user_id="alice") == listed


def test_the_command_says_how_it_has_searched(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> tuple[str, str]:
        words = ["memories", "list", "--user", "alice", "--query", "food", "--limit", "1", "--json"]
        ran = CliRunner().invoke(app, ["--database-url", database.url, *words])
        assert ran.exit_code == 0
        return ran.stdout, ran.stderr

    assert ask() == ("", "searched by words\n")
    monkeypatch.setenv("CELERIAC_EMBEDDER", EMBEDDER)
    found, how = ask()

    assert '"Is vegetarian"' in found
    assert how == f"searched by words and {StaticEmbedder().name}\n"


def test_the_role_of_the_api_makes_no_vector_of_anothers(database: Database) -> None:
    with (
        pytest.raises(DBAPIError) as refused,
        TenantDatabase(database, [DEFAULT_TENANT], owners=["bob"]).begin() as connection,
    ):
        connection.exec_driver_sql(
            "INSERT INTO celeriac.memory_vectors (tenant_id, user_id, namespace, memory_key,"
            " embedder, version, embedding) VALUES ('default', 'alice', 'default', 'diet', 'x', 1,"
            " '{1}')"
        )
    assert sqlstate(refused.value) == "42501"


def test_an_api_with_an_embedder_loads_no_model_at_its_start() -> None:
    code = f"""
import sys
from celeriac.settings import load_settings
from celeriac_api.app import create_app
create_app(load_settings(database_url="postgresql://x@127.0.0.1/x", embedder={EMBEDDER!r}))
print("wordllama" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "False\n"
