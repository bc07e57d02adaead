"""The API as a real server, in a thread of the test's process, and people who ask it."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import jsonschema
import uvicorn

from celeriac.ids import DEFAULT_TENANT, TenantId, UserId
from celeriac.settings import load_settings
from celeriac_api.app import create_app
from celeriac_api.server import configuration
from celeriac_storage import tokens
from celeriac_storage.database import Database
from tests.waiting import eventually

TIMEOUT_SECONDS = 60.0
ANSWERS_OF_NO_ENDPOINT = frozenset({400, 404, 405, 413, 415, 500})


class Api:
    """Serves `database`. What it answers is compared with its own OpenAPI document."""

    def __init__(self, database: Database, broker_url: str | None, **settings: object) -> None:
        self.database = database
        self.app = create_app(
            load_settings(database_url=database.url, broker_url=broker_url, **settings)
        )
        self._server = uvicorn.Server(configuration(self.app))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._clients = ExitStack()

    def start(self) -> None:
        self._thread.start()
        eventually(lambda: self._server.started, what="the server listens")
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self._clients.close()
        self._server.should_exit = True
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def token(
        self,
        user: str = "alice",
        *roles: str,
        tenant: str = DEFAULT_TENANT,
        expires_days: float | None = None,
    ) -> str:
        with self.database.begin() as connection:
            _, secret = tokens.create(
                connection,
                TenantId(tenant),
                UserId(user),
                name="for a test",
                roles=roles or ("user",),
                expires_days=expires_days,
                by=UserId("test"),
            )
        return secret

    def person(
        self, user: str = "alice", *roles: str, tenant: str = DEFAULT_TENANT
    ) -> httpx2.Client:
        """A client with a token of that person's."""
        return self.holder_of(self.token(user, *roles, tenant=tenant))

    def holder_of(self, token: str | None) -> httpx2.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            event_hooks={"response": [self._check_answer]},
        )
        return self._clients.enter_context(client)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self.database.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql, values)]

    def denials(self) -> list[tuple[str, str, str]]:
        """Actor, action and object of each."""
        return [
            (row[0], row[1], row[2])
            for row in self.rows(
                "SELECT actor, action, object FROM celeriac.audit WHERE outcome = 'denied'"
                " ORDER BY audit_id"
            )
        ]

    def _check_answer(self, response: httpx2.Response) -> None:
        response.read()
        check_against_document(self.app.openapi(), response)


@contextmanager
def serving(database: Database, broker_url: str | None = None, **settings: object) -> Iterator[Api]:
    api = Api(database, broker_url, **settings)
    api.start()
    try:
        yield api
    finally:
        api.stop()


def check_against_document(document: Mapping[str, Any], response: httpx2.Response) -> None:
    """Fail unless the OpenAPI document says of this very answer that it may come."""
    path, method = response.request.url.path, response.request.method.lower()
    described = _described(document["paths"], path)
    if method == "head" or path == "/openapi.json":
        return
    if described is None or method not in described:
        assert response.status_code in ANSWERS_OF_NO_ENDPOINT, (path, response.status_code)
        return
    answers = described[method]["responses"]
    assert str(response.status_code) in answers, (path, response.status_code, response.text)
    (media_type, content), *_ = answers[str(response.status_code)]["content"].items()
    if not media_type.endswith("json"):
        assert response.headers["content-type"].startswith(media_type)
        return
    assert response.headers["content-type"] == media_type
    schema = {**content["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(response.text))


def _described(paths: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    asked = path.split("/")
    for template, operations in paths.items():
        parts = template.split("/")
        if len(parts) == len(asked) and all(
            part == given or part.startswith("{") for part, given in zip(parts, asked, strict=True)
        ):
            return dict(operations)
    return None


def problem(response: httpx2.Response) -> tuple[int, str]:
    """Status and the end of the type; fails for an answer that is no problem."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    told = response.json()
    assert told["status"] == response.status_code
    return response.status_code, str(told["type"]).removeprefix("urn:celeriac:problem:")


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


def statuses(responses: Sequence[httpx2.Response]) -> list[int]:
    return sorted(response.status_code for response in responses)
