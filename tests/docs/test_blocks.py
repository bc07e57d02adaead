"""Every code block and every command of the documentation does what its page says."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from celeriac.cli.main import app
from tests.docs.pages import PAGES, Block, blocks
from tests.docs.reader import Reader, assert_printed, lay_checkout
from tests.servers import missing

OPTIONS = {
    "sh": {"until", "usage", "not-run"},
    "python": {"file", "not-run"},
    "sql": {"not-run", "empty"},  # run by tests/integration/test_auditing.py
    "text": set(),
    "mermaid": set(),
}

ELSEWHERE = {
    "docs/deploy.md": "needs Docker, systemd, and roles of one's own",
    "docs/existing-celery-app.md": "its application is one of tests/integration",
    "docs/flower.md": "its commands stay in the foreground",
}
"""Pages whose blocks are tried by tests of their own, or cannot be."""

READ = [page for page in PAGES if page not in ELSEWHERE]


def is_typed(block: Block) -> bool:
    return block.language == "sh" and not {"usage", "not-run"} & set(block.options)


TYPED = [page for page in READ if any(map(is_typed, blocks(page)))]
PYTHON = [page for page in READ if any(block.language == "python" for block in blocks(page))]
USAGE = [block for page in READ for block in blocks(page) if "usage" in block.options]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    lay_checkout(checkout)
    found = Reader(checkout, tmp_path)
    yield found
    found.close()


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", TYPED)
def test_who_types_what_a_page_says_sees_what_it_shows(page: str, reader: Reader) -> None:
    if any("curl" in block.code for block in blocks(page)) and shutil.which("curl") is None:
        missing("curl", FileNotFoundError("not installed"))
    typed: Block | None = None
    printed = ""
    for block in blocks(page):
        if "file" in block.options:
            reader.write(block, block.options["file"])
        elif block.language == "text":
            assert typed is not None, f"{block} is the output of no command"
            assert_printed(block, printed, block.code)
        elif "until" in block.options:
            reader.leave_running(block, block.options["until"])
        elif is_typed(block):
            typed, printed = block, reader.run(block)


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    typed = "".join(block.code for block in blocks(page) if is_typed(block))
    for block in blocks(page):
        # A program that the page's shell runs is for there.
        if "not-run" in block.options:
            continue
        if block.language == "python" and f"python {block.options.get('file')}\n" not in typed:
            exec(compile(block.code, str(block), "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.parametrize("block", USAGE, ids=str)
def test_a_usage_is_one_that_the_command_line_accepts(block: Block) -> None:
    for line in filter(None, block.code.splitlines()):
        program, *arguments = shlex.split(line, comments=True)
        assert program == "celeriac"
        assert_accepted(arguments)


@pytest.mark.parametrize("line", ["nope", "resolve RUN", "resolve RUN CALL --nope"])
def test_a_usage_that_the_command_line_refuses_is_noticed(line: str) -> None:
    with pytest.raises(typer.TyperException):
        assert_accepted(line.split())


def assert_accepted(arguments: list[str]) -> None:
    """Parse the arguments as `celeriac` does, and do nothing."""
    root: Any = typer.main.get_command(app)
    with root.make_context("celeriac", arguments) as context:
        rest = [*context._protected_args, *context.args]
        name, command, rest = root.resolve_command(context, rest)
        command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", READ)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks(page):
        assert block.language in OPTIONS, f"{block}: {block.language!r} is not run by anything"
        assert set(block.options) <= OPTIONS[block.language], f"{block}: {block.options}"
        assert block.options.get("not-run") != "", f"{block} does not say why it is not run"
