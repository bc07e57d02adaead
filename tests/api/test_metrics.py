"""`/metrics` of the API: who may read it, and that its labels stay few whatever is asked."""

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from celeriac.settings import load_settings
from celeriac_api.metrics import REGISTRY
from celeriac_storage.database import Database
from celeriac_tasks.metrics.guard import may_read
from celeriac_tasks.metrics.rows import PREFIX, ROWS
from tests.api.server import Api, problem, serving

TOKEN = "0123456789abcdef-metrics"


def names(answer: httpx2.Response) -> set[str]:
    return {family.name for family in text_string_to_metric_families(answer.text)}


def test_this_machine_reads_the_rows_and_what_the_process_counts(api: Api) -> None:
    api.person("alice").get("/v1/runs")

    answer = api.holder_of(None).get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["cache-control"] == "no-store"
    assert {PREFIX + name for name in ROWS} <= names(answer)
    assert 'celeriac_http_request_seconds_count{operation="list_runs",status="200"}' in answer.text
    assert "celeriac_event_readers 0.0" in answer.text
    assert "celeriac_rows_read 1.0" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-For": "192.0.2.7"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
        {"Host": "shop.example"},
        {"Host": "127.0.0.1.evil.example:80"},
    ],
    ids=str,
)
def test_without_a_token_nobody_reads_it_past_a_proxy_or_under_another_name(
    api: Api, headers: dict[str, str]
) -> None:
    answer = api.holder_of(None).get("/metrics", headers=headers)

    assert problem(answer) == (401, "unauthenticated")


def test_a_token_of_the_api_is_for_one_tenant_and_opens_it_not(api: Api) -> None:
    stranger = api.person("ada", "admin")

    assert stranger.get("/metrics", headers={"Host": "shop.example"}).status_code == 401


def test_the_token_opens_it_from_everywhere_and_a_wrong_one_nowhere(database: Database) -> None:
    with serving(database, metrics_token=TOKEN) as api:
        elsewhere = {"Host": "shop.example", "X-Forwarded-For": "192.0.2.7"}
        right, wrong = api.holder_of(TOKEN), api.holder_of(TOKEN + "x")

        assert right.get("/metrics", headers=elsewhere).status_code == 200
        assert wrong.get("/metrics").status_code == 401
        assert problem(right.get("/v1/runs")) == (401, "unauthenticated")  # and opens only that


@pytest.mark.parametrize(
    ("peer", "host", "is_let_in"),
    [
        ("127.0.0.1", "localhost:9464", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("::1", "[::1]:9464", True),
        ("192.0.2.7", "localhost", False),
        ("127.0.0.1", "", False),
        ("", "localhost", False),
    ],
)
def test_without_a_token_the_address_and_the_name_are_this_machines(
    peer: str, host: str, is_let_in: bool
) -> None:
    token = load_settings(metrics_token=TOKEN).metrics_token
    assert may_read(None, peer, {"host": host}) is is_let_in
    assert may_read(token, peer, {"host": host}) is is_let_in
    assert may_read(token, peer, {"host": host, "authorization": f"Bearer {TOKEN}"})
    assert not may_read(token, peer, {"host": host, "authorization": "Bearer \xff"})
    assert not may_read(token, peer, {"host": host, "authorization": TOKEN})


def test_addresses_that_somebody_invents_are_one_label(api: Api) -> None:
    stranger = api.holder_of(None)

    def operations() -> set[str]:
        return {
            sample.labels["operation"]
            for metric in REGISTRY.collect()
            if metric.name == "celeriac_http_request_seconds"
            for sample in metric.samples
        }

    before = operations()  # of other tests in this process
    for number in range(30):
        stranger.get(f"/invented/{number}")
        stranger.request(f"INVENTED{number}", "/v1/runs")
        stranger.get(f"/v1/runs/{number}")

    documented = {
        operation["operationId"]
        for operations_ in api.app.openapi()["paths"].values()
        for operation in operations_.values()
    }
    assert operations() - before <= documented | {"openapi", "none"}


def test_a_database_that_is_away_is_told_and_is_no_failure() -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/none")
    with serving(away) as api:
        answer = api.holder_of(None).get("/metrics")

    assert answer.status_code == 200
    assert "celeriac_rows_read 0.0" in answer.text
