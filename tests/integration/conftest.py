import os, uuid
from collections.abc import Iterator
import psycopg, pytest
from celeriac_storage.database import Database
from celeriac_storage.schema import migrate

@pytest.fixture
def database_url() -> Iterator[str]:
    name = "t" + uuid.uuid4().hex
    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as c:
        c.execute(f'CREATE DATABASE "{name}"')
    yield f"postgresql://postgres@127.0.0.1:5432/{name}"
    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as c:
        c.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    db = Database(database_url); migrate(db)
    yield db
    db.close()

@pytest.fixture
def broker_url() -> str:
    return "redis://127.0.0.1:6379/13"
