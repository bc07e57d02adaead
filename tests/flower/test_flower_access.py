"""Who may reach Flower, and what it lets them do."""

import signal

import httpx2
import pytest
from flower.urls import handlers  # type: ignore[import-untyped]  # it ships no types

from tests.flower.server import FlowerServer
from tests.processes import Processes

PAGES = ["/", "/workers", "/tasks", "/broker"]
API = ["/api/workers", "/api/tasks", "/api/queues/length"]


def operations() -> list[str]:
    """The paths of everything that Flower can be asked to do, with something to do it to."""
    return [
        path.replace("(.+)", "something")
        for path, handler in (route[:2] for route in handlers if isinstance(route, tuple))
        if path.startswith("/api/") and "post" in vars(handler)
    ]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])  # noqa: S104 - they are refused
def test_it_does_not_listen_beyond_loopback_without_authentication(
    processes: Processes, address: str
) -> None:
    process = processes.start(["flower", "--address", address, "--port", "0"])

    assert process.wait() == 2
    assert "CELERIAC_FLOWER_AUTH" in process.output
    assert "Flower is at" not in process.output


def test_with_authentication_nobody_sees_anything_without_it(flower: FlowerServer) -> None:
    for path in [*PAGES, *API]:
        assert httpx2.get(flower.url + path).status_code == 401, path
        assert httpx2.get(flower.url + path, auth=("operator", "wrong")).status_code == 401, path
        assert flower.http.get(path).status_code == 200, path


def test_without_authentication_its_api_is_closed(processes: Processes) -> None:
    flower = FlowerServer(processes, has_auth=False)

    answers = {path: flower.http.get(path).status_code for path in [*PAGES, *API]}

    assert answers == dict.fromkeys(PAGES, 200) | dict.fromkeys(API, 401)
    flower.close()


def test_without_authentication_it_answers_under_no_name_but_loopback(
    processes: Processes,
) -> None:
    flower = FlowerServer(processes, has_auth=False)

    def answer(host: str) -> int:
        return flower.http.get("/tasks", headers={"Host": host}).status_code

    assert answer("localhost:5555") == answer("[::1]:5555") == answer("127.0.0.1") == 200
    assert answer("page.example:5555") == answer("127.0.0.1.page.example") == 403
    flower.close()


def test_it_can_only_look_whoever_asks(flower: FlowerServer) -> None:
    asked = operations()
    answers = {path: flower.http.post(path) for path in asked}

    assert len(asked) >= 14
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        asked, 403
    )
    assert all("Read only" in answer.text for answer in answers.values())


def test_it_may_do_more_only_with_authentication(processes: Processes) -> None:
    processes.environment["FLOWER_READ_ONLY"] = "false"

    refused = processes.start(["flower", "--port", "0"])
    flower = FlowerServer(processes)

    assert refused.wait() == 2
    assert "FLOWER_READ_ONLY" in refused.output
    assert flower.http.post("/api/worker/shutdown/nobody").status_code == 404
    flower.close()


def test_a_page_of_another_site_is_refused_though_the_browser_adds_the_password(
    processes: Processes,
) -> None:
    processes.environment["FLOWER_READ_ONLY"] = "false"
    flower = FlowerServer(processes)

    answer = flower.http.post(
        "/api/worker/shutdown/nobody",
        headers={"Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"},
    )

    assert answer.status_code == 403
    flower.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(flower: FlowerServer, number: signal.Signals) -> None:
    flower.process.send(number)

    assert flower.process.wait() == 0
    assert "Traceback" not in flower.process.output


def test_a_port_that_is_taken_is_told(flower: FlowerServer, processes: Processes) -> None:
    port = httpx2.URL(flower.url).port

    second = processes.start(["flower", "--port", str(port)])

    assert second.wait() == 1
    assert f"127.0.0.1:{port}" in second.output
