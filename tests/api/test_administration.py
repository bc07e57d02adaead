"""Tokens and principals over HTTP: for administrators of a tenant, about that tenant alone."""

# features: 000-07, 000-20
from typing import Any

import httpx2
import pytest

from tests.api.server import Api, key, problem
from tests.api.test_access import ADMINISTRATION, Endpoint


def ask(person: httpx2.Client, endpoint: Endpoint, under: str = "k") -> httpx2.Response:
    headers = key(under) if endpoint.method != "GET" else {}
    return person.request(endpoint.method, endpoint.path, json=endpoint.body, headers=headers)


def facts(api: Api) -> list[tuple[Any, ...]]:
    return [
        *api.rows("SELECT token_id, revoked_at FROM celeriac.tokens ORDER BY 1"),
        *api.rows("SELECT tenant_id, user_id, version FROM celeriac.principals"),
    ]


@pytest.mark.parametrize("role", ["user", "operator"])
def test_who_is_no_administrator_is_refused_and_changes_nothing(api: Api, role: str) -> None:
    person = api.person("olga", role)
    before = facts(api)

    for endpoint in ADMINISTRATION:
        assert problem(ask(person, endpoint)) == (403, "role-missing")

    assert facts(api) == before
    assert [action for _, action, _ in api.denials()] == [
        f"http.{endpoint.action}" for endpoint in ADMINISTRATION
    ]


def test_a_token_is_told_once_and_stored_nowhere(api: Api) -> None:
    ada = api.person("ada", "admin")
    body = {"user_id": "alice", "roles": ["operator"], "name": "laptop", "expires_days": 1}

    made = ada.post("/v1/tokens", json=body, headers=key("k")).json()
    again = ada.post("/v1/tokens", json=body, headers=key("k"))
    listed = ada.get("/v1/tokens").json()["tokens"]

    assert problem(again) == (410, "key-pruned")
    assert [each["user_id"] for each in listed] == ["ada", "alice"]
    assert made == {**listed[1], "last_used_at": None, "token": made["token"]}
    assert api.holder_of(made["token"]).get("/v1/runs").status_code == 200
    for table in ("idempotency_keys", "tokens", "audit"):
        assert made["token"] not in str(api.rows(f"SELECT t::text FROM celeriac.{table} AS t"))
    assert problem(ada.post("/v1/tokens", json=body)) == (400, "malformed-request")


def test_a_revoked_token_opens_nothing_with_the_next_request(api: Api) -> None:
    ada, alice = api.person("ada", "admin"), api.person("alice")
    assert alice.get("/v1/runs").status_code == 200
    token_id = ada.get("/v1/tokens").json()["tokens"][1]["token_id"]

    ended = ada.post(f"/v1/tokens/{token_id}/revoke")

    assert ended.json()["revoked_at"] is not None
    assert problem(alice.get("/v1/runs")) == (401, "unauthenticated")
    assert ada.post(f"/v1/tokens/{token_id}/revoke").json() == ended.json()
    trail = api.rows("SELECT actor, action, object FROM celeriac.audit WHERE outcome = 'allowed'")
    assert ("ada", "token.revoke", token_id) in trail


def test_a_principal_is_as_it_was_set_last_and_each_change_is_in_the_trail(api: Api) -> None:
    ada = api.person("ada", "admin")
    limits = {"refund": [["amount", "<=", "500"]]}

    first = ada.put("/v1/principals/carl", json={"roles": ["cashier"], "permissions": limits})
    second = ada.put("/v1/principals/carl", json={"disabled": True}, headers=key("k"))
    repeated = ada.put("/v1/principals/carl", json={"disabled": True}, headers=key("k"))

    carl = {"user_id": "carl", "roles": ["cashier"], "permissions": limits, "version": 1,
            "disabled": False}  # fmt: skip
    assert first.json() == carl
    assert second.json() == {
        **carl, "roles": [], "permissions": {"*": []}, "version": 2, "disabled": True,
    }  # fmt: skip
    assert repeated.json() == second.json()
    assert ada.get("/v1/principals").json() == {"principals": [second.json()]}
    trail = api.rows("SELECT actor, object FROM celeriac.audit WHERE action = 'principal.set'")
    assert trail == [("ada", "carl")] * 2


def test_an_administrator_reaches_no_other_tenant(api: Api) -> None:
    ada, rival = api.person("ada", "admin"), api.person("mallory", "admin", tenant="rival")
    ada.put("/v1/principals/carl", json={"roles": ["cashier"]})
    ((token_id,),) = api.rows("SELECT token_id FROM celeriac.tokens WHERE tenant_id = 'default'")

    made = rival.post("/v1/tokens", json={"user_id": "carl"}, headers=key("k")).json()
    rival.put("/v1/principals/carl", json={"disabled": True})

    assert made["tenant_id"] == "rival"
    assert problem(rival.post(f"/v1/tokens/{token_id}/revoke")) == (404, "unknown-token")
    assert [each["user_id"] for each in rival.get("/v1/tokens").json()["tokens"]] == [
        "mallory", "carl",
    ]  # fmt: skip
    assert ada.get("/v1/principals").json()["principals"][0]["disabled"] is False
    assert len(ada.get("/v1/tokens").json()["tokens"]) == 1
    assert ada.get("/v1/runs").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/tokens", {"user_id": "a", "roles": ["king"]}),
        ("POST", "/v1/tokens", {"user_id": "a b"}),
        ("POST", "/v1/tokens", {"user_id": "a", "tenant_id": "rival"}),
        ("POST", "/v1/tokens", {"user_id": "a", "expires_days": 0}),
        ("PUT", "/v1/principals/a b", {}),
        ("PUT", "/v1/principals/a", {"permissions": {"refund": [["amount", "~", 1]]}}),
        ("PUT", "/v1/principals/a", {"permissions": {"refund": "all"}}),
        ("PUT", "/v1/principals/a", {"permissions": {"refund": [{"x": 1}, 7, None]}}),
        ("PUT", "/v1/principals/a", {"roles": "cashier"}),
    ],
)
def test_what_cannot_be_is_refused(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    ada = api.person("ada", "admin")
    before = facts(api)

    assert ada.request(method, path, json=body, headers=key("k")).status_code == 422

    assert facts(api) == before
