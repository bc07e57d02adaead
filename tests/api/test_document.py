"""Whatever is asked within and beyond the OpenAPI document, the answer is one that it has."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from celeriac import Approval
from celeriac.ids import RunId
from celeriac.settings import load_settings
from celeriac_api.app import create_app
from celeriac_storage.database import Database
from tests.api.server import Api, key, serving
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

EXAMPLES = 6  # of each operation, for each token: some 700 requests in all
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
Case = schemathesis.Case[Any]
Operation = schemathesis.APIOperation[Any, Any, Any, Any]
PLAIN = ("/healthz", "/readyz", "/metrics")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(load_settings(database_url="postgresql://nowhere/none")).openapi()


@pytest.fixture
def scene(database: Database, broker_url: str) -> Iterator[tuple[Api, dict[str, list[str]]]]:
    """A run that waits for a person and one that has ended, and the ids by which they are asked
    for."""
    ledger = Ledger()
    limits = {"api_requests_per_second": 1e6, "api_burst_requests": 1_000_000}
    with serving(database, broker_url, **limits) as api:
        desk = Desk(
            database, broker_url, ledger, [refund_tool(ledger, Approval(roles=["cashier"]))],
            [("refund", REFUND)],
        )  # fmt: skip
        owner = api.person("owner")
        runs = []
        for number in range(2):
            started = owner.post(
                "/v1/runs", json={"agent": "desk", "input": "x", "thread_id": f"chat{number}"},
                headers=key(str(number)),
            )  # fmt: skip
            runs.append(RunId(started.json()["run_id"]))
            desk.go_on(runs[-1])
        (proposal, *_) = desk.client.approvals(by="viewer")
        owner.post(f"/v1/runs/{runs[1]}/cancel")
        yield (
            api,
            {
                "run_id": [*runs],
                "approval_id": [proposal.approval_id],
                "thread_id": ["chat0"],
            },
        )
        desk.close()


def tokens(api: Api) -> dict[str, str | None]:
    return {
        "owner": api.token("owner"),
        "operator": api.token("olga", "operator"),
        "somebody else": api.token("mallory"),
        "another tenant": api.token("owner", "admin", tenant="rival"),
        "garbage": "cel_" + "x" * 43,
        "nobody": None,
    }


def ask(
    operation: Operation,
    api: Api,
    known: dict[str, list[str]],
    token: str | None,
    *,
    is_let_in: bool,
) -> None:
    """Ask for it in all ways, and look at each answer."""
    is_stream = operation.path.endswith("/events")
    modes = [
        operation.as_strategy(generation_mode=mode)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    ]

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(*modes), data=st.data())
    def ask_so(case: Case, data: st.DataObject) -> None:
        for name in case.path_parameters or {}:
            if data.draw(st.booleans(), label="an id that is there"):
                # The stream of a run that goes on has no end.
                ids = known[name][-1:] if is_stream else known.get(name, ["s1"])
                case.path_parameters[name] = data.draw(st.sampled_from(ids))
        case.headers.pop("Authorization", None)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = case.call(base_url=api.url, headers=headers, timeout=30)
        # What the frames of a stream are, a document of OpenAPI 3.1 cannot say.
        excluded = [response_schema_conformance] if is_stream else []
        case.validate_response(answer, checks=CHECKS, excluded_checks=excluded)
        assert is_let_in or answer.status_code in (401, 429), answer.status_code

    ask_so()


@pytest.mark.parametrize(
    "who",
    ["owner", "operator", "somebody else", "another tenant", "garbage", "nobody"],
)
def test_every_answer_is_in_the_document(
    scene: tuple[Api, dict[str, list[str]]], document: dict[str, Any], who: str
) -> None:
    api, known = scene
    token = tokens(api)[who]
    operations = []

    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        is_let_in = who not in ("garbage", "nobody") or operation.path in PLAIN
        ask(operation, api, known, token, is_let_in=is_let_in)
        operations.append((operation.method, operation.path))

    assert set(operations) == {
        (method, path) for path, methods in document["paths"].items() for method in methods
    }
