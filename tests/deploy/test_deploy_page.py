"""`docs/deploy.md` names files, commands, options and figures that are so."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from celeriac.cli.group import GLOBAL_OPTIONS
from celeriac.cli.main import app
from celeriac.settings import Settings
from tests.deploy.compose import ROOT, services, variables_of

PAGE = (ROOT / "docs/deploy.md").read_text()
SHELL = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def lines() -> Iterator[str]:
    for block in SHELL:
        yield from block.splitlines()


def celeriac_commands() -> list[list[str]]:
    """The arguments of every `celeriac` in a block, also where Compose or systemd starts it."""
    found = re.findall(r"^(?:docker .* worker )?celeriac (.+)$", "\n".join(lines()), re.MULTILINE)
    spans = re.findall(r"`celeriac ([^`]+)`", PAGE)
    return [shlex.split(arguments) for arguments in [*found, *spans]]


@pytest.mark.parametrize("block", SHELL, ids=range(len(SHELL)))
def test_a_block_is_shell(block: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True, check=False)

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("arguments", celeriac_commands(), ids=" ".join)
def test_a_command_exists_with_its_options(arguments: list[str]) -> None:
    group = typer.main.get_command(app)
    while arguments[0] in GLOBAL_OPTIONS:
        arguments = arguments[2:]
    context = typer.Context(group)
    command = group.get_command(context, arguments[0])  # type: ignore[attr-defined]  # a group

    assert command is not None, arguments
    command.make_context(arguments[0], arguments[1:], parent=context)  # fails on wrong usage


def test_every_service_that_a_command_names_is_in_the_compose_file() -> None:
    known = services(variables_of(ROOT / "deploy/dev.env"))
    named = re.findall(r"docker compose [^\n]*?(?:exec|--scale) (\w+)", "\n".join(lines()))

    assert named
    assert set(named) <= known.keys()


def test_every_file_that_a_command_names_exists() -> None:
    named = re.findall(r"deploy/[\w/.*-]+", "\n".join(lines()))

    assert named
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_env_file_of_the_page_has_all_that_compose_asks_for(tmp_path: Path) -> None:
    (block,) = (block for block in SHELL if "> .env" in block)
    script = block.replace("docker compose up --build --detach", "cat .env")

    made = subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    variables = dict(line.split("=", 1) for line in made.stdout.splitlines())

    services(variables)
    assert all(re.fullmatch(r"[\w:]+", value) for value in variables.values())


def test_the_figures_are_those_of_the_settings_and_of_the_files() -> None:
    connections = Settings.model_fields["connections"].default
    grace_seconds = Settings.model_fields["grace_seconds"].default
    worker = services(variables_of(ROOT / "deploy/dev.env"))["worker"]

    told = f"`CELERIAC_CONNECTIONS` ({connections}), its heartbeat's and its lifeline's: "
    assert f"{told}{connections + 2}" in PAGE
    assert f"for a grace of {grace_seconds:g} s" in PAGE
    assert float(worker.environment["CELERIAC_GRACE_SECONDS"]) == grace_seconds
    assert f"{worker.raw['stop_grace_period'].removesuffix('s')} s in the compose" in PAGE
