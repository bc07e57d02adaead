"""Who comes in, how long for, and what the browser is told about it."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from sqlalchemy.exc import DBAPIError

from celeriac.ids import DEFAULT_TENANT, TokenId, UserId
from celeriac_api.console.sessions import COOKIE
from celeriac_storage import console_sessions, tokens
from celeriac_storage.database import sqlstate
from tests.api.server import Api, statuses
from tests.console.visitor import Visitor, Visitors


def facts(api: Api) -> list[tuple[object, ...]]:
    """All that signing in could have changed."""
    return [
        *api.rows("SELECT session_id, hash, ended_at FROM celeriac.console_sessions ORDER BY 1"),
        *api.rows("SELECT audit_id FROM celeriac.audit"),
    ]


def one_time_token(api: Api) -> str:
    with api.database.begin() as connection:
        return console_sessions.make_one_time_token(
            connection, DEFAULT_TENANT, UserId("local"), ["admin"]
        )


def test_a_token_opens_a_session_that_no_script_and_no_other_site_can_use(
    api: Api, visitors: Visitors
) -> None:
    token = api.token("alice")
    visitor = visitors.stranger()

    response = visitor.sign_in(token)

    assert (response.status_code, response.headers["location"]) == (303, "/runs")
    (cookie,) = response.headers.get_list("set-cookie")
    value, *attributes = cookie.split("; ")
    assert set(attributes) == {"HttpOnly", "Path=/", "SameSite=strict"}
    assert token not in value
    assert "alice" in visitor.read("/runs")
    stored = str(api.rows("SELECT s::text FROM celeriac.console_sessions AS s"))
    assert visitor.cookie is not None
    assert visitor.cookie not in stored
    assert token not in stored
    assert api.rows(
        "SELECT actor, outcome FROM celeriac.audit WHERE action = 'console.sign_in'"
    ) == [("alice", "allowed")]


def test_over_tls_the_cookie_is_never_sent_without(api: Api, visitors: Visitors) -> None:
    visitor = visitors.stranger({"Origin": api.url, "X-Forwarded-Proto": "https"})

    response = visitor.sign_in(api.token("alice"))

    assert "Secure" in response.headers["set-cookie"].split("; ")


@pytest.mark.parametrize("token", ["", "cel_wrong", "cel1_wrong", "x" * 20_000, "a.b.c", "é☃"])
def test_a_token_that_is_no_good_opens_nothing(api: Api, visitors: Visitors, token: str) -> None:
    visitor = visitors.stranger()
    before = facts(api)

    response = visitor.sign_in(token)

    assert response.status_code == 401
    assert "opens nothing" in response.text
    assert "set-cookie" not in response.headers
    assert facts(api) == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_nobody_is_signed_in_from_a_page_of_another_site(
    api: Api, visitors: Visitors, headers: dict[str, str]
) -> None:
    token = api.token("alice")
    before = facts(api)

    response = visitors.stranger(headers).sign_in(token)

    assert response.status_code == 403
    assert "set-cookie" not in response.headers
    assert facts(api) == before


def test_a_one_time_token_opens_one_session_of_those_who_show_it_at_once(
    api: Api, visitors: Visitors
) -> None:
    token = one_time_token(api)
    people = [visitors.stranger() for _ in range(8)]

    with ThreadPoolExecutor(len(people)) as pool:
        responses = list(pool.map(lambda visitor: visitor.sign_in(token), people))

    assert statuses(responses) == [303, *[401] * 7]
    (visitor,) = (each for each in people if each.cookie is not None)
    assert "local" in visitor.read("/runs")
    assert api.rows("SELECT actor FROM celeriac.audit WHERE action = 'console.sign_in'") == [
        ("local",)
    ]


def test_a_one_time_token_is_no_token_of_the_api(api: Api) -> None:
    person = api.holder_of(one_time_token(api))

    assert person.get("/v1/runs").status_code == 401


def test_a_one_time_token_that_is_too_old_opens_nothing(api: Api, visitors: Visitors) -> None:
    token = one_time_token(api)
    _damage(api, "code_expires_at = now()")

    assert visitors.stranger().sign_in(token).status_code == 401


def test_signing_out_ends_the_session_wherever_its_cookie_is(
    api: Api, visitors: Visitors, alice: Visitor
) -> None:
    thief = visitors.stranger()
    assert alice.cookie is not None
    thief.http.cookies.set(COOKIE, alice.cookie)
    assert thief.get("/runs").status_code == 200

    response = alice.send(alice.form("/runs", "/sign-out"))

    assert (response.status_code, response.headers["location"]) == (303, "/sign-in")
    assert alice.cookie is None
    assert _is_signed_out(thief.get("/runs"))
    assert api.rows("SELECT actor FROM celeriac.audit WHERE action = 'console.sign_out'") == [
        ("alice",)
    ]


@pytest.mark.parametrize(
    "change",
    [
        "roles = '{admin}'",
        "user_id = 'bob'",
        "expires_at = 'infinity'",
        "ended_at = NULL",
        "hash = NULL",
    ],
)
def test_whose_a_session_is_and_its_end_never_change(api: Api, alice: Visitor, change: str) -> None:
    if change == "ended_at = NULL":
        alice.send(alice.form("/runs", "/sign-out"))

    with pytest.raises(DBAPIError) as refused, api.database.begin() as connection:
        connection.exec_driver_sql(f"UPDATE celeriac.console_sessions SET {change}")

    assert sqlstate(refused.value) == "CE003"


def test_a_session_ends_with_its_time(api: Api, alice: Visitor) -> None:
    _damage(api, "expires_at = now()")

    assert _is_signed_out(alice.get("/runs"))


def test_a_session_ends_with_the_token_that_opened_it(api: Api, alice: Visitor) -> None:
    ((token_id,),) = api.rows("SELECT token_id FROM celeriac.tokens")

    with api.database.begin() as connection:
        tokens.revoke(connection, DEFAULT_TENANT, TokenId(token_id), UserId("boss"))

    assert _is_signed_out(alice.get("/runs"))


def test_who_is_not_signed_in_is_led_to_the_sign_in_and_back(api: Api, visitors: Visitors) -> None:
    visitor = visitors.stranger()

    response = visitor.get("/runs?status=paused")

    assert response.headers["location"] == "/sign-in?next=%2Fruns%3Fstatus%3Dpaused"
    form = visitor.form(response.headers["location"], "/sign-in")
    there = visitor.send(form, token=api.token("alice"))
    assert there.headers["location"] == "/runs?status=paused"


@pytest.mark.parametrize(
    "after",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", ""],
)
def test_the_sign_in_leads_nowhere_else(api: Api, visitors: Visitors, after: str) -> None:
    response = visitors.stranger().sign_in(api.token("alice"), after)

    assert response.headers["location"] == "/runs"


def test_a_link_from_elsewhere_is_asked_for_again_by_a_page_of_ours(visitors: Visitors) -> None:
    visitor = visitors.stranger({"Sec-Fetch-Site": "cross-site"})

    response = visitor.get("/approvals/a1?x=<script>")

    assert response.status_code == 200
    assert 'http-equiv="refresh"' in response.text
    assert "<script>" not in response.text


def test_a_part_of_a_page_sends_who_is_signed_out_to_the_sign_in(visitors: Visitors) -> None:
    response = visitors.stranger({"HX-Request": "true"}).get("/runs")

    assert (response.status_code, response.headers["hx-redirect"]) == (204, "/sign-in")


def test_every_page_has_headers_that_let_nothing_of_others_in(alice: Visitor) -> None:
    for path in ("/runs", "/approvals", "/sign-in", "/runs/r00000000000000000", "/unsettled"):
        headers = alice.get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'", path
        assert {policy["script-src"], policy["style-src"], policy["form-action"]} == {"'self'"}
        assert "unsafe" not in headers["content-security-policy"]
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_scripts_and_styles_are_served_from_here_alone(alice: Visitor) -> None:
    page = alice.read("/runs")

    addresses = [
        each.partition('"')[0] for name in ('src="', 'href="') for each in page.split(name)[1:]
    ]
    assert all(each.startswith("/") and not each.startswith("//") for each in addresses
               if not each.startswith("#"))  # fmt: skip
    for address in (each for each in addresses if each.startswith("/static/")):
        response = alice.get(address)
        assert response.status_code == 200, address
        assert "immutable" in response.headers["cache-control"]
    assert alice.get("/static/../app.py").status_code == 404


def test_the_console_is_in_no_api_document(api: Api) -> None:
    assert all(
        path.startswith("/v1/") or path in ("/healthz", "/readyz", "/metrics")
        for path in api.app.openapi()["paths"]
    )


def _is_signed_out(response: httpx2.Response) -> bool:
    return response.status_code == 303 and response.headers["location"].startswith("/sign-in")


def _damage(api: Api, change: str) -> None:
    with api.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(f"UPDATE celeriac.console_sessions SET {change}")
