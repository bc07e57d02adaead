"""Who may do what: every endpoint, asked by everybody."""

# features: 000-07, 000-25, 000-26, 000-28
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from celeriac import Approval
from celeriac.ids import DEFAULT_TENANT, RunId, TokenId, UserId
from celeriac.roles import Role
from celeriac_api.authorization import RULES
from celeriac_storage import tokens
from celeriac_storage.database import Database
from tests.api.server import Api, key, problem
from tests.review_desk import REFUND, Desk, Ledger, refund_tool


@dataclass(frozen=True)
class Endpoint:
    """How it is asked, and how its answers differ, by who asks."""

    action: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    owner: str = "200"
    operator: str = "200"
    other: str = "404"  # of the same tenant
    rival: str = "404"  # of another tenant


DECISION = {"decision": "reject", "arguments_hash": "{hash}", "reason": "no"}
RESULTS = {"results": [{"call_id": "0.0", "result": 1}]}
EVERYBODY: dict[str, Any] = {"owner": "201", "operator": "201", "other": "201", "rival": "201"}
# Of a list it is counted what there is in it.
LIST: dict[str, Any] = {
    "owner": "200: 1",
    "operator": "200: 1",
    "other": "200: 0",
    "rival": "200: 0",
}
ENDPOINTS = [  # in an order in which each finds the run as it needs it
    Endpoint("list_runs", "GET", "/v1/runs", **LIST),
    Endpoint("show_run", "GET", "/v1/runs/{run}"),
    Endpoint("replay_run", "GET", "/v1/runs/{run}/replay"),
    Endpoint("compare_runs", "GET", "/v1/runs/{run}/diff/{run}"),
    Endpoint("list_calls", "GET", "/v1/runs/{run}/calls"),
    Endpoint("show_wait", "GET", "/v1/runs/{run}/wait"),
    Endpoint("list_requested_calls", "GET", "/v1/calls", other="200", rival="200"),
    Endpoint("list_threads", "GET", "/v1/threads", **LIST),
    Endpoint("list_timers", "GET", "/v1/timers", owner="200: 0", operator="200: 0",
             other="200: 0", rival="200: 0"),
    Endpoint("show_thread", "GET", "/v1/threads/{thread}"),
    Endpoint("list_approvals", "GET", "/v1/approvals", **LIST),
    # That a proposal waits is no secret to those of the tenant who might have to decide it.
    Endpoint("show_approval", "GET", "/v1/approvals/{approval}", other="403"),
    # A role of the API is no role of the desk: who may see it may not yet decide it.
    Endpoint("decide_approval", "POST", "/v1/approvals/{approval}/decision", DECISION,
             owner="403", operator="403", other="403"),
    # Those who may are told that the run is in no such state.
    Endpoint("retry_run", "POST", "/v1/runs/{run}/retry", owner="409", operator="409"),
    Endpoint("fork_run", "POST", "/v1/runs/{run}/fork", {"at": 9}, owner="422", operator="422"),
    Endpoint("show_plan", "GET", "/v1/runs/{run}/plan", owner="422", operator="422"),
    Endpoint("retry_plan", "POST", "/v1/runs/{run}/plan/retry", owner="422", operator="422"),
    Endpoint("roll_back_run", "POST", "/v1/runs/{run}/rollback", owner="409", operator="409"),
    Endpoint("submit_results", "POST", "/v1/runs/{run}/results", RESULTS,
             owner="404: no such call", operator="404: no such call"),
    Endpoint("resolve_call", "POST", "/v1/runs/{run}/resolve", {"call_id": "0.0", "not_done": True},
             owner="403", operator="409"),
    Endpoint("say_to_run", "POST", "/v1/runs/{run}/messages", {"text": "hello"},
             owner="202", operator="202"),
    # Those who may are told that it is no workflow.
    Endpoint("send_event", "POST", "/v1/runs/{run}/events", {"name": "paid"},
             owner="409", operator="409"),
    Endpoint("interrupt_run", "POST", "/v1/runs/{run}/interrupt"),
    Endpoint("cancel_run", "POST", "/v1/runs/{run}/cancel"),
    Endpoint("follow_events", "GET", "/v1/runs/{run}/events"),  # now it has an end
    Endpoint("list_memories", "GET", "/v1/memories", **LIST),
    Endpoint("show_memory", "GET", "/v1/memories/{namespace}/{memory}?user_id=owner"),
    Endpoint("list_memory_decisions", "GET", "/v1/memories/decisions", **LIST),
    Endpoint("export_memories", "GET", "/v1/memories/export?user_id=owner",
             other="403", rival="200"),  # of that tenant's user of the name: nothing
    Endpoint("remember", "PUT", "/v1/memories/{namespace}/{memory}",
             {"value": "front", "user_id": "owner"}, other="403", rival="200"),
    Endpoint("forget", "DELETE", "/v1/memories/{namespace}/{memory}?user_id=owner",
             rival="200"),  # what that tenant has just remembered
    Endpoint("set_budget", "PUT", "/v1/budgets/user/owner/tokens", {"hard_limit": "100"},
             owner="403", rival="200"),  # of the other tenant, which has a user of that name too
    Endpoint("top_up_budget", "POST", "/v1/budgets/user/owner/tokens/top-up", {"amount": "1"},
             owner="403", rival="200"),
    Endpoint("list_budgets", "GET", "/v1/budgets?scope=user&subject=owner",
             owner="200: 0", operator="200: 1", other="403", rival="200: 1"),
    Endpoint("start_run", "POST", "/v1/runs", {"agent": "desk", "input": "hello"}, **EVERYBODY),
]  # fmt: skip
ADMINISTRATION = [  # tests/api/test_administration.py says what each answers to whom
    Endpoint("list_principals", "GET", "/v1/principals"),
    Endpoint("set_principal", "PUT", "/v1/principals/newcomer", {"roles": ["cashier"]}),
    Endpoint("list_tokens", "GET", "/v1/tokens"),
    Endpoint("create_token", "POST", "/v1/tokens", {"user_id": "newcomer"}),
    Endpoint("revoke_token", "POST", "/v1/tokens/k1/revoke"),
    Endpoint("erase_user", "POST", "/v1/users/newcomer/erase", {"cancel": True}),
]
ALL = [*ENDPOINTS, *ADMINISTRATION]
PUBLIC = {
    ("GET", "/openapi.json"): "what there is to ask for",
    ("GET", "/healthz"): "that the process lives",
    ("GET", "/readyz"): "whether its servers do",
    ("GET", "/metrics"): "guarded in its own way (test_metrics)",
}
"""What takes no token of the API, and what it tells."""
SCHEDULES = {
    ("GET", "/v1/schedules"),
    ("POST", "/v1/schedules"),
    ("GET", "/v1/schedules/{}"),
    ("DELETE", "/v1/schedules/{}"),
    ("POST", "/v1/schedules/{}/pause"),
    ("POST", "/v1/schedules/{}/resume"),
    ("POST", "/v1/schedules/{}/trigger"),
}
"""What takes a schedule of its own: who may do it is in tests/api/test_schedules."""
STRANGERS = {
    "nobody": None,
    "garbage": "Bearer cel_" + "x" * 43,
    "empty": "Bearer",
    "another scheme": "Basic YWxpY2U6eA==",
    "long": "Bearer " + "x" * 20_000,
    "binary": "Bearer \xff\xfe",
}


@dataclass
class Scene:
    """A run of `owner`, paused before a refund that the role `cashier` decides."""

    api: Api
    desk: Desk
    names: dict[str, str]

    def ask(self, endpoint: Endpoint, person: httpx2.Client) -> httpx2.Response:
        body = endpoint.body
        if body is not None and "arguments_hash" in body:
            body = {**body, "arguments_hash": self.names["hash"]}
        return person.request(
            endpoint.method,
            endpoint.path.format(**self.names),
            json=body,
            headers=key("k") if endpoint.method != "GET" else {},
        )

    def told(self, endpoint: Endpoint, person: httpx2.Client) -> str:
        """The answer in short, as the table of endpoints has it."""
        answer = self.ask(endpoint, person)
        if answer.status_code >= 400 and problem(answer)[1] == "unknown-call":
            return "404: no such call"
        is_list = endpoint.action.startswith("list_") and not endpoint.action.endswith("_calls")
        if is_list and answer.is_success:
            name = endpoint.action.removeprefix("list_").removeprefix("memory_")
            return f"{answer.status_code}: {len(answer.json()[name])}"
        return str(answer.status_code)

    def facts(self) -> list[tuple[Any, ...]]:
        """All that a request could have changed."""
        return [
            *self.api.rows("SELECT run_id, status, last_event_seq FROM celeriac.runs ORDER BY 1"),
            *self.api.rows("SELECT approval_id, status FROM celeriac.approvals"),
            *self.api.rows("SELECT reviewer FROM celeriac.approval_decisions"),
            *self.api.rows("SELECT author FROM celeriac.inbox"),
            *self.api.rows("SELECT key FROM celeriac.idempotency_keys WHERE tenant_id = 'default'"),
            *self.api.rows("SELECT * FROM celeriac.budgets WHERE tenant_id = 'default'"),
            *self.api.rows(
                "SELECT version, content FROM celeriac.memories WHERE tenant_id = 'default'"
            ),
        ]


@pytest.fixture
def scene(api: Api, database: Database, broker_url: str) -> Iterator[Scene]:
    ledger = Ledger()
    desk = Desk(
        database, broker_url, ledger, [refund_tool(ledger, Approval(roles=["cashier"]))],
        [("refund", REFUND)],
    )  # fmt: skip
    desk.client.set_principal("carl", roles=["cashier"])
    started = api.person("owner").post(
        "/v1/runs", json={"agent": "desk", "input": "refund it", "thread_id": "chat"},
        headers=key("first"),
    )  # fmt: skip
    run_id = RunId(started.json()["run_id"])
    desk.go_on(run_id)
    (proposal,) = desk.client.approvals(run_id=run_id, by="viewer")
    assert desk.client.remember("seat", "aisle", user_id="owner", by="owner").store
    yield Scene(
        api,
        desk,
        {
            "run": run_id,
            "thread": "chat",
            "approval": proposal.approval_id,
            "hash": proposal.arguments_hash,
            "namespace": "default",
            "memory": "seat",
        },
    )
    desk.close()


def test_every_endpoint_is_in_the_table(api: Api) -> None:
    asked = {(each.method, _without_ids(each.path)) for each in ALL}

    assert asked | PUBLIC.keys() | SCHEDULES == {
        route for route in served(api) if not is_page(route[1])
    }
    of_pages = {"list_workers"}  # tests/console
    elsewhere = of_pages | {action for action in RULES if "schedule" in action}
    as_runs = {"list_calls", "show_wait", "list_requested_calls"}
    assert {each.action for each in ALL} - as_runs == RULES.keys() - elsewhere


def _without_ids(path: str) -> str:
    path = path.partition("?")[0].replace("/user/owner/tokens", "/{}/{}/{}")
    return re.sub(r"{.*?}|newcomer|k1", "{}", path)


def is_page(path: str) -> bool:
    """Of the console, which knows its visitors by a cookie."""
    return not path.startswith("/v1/") and all(path != known for _, known in PUBLIC)


def test_every_page_but_the_sign_in_takes_a_session(scene: Scene) -> None:
    before = scene.facts()
    pages = {route for route in served(scene.api) if is_page(route[1]) and route[0] != "MOUNT"}
    assert pages >= {("GET", "/"), ("GET", "/sign-in"), ("POST", "/sign-in")}

    for method, path in pages - {("GET", "/sign-in"), ("POST", "/sign-in")}:
        for cookie in (None, "__Host-celeriac=garbage; celeriac=garbage"):
            address = scene.api.url + path.replace("{}", scene.names["run"])
            headers = {} if cookie is None else {"Cookie": cookie}
            answer = httpx2.request(method, address, headers=headers, timeout=30)
            assert answer.status_code in (303, 401, 403), (method, path, answer.status_code)
            assert scene.names["approval"] not in answer.text
    assert scene.facts() == before


def served(api: Api) -> set[tuple[str, str]]:
    """Every route of the application, also those that its document leaves out."""
    return {
        (method, re.sub(r"{.*?}", "{}", str(route.path)))
        for route in iter_route_contexts(api.app.routes)
        for method in (route.methods or {"MOUNT"}) - {"HEAD"}
    }


def test_what_is_public_is_so_for_everybody(scene: Scene) -> None:
    for method, path in PUBLIC:
        for token in (None, "cel_" + "x" * 43):
            assert scene.api.holder_of(token).request(method, path).status_code == 200, path


@pytest.mark.parametrize("name", STRANGERS)  # each within what one address may try
def test_a_stranger_is_refused_everywhere_and_changes_nothing(scene: Scene, name: str) -> None:
    before = scene.facts()

    person = scene.api.holder_of(None)
    if (header := STRANGERS[name]) is not None:
        person.headers.update({b"Authorization": header.encode("latin-1")})
    for endpoint in ALL:
        answer = scene.ask(endpoint, person)
        assert problem(answer) == (401, "unauthenticated"), endpoint.action
        assert answer.headers["www-authenticate"] == 'Bearer realm="celeriac"'
    for method, path in SCHEDULES:
        answer = person.request(method, path.replace("{}", "s1"))
        assert problem(answer) == (401, "unauthenticated"), (method, path)

    assert scene.facts() == before
    assert scene.api.denials() == []


def test_of_a_strangers_request_the_body_is_not_looked_at(api: Api) -> None:
    stranger = api.holder_of("cel_" + "x" * 43)

    for body, media_type in ((b"{", "application/json"), (b"x", "text/plain"), (b"", "")):
        answer = stranger.post("/v1/runs", content=body, headers={"Content-Type": media_type})
        assert problem(answer) == (401, "unauthenticated")


@pytest.mark.parametrize("why", ["revoked", "expired"])
def test_a_token_that_is_over_opens_nothing_and_is_noted_once(scene: Scene, why: str) -> None:
    api = scene.api
    token = api.token("owner", expires_days=1)
    with api.database.begin() as connection:
        if why == "revoked":
            listed = tokens.list_tokens(connection)[-1]
            tokens.revoke(connection, DEFAULT_TENANT, listed.token_id, UserId("boss"))
        else:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(
                "UPDATE celeriac.tokens SET expires_at = now() WHERE expires_at IS NOT NULL"
            )
    person = api.holder_of(token)
    before = scene.facts()

    for endpoint in ALL:
        assert problem(scene.ask(endpoint, person)) == (401, "unauthenticated")

    assert scene.facts() == before
    assert [(actor, action) for actor, action, _ in api.denials()] == [("owner", "token.use")]


@pytest.mark.parametrize(
    ("column", "user", "role", "tenant"),
    [
        ("other", "mallory", "user", "default"),
        ("rival", "mallory", "admin", "rival"),
        ("rival", "owner", "operator", "rival"),  # the same name means nothing elsewhere
    ],
)
def test_what_is_anothers_does_not_exist(
    scene: Scene, column: str, user: str, role: str, tenant: str
) -> None:
    person = scene.api.person(user, role, tenant=tenant)
    before = scene.facts()

    told = {each.action: scene.told(each, person) for each in ENDPOINTS[:-1]}

    assert told == {each.action: getattr(each, column) for each in ENDPOINTS[:-1]}
    assert scene.facts() == before
    refused = [action for action, answer in told.items() if answer in ("403", "404")]
    assert len(scene.api.denials()) == len(refused)
    assert scene.told(ENDPOINTS[-1], person) == "201"


@pytest.mark.parametrize(
    ("column", "user", "role"),
    [("owner", "owner", "user"), ("operator", "olga", "operator"), ("operator", "ada", "admin")],
)
def test_owner_and_operator_may_what_the_table_says(
    scene: Scene, column: str, user: str, role: str
) -> None:
    person = scene.api.person(user, role)

    told = {each.action: scene.told(each, person) for each in ENDPOINTS}

    assert told == {each.action: getattr(each, column) for each in ENDPOINTS}
    assert scene.desk.ledger.entries == []


def test_who_may_decide_is_who_the_principals_say_and_by_is_the_token(scene: Scene) -> None:
    bob, carl = scene.api.person("bob"), scene.api.person("carl")
    at = f"/v1/approvals/{scene.names['approval']}"
    body = {"decision": "approve", "arguments_hash": scene.names["hash"]}

    refused = bob.post(f"{at}/decision", json=body)
    (seen,) = carl.get("/v1/approvals").json()["approvals"]
    decided = carl.post(f"{at}/decision", json=body)

    assert problem(refused) == (403, "not-allowed")
    assert ("bob", "approval.approve", "denied") in scene.desk.trail(scene.names["approval"])
    assert seen["approval_id"] == scene.names["approval"]
    assert decided.json()["status"] == "approved"
    assert scene.api.rows("SELECT reviewer FROM celeriac.approval_decisions") == [("carl",)]
    assert problem(carl.post(f"{at}/decision", json=body)) == (409, "decision-refused")
    assert problem(carl.post(f"{at}/decision", json={**body, "by": "owner"})) == (
        422,
        "invalid-request",
    )


def test_an_edit_is_checked_like_a_proposal_and_executed_as_it_was_edited(scene: Scene) -> None:
    carl = scene.api.person("carl")
    at = f"/v1/approvals/{scene.names['approval']}"
    carl.get(at)

    def edit(arguments: dict[str, Any]) -> httpx2.Response:
        body = {"decision": "edit", "arguments_hash": scene.names["hash"], "arguments": arguments}
        return carl.post(f"{at}/decision", json=body)

    for amount in (-1, "-1", "abc", "NaN", "", None):
        assert problem(edit({**REFUND, "amount": amount})) == (422, "invalid-arguments")
    assert problem(edit({"amount": "12.50"})) == (422, "invalid-arguments")
    assert carl.get(at).json()["status"] == "pending"
    assert scene.desk.ledger.entries == []

    assert edit({**REFUND, "amount": "12.50"}).json()["status"] == "approved"

    scene.desk.go_on(RunId(scene.names["run"]))
    assert scene.desk.ledger.amounts() == ["12.50"]
    kept = scene.api.rows("SELECT arguments ->> 'amount' FROM celeriac.approvals ORDER BY version")
    assert kept == [("80.00",), ("12.50",)]


def test_what_was_rejected_cannot_be_approved_any_more(scene: Scene) -> None:
    carl = scene.api.person("carl")
    at = f"/v1/approvals/{scene.names['approval']}"
    carl.get(at)
    body = {"arguments_hash": scene.names["hash"]}
    carl.post(f"{at}/decision", json={**body, "decision": "reject", "reason": "no"})

    late = carl.post(f"{at}/decision", json={**body, "decision": "approve"})

    assert problem(late) == (409, "decision-refused")
    scene.desk.go_on(RunId(scene.names["run"]))
    assert scene.desk.ledger.entries == []
    assert scene.api.rows("SELECT status FROM celeriac.approvals") == [("rejected",)]


def test_a_run_that_is_not_there_and_one_that_is_not_yours_look_the_same(scene: Scene) -> None:
    mallory = scene.api.person("mallory")

    def told(run_id: str) -> dict[str, Any]:
        answer = mallory.get(f"/v1/runs/{run_id}")
        text = answer.text.replace(run_id, "RUN")
        return {"status": answer.status_code, "text": text, "headers": len(answer.headers)}

    assert told(scene.names["run"]) == told("r00000000000000000")


def test_revoking_a_token_ends_it_at_once(api: Api) -> None:
    person = api.person("alice")
    assert person.get("/v1/runs").status_code == 200
    ((token_id,),) = api.rows("SELECT token_id FROM celeriac.tokens")

    with api.database.begin() as connection:
        tokens.revoke(connection, DEFAULT_TENANT, TokenId(token_id), UserId("boss"))

    assert problem(person.get("/v1/runs")) == (401, "unauthenticated")


def test_the_database_holds_no_token(api: Api) -> None:
    token = api.token("alice")
    api.holder_of(token).get("/v1/runs")

    (row,) = api.rows("SELECT t::text, last_used_at IS NOT NULL FROM celeriac.tokens AS t")
    trail = api.rows("SELECT detail::text FROM celeriac.audit")

    assert token not in row[0]
    assert token[20:] not in str(trail)
    assert row[1]


def test_a_role_has_those_before_it() -> None:
    assert [role.word for role in sorted(Role)] == ["user", "operator", "admin"]
    assert all(rule.own <= rule.others for rule in RULES.values())
