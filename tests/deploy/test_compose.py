"""What `docker-compose.yml` says: by the specification's schema, and by what a deployment needs."""

import subprocess

import pytest
import yaml

from celeriac.settings import Settings
from tests.deploy.compose import (
    FILE,
    ROOT,
    VARIABLE,
    MissingVariable,
    Service,
    program,
    seconds,
    services,
    variables_of,
)

DEV = variables_of(ROOT / "deploy" / "dev.env")
ONE_SHOT = {"migrate", "order-desk-tables"}
WITH_DATA = {
    "postgres": "/var/lib/postgresql",
    "redis": "/data",
    "prometheus": "/prometheus",
    "grafana": "/var/lib/grafana",
}
OF_OTHERS = {"prometheus": "nobody"}
"""The user that an image runs as, where it is not called like the service."""


@pytest.fixture
def file() -> dict[str, Service]:
    return services(DEV)


def test_the_file_is_valid_by_the_compose_specification() -> None:
    checked = subprocess.run(
        [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", FILE],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_nothing_starts_with_a_password_or_agents_that_nobody_chose() -> None:
    defaults = {
        found["name"] for found in VARIABLE.finditer(FILE.read_text()) if found["kind"] != "?"
    }

    assert defaults - {None} == {"IMAGE"}  # a dollar sign has no name
    with pytest.raises(MissingVariable):
        services({})


def test_compose_reads_no_passwords_by_itself(file: dict[str, Service]) -> None:
    by_itself = [*ROOT.glob("docker-compose.override.*"), *ROOT.glob("compose*.y*ml")]
    named = [each["path"] for service in file.values() for each in service.raw.get("env_file", [])]

    assert by_itself == []
    assert named == ["agents.env"]


def test_what_is_published_is_reached_from_this_host_only(file: dict[str, Service]) -> None:
    published = {
        name: port for name, service in file.items() for port in service.raw.get("ports", [])
    }

    assert published.keys() == {*("api", "flower", "notification-service", "prometheus", "grafana")}
    assert all(port.startswith("127.0.0.1:") for port in published.values())


def test_what_ends_is_started_again_unless_it_was_to_end(file: dict[str, Service]) -> None:
    assert {name for name, service in file.items() if not service.restarts} == ONE_SHOT


def test_whatever_goes_on_has_a_health_check(file: dict[str, Service]) -> None:
    unchecked = {name for name, service in file.items() if service.health_command is None}

    assert unchecked == ONE_SHOT


def test_data_lie_in_volumes_and_nothing_else_can_be_written(file: dict[str, Service]) -> None:
    declared = yaml.safe_load(FILE.read_text())["volumes"]
    mounted: dict[str, str] = {}
    for name, service in file.items():
        assert service.raw["read_only"] is True
        for volume in service.raw.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source in declared:
                mounted[name] = target
            else:
                assert mode == ["ro"], volume

    assert mounted == WITH_DATA


def test_no_service_may_more_than_it_needs(file: dict[str, Service]) -> None:
    for name, service in file.items():
        assert service.raw["cap_drop"] == ["ALL"], name
        assert service.raw["security_opt"] == ["no-new-privileges:true"], name
        # Images of others would start as root and step down.
        assert service.is_ours or service.raw["user"] == OF_OTHERS.get(name, name), name


def test_files_that_are_mounted_exist(file: dict[str, Service]) -> None:
    sources = [
        volume.split(":")[0] for each in file.values() for volume in each.raw.get("volumes", [])
    ]

    assert [name for name in sources if name.startswith(".") and not (ROOT / name).is_file()] == []


def test_a_worker_is_not_killed_before_its_grace_is_over(file: dict[str, Service]) -> None:
    worker = file["worker"]
    grace_seconds = float(worker.environment["CELERIAC_GRACE_SECONDS"])

    # Time to hand back what is left.
    assert seconds(worker.raw["stop_grace_period"]) >= grace_seconds + 10


def test_there_are_two_of_each_that_runs_depend_on(file: dict[str, Service]) -> None:
    assert file["worker"].replicas == 2
    assert file["scheduler"].replicas == 2


def test_the_database_has_connections_for_all_and_as_many_again(file: dict[str, Service]) -> None:
    given = next(
        int(argument.removeprefix("max_connections="))
        for argument in file["postgres"].raw["command"]
        if argument.startswith("max_connections=")
    )
    of_a_worker = Settings.model_fields["connections"].default + 2 + 4  # and the order desk's own
    of_the_api = Settings.model_fields["connections"].default
    needed = file["worker"].replicas * of_a_worker + file["scheduler"].replicas * 2 + of_the_api

    assert given >= 2 * needed


def test_every_variable_of_ours_is_a_setting(file: dict[str, Service]) -> None:
    known = {f"CELERIAC_{name.upper()}" for name in Settings.model_fields}
    set_somewhere = {name for service in file.values() for name in service.environment}

    assert {name for name in set_somewhere if name.startswith("CELERIAC_")} <= known


def test_every_password_reaches_only_those_who_need_it_and_no_command_line() -> None:
    secrets = {name: f"secret-{name}" for name in DEV}
    file = services(secrets)
    seen = {
        name: {
            variable
            for variable, secret in secrets.items()
            if any(secret in value for value in service.environment.values())
        }
        for name, service in file.items()
    }

    both = {"APP_PASSWORD", "BROKER_PASSWORD"}
    assert seen == {
        "postgres": {"OWNER_PASSWORD", "APP_PASSWORD", "API_PASSWORD"},
        "redis": {"BROKER_PASSWORD"},
        "migrate": {"OWNER_PASSWORD"},
        "scheduler": both | {"METRICS_TOKEN"},
        "worker": both | {"CELERIAC_AGENTS", "METRICS_TOKEN"},
        "api": {"API_PASSWORD", "BROKER_PASSWORD", "METRICS_TOKEN"},
        "flower": {"BROKER_PASSWORD", "CELERIAC_FLOWER_AUTH"},
        "prometheus": set(),  # by a file
        "grafana": {"GRAFANA_PASSWORD"},
        "order-desk-tables": both,
        "notification-service": set(),
    }
    assert "secret-" not in str([service.raw.get("command") for service in file.values()])
