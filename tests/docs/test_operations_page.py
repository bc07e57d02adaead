"""What operators are shown and told names figures that some process exports, and no others."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from celeriac_api.metrics import REGISTRY as OF_API
from celeriac_api.metrics import Streams
from celeriac_scheduler.figures import REGISTRY as OF_SCHEDULER
from celeriac_tasks.metrics.rows import PREFIX, ROWS
from celeriac_tasks.metrics.worker import REGISTRY as OF_WORKER
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/operations.md").read_text()
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/celeriac.json").read_text())
SCRAPES = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


def exported() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Each figure's name in an expression, its kind, labels and process."""
    for name, (_, labels) in ROWS.items():
        yield PREFIX + name, "gauge", tuple(labels), "rows"
    streams = CollectorRegistry()
    streams.register(Streams())
    for process, registry in (
        ("API", OF_API),
        ("API", streams),
        ("scheduler", OF_SCHEDULER),
        ("worker", OF_WORKER),
    ):
        made = list(registry._collector_to_names)
        for collector in made:
            labels = tuple(getattr(collector, "_labelnames", ()))
            for metric in collector.collect():
                suffix = "_total" if metric.type == "counter" else ""
                yield metric.name + suffix, metric.type, labels, process


EXPORTED = {name: (kind, labels) for name, kind, labels, _ in exported()}


def expressions() -> dict[str, str]:
    alerts = {rule["alert"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    return {**alerts, **panels}


def test_the_table_of_figures_is_what_processes_export() -> None:
    rows = re.findall(r"^\| `(celeriac_\w+)` \|([^|]*)\| (\w+) \|", PAGE, re.MULTILINE)
    told = {
        (name, tuple(re.findall(r"`(\w+)`", labels)), process) for name, labels, process in rows
    }

    assert told == {(name, labels, process) for name, _, labels, process in exported()}
    assert len(rows) == len(told)


@pytest.mark.parametrize("where", expressions())
def test_alerts_and_panels_ask_for_what_is_exported(where: str) -> None:
    expression = expressions()[where]

    for name, selected in re.findall(r"\b(celeriac_\w+)(?:\{([^}]*)\})?", expression):
        base = next((name.removesuffix(end) for end in OF_HISTOGRAMS if name.endswith(end)), name)
        kind, labels = EXPORTED[name] if name in EXPORTED else EXPORTED[base]
        assert (kind == "histogram") == (name != base), name
        assert set(re.findall(r"(\w+)\s*[!=]~?\"", selected)) <= {*labels, "le"}, name
    grouped = {
        label.strip()
        for found in re.findall(r"by \(([^)]*)\)", expression)
        for label in found.split(",")
    }
    asked = re.sub(r"_(bucket|count|sum)\b", "", expression)
    known = {label for name, (_, labels) in EXPORTED.items() if name in asked for label in labels}
    assert grouped <= known | {"le"}
    assert re.search(r"celeriac_\w+", expression)


def test_counters_are_asked_for_as_rates_only() -> None:
    for where, expression in expressions().items():
        for name, (kind, _) in EXPORTED.items():
            if kind == "counter" and name in expression:
                assert re.search(rf"(rate|increase)\({name}\b", expression), where


def test_every_alert_is_on_the_page_with_what_to_do() -> None:
    told = re.findall(r"^\| `(Celeriac\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]

    assert [name for name, _ in told] == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_what_is_scraped_is_served_there_and_with_the_token() -> None:
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]

    for job in SCRAPES["scrape_configs"]:
        assert job["authorization"] == {"credentials_file": "/run/secrets/metrics_token"}
        for found in job.get("dns_sd_configs", []):
            for name in found["names"]:
                assert services[name]["environment"]["CELERIAC_METRICS_PORT"] == found["port"]
                assert "METRICS_TOKEN" in services[name]["environment"]["CELERIAC_METRICS_TOKEN"]
        for target in job.get("static_configs", []):
            (address,) = target["targets"]
            name, port = address.split(":")
            assert services[name]["command"][-1] == port
    mounted = [volume.split(":")[1] for volume in services["prometheus"]["volumes"]]
    assert set(SCRAPES["rule_files"]) <= set(mounted)


def test_the_dashboard_names_the_source_that_is_provisioned() -> None:
    source = yaml.safe_load((ROOT / "deploy/grafana/datasource.yml").read_text())
    uids = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}

    assert uids == {source["datasources"][0]["uid"]}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
