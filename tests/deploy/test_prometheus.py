"""The shipped rules and dashboard, asked of a real Prometheus that scrapes real processes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
import yaml

from tests.crash import fixtures
from tests.crash.agents import QUEUE
from tests.crash.servers import free_port
from tests.crash.stack import Stack
from tests.deploy.compose import ROOT
from tests.processes import Processes
from tests.waiting import eventually

pytestmark = [
    pytest.mark.processes,
    pytest.mark.crash,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="there is no prometheus; Debian has it in a package of that name",
    ),
]
nursery, processes, stack = fixtures.nursery, fixtures.processes, fixtures.stack

RULES = ROOT / "deploy/prometheus/rules.yml"
ALERTS = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
PANELS = json.loads((ROOT / "deploy/grafana/celeriac.json").read_text())["panels"]
EXPRESSIONS = {
    f"{panel['title']}: {target['expr']}": target["expr"]
    for panel in PANELS
    for target in panel.get("targets", [])
}
NOTICED_SECONDS = 60.0

# What is so when an alert has to fire, minute by minute; and when all is well.
TROUBLES = {
    "CeleriacNobodyLeads": {"celeriac_scheduler_leads": "0x60"},
    "CeleriacRowsUnread": {"celeriac_rows_read": "0x60"},
    "CeleriacQueueWaits": {'celeriac_queue_age_seconds{queue="celeriac"}': "61x60"},
    "CeleriacNoWorker": {'celeriac_runs{status="paused",phase="waiting_worker"}': "1x60"},
    "CeleriacUnsettledEffects": {'celeriac_effects_unsettled{state="unknown"}': "1x60"},
    "CeleriacNeedsAttention": {
        'celeriac_runs{status="needs_attention",phase="waiting_tool"}': "2x60",
        "celeriac_attention_age_seconds": "901x60",
    },
    "CeleriacApprovalsWait": {"celeriac_approval_age_seconds": "14401x60"},
    "CeleriacWorkersDie": {'celeriac_worker_deaths_last_hour{verdict="lifeline"}': "4x60"},
    "CeleriacStepHangs": {"celeriac_step_age_seconds": "1801x60"},
    "CeleriacModelsFail": {
        'celeriac_model_call_seconds_count{agent="clerk",outcome="answered"}': "0+7x60",
        'celeriac_model_call_seconds_count{agent="clerk",outcome="transient"}': "0+3x60",
    },
    "CeleriacBrokerLosesMessages": {"celeriac_steps_published_again_total": "0+7x60"},
    "CeleriacApiFails": {
        'celeriac_http_request_seconds_count{operation="show_run",status="200"}': "0+90x60",
        'celeriac_http_request_seconds_count{operation="show_run",status="500"}': "0+10x60",
    },
    "CeleriacStrangers": {'celeriac_refused_tokens_total{why="unknown"}': "0+90x60"},
}
WELL = {
    "celeriac_scheduler_leads": "1x60",
    "celeriac_rows_read": "1x60",
    'celeriac_queue_age_seconds{queue="celeriac"}': "1x60",
    'celeriac_runs{status="paused",phase="waiting_worker"}': "0x60",
    'celeriac_runs{status="needs_attention",phase="waiting_tool"}': "0x60",
    'celeriac_effects_unsettled{state="unknown"}': "0x60",
    "celeriac_attention_age_seconds": "0x60",
    "celeriac_approval_age_seconds": "60x60",
    'celeriac_worker_deaths_last_hour{verdict="lifeline"}': "1x60",
    "celeriac_step_age_seconds": "60x60",
    'celeriac_model_call_seconds_count{agent="clerk",outcome="answered"}': "0+90x60",
    'celeriac_model_call_seconds_count{agent="clerk",outcome="transient"}': "0+10x60",
    "celeriac_steps_published_again_total": "0+1x60",
    'celeriac_http_request_seconds_count{operation="show_run",status="200"}': "0+99x60",
    'celeriac_http_request_seconds_count{operation="show_run",status="500"}': "0+1x60",
    'celeriac_refused_tokens_total{why="unknown"}': "0+1x60",
}


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_its_trouble_and_none_when_all_is_well(tmp_path: Path) -> None:
    assert TROUBLES.keys() == ALERTS
    promtool("check", "rules", RULES)
    cases = [(WELL, set[str]())] + [
        ({**WELL, **trouble}, {name}) for name, trouble in TROUBLES.items()
    ]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "30m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing
                    ],
                }
            ],
        }
        for series, firing in cases
    ]
    file = tmp_path / "tests.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )

    promtool("test", "rules", file)


class Prometheus:
    """A server that scrapes every second, with the shipped rules, each of which fires at once."""

    def __init__(self, folder: Path, ports: dict[str, list[int]]) -> None:
        rules = yaml.safe_load(RULES.read_text())
        for rule in rules["groups"][0]["rules"]:
            rule.pop("for", None)
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(folder / "rules.yml")]
        for job in config["scrape_configs"]:  # whose containers' addresses are ports here
            del job["authorization"]
            job.pop("dns_sd_configs", None)
            found = ports[job["job_name"].removeprefix("celeriac-")]
            job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in found]}]
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def query(self, expression: str) -> list[Any]:
        """What the expression finds; nothing while the server is not there yet."""
        try:
            answer = httpx2.get(
                f"{self._url}/api/v1/query", params={"query": expression}, timeout=30
            )
        except httpx2.TransportError:
            return []
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, (expression, answer.text)
        return list(answer.json()["data"]["result"])

    def wait_for_alert(self, name: str) -> None:
        eventually(
            lambda: self.query(f'ALERTS{{alertstate="firing",alertname="{name}"}}'),
            deadline_seconds=NOTICED_SECONDS,
            what=f"alert {name}",
        )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def ports() -> dict[str, list[int]]:
    return {"api": [free_port()], "scheduler": [free_port()], "worker": [free_port(), free_port()]}


@pytest.fixture
def prometheus(tmp_path: Path, ports: dict[str, list[int]]) -> Iterator[Prometheus]:
    prometheus = Prometheus(tmp_path, ports)
    yield prometheus
    prometheus.close()


def test_every_panel_has_something_to_show_and_alerts_fire(
    stack: Stack, processes: Processes, prometheus: Prometheus, ports: dict[str, list[int]]
) -> None:
    api = processes.start(["api", "--port", str(ports["api"][0])])
    scheduler = stack.start_scheduler(metrics_port=ports["scheduler"][0], redispatch_seconds=600)
    workers = [
        stack.start_worker(metrics_port=port, slots=1, metrics_address="127.0.0.1")
        for port in ports["worker"]
    ]
    stack.completed(stack.start("counter"))
    for _ in workers:  # each has one, and what comes after it waits
        stack.wait_for_call(stack.start("waiter"), "wait_at")

    def empty() -> set[str]:
        httpx2.get(f"http://127.0.0.1:{ports['api'][0]}/v1/runs", timeout=30)
        stack.start("counter")
        with redis.Redis.from_url(stack.broker.url) as client:
            client.delete(QUEUE)  # and is not published again for ten minutes: a deficit
        return {each for each in EXPRESSIONS if not prometheus.query(EXPRESSIONS[each])}

    eventually(
        empty,
        until=set().__eq__,
        deadline_seconds=NOTICED_SECONDS,
        what="every panel has something to show",
    )

    workers[0].kill_group()
    eventually(
        lambda: float(
            prometheus.query("sum(increase(celeriac_worker_deaths_total[1m]))")[0]["value"][1]
        ),
        until=(0.0).__lt__,
        deadline_seconds=NOTICED_SECONDS,
        what="the first death is seen",
    )
    workers[1].kill_group()
    prometheus.wait_for_alert("CeleriacNoWorker")
    scheduler.kill_group()
    prometheus.wait_for_alert("CeleriacNobodyLeads")
    api.kill_group()
    prometheus.wait_for_alert("CeleriacRowsUnread")
