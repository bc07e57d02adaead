"""A person at the API, from outside: `celeriac token` and `celeriac api`, each a real process."""

import httpx2

from tests.acceptance.terminal import Terminal
from tests.crash.servers import free_port
from tests.waiting import eventually

START_SECONDS = 60.0


def test_a_token_opens_the_api_until_it_is_revoked(terminal: Terminal) -> None:
    terminal.open(workers=1)
    made = terminal.celeriac("token", "create", "--user", "alice", "--name", "laptop")
    url = f"http://127.0.0.1:{free_port()}"
    api = terminal.processes.start(["api", "--port", url.rpartition(":")[2]])
    eventually(
        lambda: httpx2.get(f"{url}/readyz").json(),
        until=lambda told: told["status"] == "ready",
        deadline_seconds=START_SECONDS,
        what="the API ready",
    )
    headers = {"Authorization": f"Bearer {made['token']}", "Idempotency-Key": "first"}

    started = httpx2.post(
        f"{url}/v1/runs", json={"agent": "witness", "input": "Hello."}, headers=headers
    )

    run_id = started.json()["run_id"]
    completed = terminal.completed(run_id)
    assert completed["user_id"] == "alice"
    assert httpx2.get(f"{url}/v1/runs/{run_id}", headers=headers).json() == completed
    assert made["token"] not in api.output
    terminal.celeriac("token", "revoke", made["token_id"])
    assert httpx2.get(f"{url}/v1/runs", headers=headers).status_code == 401
