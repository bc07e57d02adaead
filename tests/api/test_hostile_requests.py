"""Requests that nobody means well: each is answered by a problem, and none by a 500."""

# features: 003-11
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celeriac_storage.database import Database
from tests.api.server import Api, key, problem, serving
from tests.talk import Talk

JSON = {"Content-Type": "application/json"}
START = b'{"agent": "talker", "input": %s, "run_id": "r"}'
POSTS = [
    "/v1/runs",
    "/v1/runs/r/cancel",
    "/v1/runs/r/messages",
    "/v1/runs/r/results",
    "/v1/runs/r/resolve",
    "/v1/runs/r/rollback",
    "/v1/approvals/a/decision",
]
MALFORMED = {
    "no JSON": b"{",
    "a word": b"hello",
    "NaN": b'{"agent": "talker", "input": NaN}',
    "beyond a float": b'{"agent": "talker", "input": 1e999}',
    "a key twice": b'{"agent": "talker", "agent": "other", "input": 1}',
    "a key twice, deep inside": START % b'{"a": {"b": 1, "b": 2}}',
    "deep nesting": b"[" * 100_000 + b"]" * 100_000,
    "deep nesting in the input": START % (b"[" * 150 + b"]" * 150),
    "not UTF-8": b'{"agent": "\xff"}',
    "UTF-16": '{"agent": "talker"}'.encode("utf-16"),
    "a number of a million digits": START % (b"9" * 900_000),
}
WRONG = {
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "a text": b'"talker"',
    "agent is a number": b'{"agent": 1, "input": 1, "run_id": "r"}',
    "agent is a list": b'{"agent": ["talker"], "input": 1, "run_id": "r"}',
    "NUL in a name": b'{"agent": "talk\\u0000er", "input": 1, "run_id": "r"}',
    "a lone surrogate in a name": b'{"agent": "\\ud800", "input": 1, "run_id": "r"}',
    "NUL in an id": b'{"agent": "talker", "input": 1, "run_id": "r\\u0000"}',
    "a lone surrogate in an id": b'{"agent": "talker", "input": 1, "thread_id": "\\udfff"}',
    "a newline at the end of an id": b'{"agent": "talker", "input": 1, "run_id": "r\\n"}',
    "limits too large": b'{"agent": "talker", "input": 1, "run_id": "r",'
    b' "limits": {"steps": 99999999999999999999}}',
}


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/runs/r/messages", {"text": "\ud800"}),
    ("/v1/runs/r/messages", {"text": "  "}),
    ("/v1/runs/r/results", {"results": []}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.0"}]}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.0", "result": 1, "error": "x"}]}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.0", "error": None}]}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.0", "result": 1}] * 2}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.\0", "result": 1}]}),
    ("/v1/runs/r/results", {"results": [{"call_id": "0.0", "error": "\0"}]}),
    ("/v1/runs/r/resolve", {"call_id": "0.0"}),
    ("/v1/runs/r/resolve", {"call_id": "0.0", "not_done": False}),
    ("/v1/runs/r/resolve", {"call_id": "0.0", "not_done": True, "committed": 1}),
    ("/v1/approvals/a/decision", {"decision": "approve"}),
    ("/v1/approvals/a/decision", {"decision": "maybe", "arguments_hash": "x"}),
    ("/v1/approvals/a/decision", {"decision": "edit", "arguments_hash": "x"}),
    ("/v1/approvals/a/decision", {"decision": "approve", "arguments_hash": "x", "arguments": {}}),
    ("/v1/approvals/a/decision", {"decision": "reject", "arguments_hash": "x", "reason": "\0"}),
    (
        "/v1/approvals/a/decision",
        {"decision": "approve", "arguments_hash": "x", "answers": {"q": "\0"}},
    ),
    ("/v1/approvals/a/decision", {"decision": "approve", "arguments_hash": "\ud800"}),
    ("/v1/runs/r/cancel", {"reason": "none is asked for"}),
]
VALUES = [
    "\0", "\ud800", "😀", {"\0": "\udfff"}, 1e308, 2**63, -0.0, None, [[]], {"": {}},
    "x" * 500_000,
]  # fmt: skip


@pytest.fixture
def alice(api: Api, talk: Talk) -> httpx2.Client:
    del talk  # a worker has the agent
    return api.person("alice")


def test_what_is_no_json_is_malformed(api: Api, alice: httpx2.Client) -> None:
    for path in POSTS:
        for name, body in MALFORMED.items():
            answer = alice.post(path, content=body, headers={**JSON, **key("k")})
            assert problem(answer) == (400, "malformed-request"), (path, name)
    assert api.rows("SELECT FROM celeriac.runs") == []


def test_json_of_the_wrong_shape_is_refused_and_told_where(api: Api, alice: httpx2.Client) -> None:
    for name, body in WRONG.items():
        answer = alice.post("/v1/runs", content=body, headers={**JSON, **key("k")})
        assert problem(answer) == (422, "invalid-request"), name
        assert all(each["pointer"].startswith("/body") for each in answer.json()["errors"])
    assert api.rows("SELECT FROM celeriac.runs") == []


def test_a_body_that_says_too_little_or_too_much(api: Api, alice: httpx2.Client) -> None:
    alice.post("/v1/runs", content=START % b"1", headers=JSON)

    for path, body in BODIES:
        answer = alice.post(path, content=json.dumps(body), headers={**JSON, **key("k")})
        assert answer.status_code == 422, (path, body, answer.text)

    assert api.rows("SELECT key FROM celeriac.idempotency_keys") == []


def test_any_json_goes_in_and_comes_out(alice: httpx2.Client) -> None:
    for number, value in enumerate(VALUES):
        run = {"agent": "talker", "input": value, "run_id": f"r{number}"}
        started = alice.post("/v1/runs", content=json.dumps(run), headers=JSON)
        assert started.status_code == 201, started.text

        shown = alice.get(f"/v1/runs/r{number}")

        assert json.loads(shown.content)["input"] == value


def test_an_address_that_can_be_nothing_is_not_found(alice: httpx2.Client) -> None:
    for name in ("%00", "%ff", "a%20b", "x" * 5000, "%F0%9F%98%80", "%2F", ":"):
        for path in ("runs/{}", "threads/{}", "approvals/{}", "runs/{}/calls", "{}"):
            assert alice.get(f"/v1/{path.format(name)}").status_code == 404, (path, name)
        for path, body in (("cancel", None), ("messages", {"text": "x"})):
            answer = alice.post(f"/v1/runs/{name}/{path}", json=body, headers=key("k"))
            assert answer.status_code == 404, (path, name)


def test_errors_before_any_endpoint_are_problems_too(api: Api, alice: httpx2.Client) -> None:
    assert problem(alice.get("/nowhere")) == (404, "not-found")
    assert problem(alice.get("/v1/runs/")) == (404, "not-found")
    wrong_method = alice.delete("/v1/runs")
    assert problem(wrong_method) == (405, "method-not-allowed")
    assert set(wrong_method.headers["allow"].split(", ")) <= {"GET", "POST"}
    as_form = alice.post("/v1/runs", data={"agent": "talker"})
    assert problem(as_form) == (415, "unsupported-media-type")
    untyped = alice.post("/v1/runs", content=b"{}")
    assert problem(untyped) == (415, "unsupported-media-type")
    assert api.holder_of(None).get("/openapi.json").status_code == 200
    assert api.holder_of(None).get("/docs").status_code == 404


def test_a_large_body_is_refused_whether_it_says_so_or_not(database: Database, talk: Talk) -> None:
    del talk

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 100

    with serving(database, api_max_body_bytes=2048) as api:
        alice = api.person("alice")
        declared = alice.post("/v1/runs", content=b" " * 4000, headers=JSON)
        counted = alice.post("/v1/runs", content=chunks(), headers=JSON)
        just_fits = alice.post("/v1/runs", content=(START % b"1").ljust(2048), headers=JSON)

        assert problem(declared) == problem(counted) == (413, "too-large")
        assert just_fits.status_code == 201


def test_every_answer_has_safe_headers(api: Api, alice: httpx2.Client) -> None:
    for answer in (
        alice.get("/v1/runs"),
        alice.get("/nowhere"),
        api.holder_of(None).get("/v1/runs"),
        api.holder_of(None).get("/healthz"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_another_origin_may_only_where_the_settings_say_so(database: Database) -> None:
    origin = {"Origin": "https://shop.example"}
    asked = {**origin, "Access-Control-Request-Method": "POST"}
    with serving(database, api_cors_origins="https://shop.example") as api:
        client = httpx2.Client(base_url=api.url)
        answer = client.options("/v1/runs", headers=asked)
        stranger = client.options("/v1/runs", headers={**asked, "Origin": "https://evil.example"})
        client.close()

    assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    assert "access-control-allow-origin" not in stranger.headers


def test_an_error_that_nobody_foresaw_tells_nothing_of_itself(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("celeriac_api.runs.run_list.list_runs", fail)

    answer = api.person().get("/v1/runs")

    assert problem(answer) == (500, "unexpected")
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda each: st.lists(each, max_size=3)
    | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=8,
)  # fmt: skip
_WORDS = st.sampled_from(
    ["agent", "input", "thread_id", "run_id", "on_busy", "limits", "text", "results", "call_id",
     "committed", "not_done", "decision", "arguments", "arguments_hash", "reason", "answers"]
)  # fmt: skip


def test_no_body_at_all_makes_a_500(alice: httpx2.Client) -> None:
    alice.post("/v1/runs", content=START % b"1", headers=JSON)

    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(POSTS), st.dictionaries(_WORDS, _ANY_JSON, max_size=4))
    def ask(path: str, body: dict[str, object]) -> None:
        text = json.dumps({"agent": "talker", **body} if path == "/v1/runs" else body)
        answer = alice.post(path, content=text, headers={**JSON, **key("k")})
        assert answer.status_code < 500, answer.text

    ask()
    assert alice.get("/healthz").status_code == 200
