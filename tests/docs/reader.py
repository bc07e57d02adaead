"""A reader who does what a page says, in a checkout of their own, block by block."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.docs.pages import ROOT, Block
from tests.waiting import eventually

BLOCK_SECONDS = 120.0
READY_SECONDS = 120.0


class Reader:
    """Types the blocks of one page. `close` ends what still runs."""

    def __init__(self, checkout: Path, notes: Path) -> None:
        self._checkout = checkout
        self._state = notes / "state"  # what the shell hands to the next block
        self._notes = notes
        self._terminals: list[subprocess.Popen[bytes]] = []
        lines = [f"export {name}={_quoted(value)}" for name, value in _environment().items()]
        self._state.write_text("\n".join([*lines, f"cd {_quoted(str(checkout))}", ""]))

    def run(self, block: Block) -> str:
        """Run a block of shell commands to its end; what it printed. Fails if a command failed."""
        done = subprocess.run(
            ["bash", "-c", self._script(block.code, keep=True)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
            env={},
        )
        assert done.returncode == 0, f"{block} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def leave_running(self, block: Block, until: str) -> None:
        """Run a block in a terminal of its own; returns when it has printed `until`."""
        path = self._notes / f"terminal-{len(self._terminals)}"
        with path.open("wb") as output:
            terminal = subprocess.Popen(
                ["bash", "-c", self._script(block.code, keep=False)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={},
                start_new_session=True,
            )
        self._terminals.append(terminal)
        eventually(
            lambda: None if terminal.poll() is not None else path.read_text(),
            until=lambda printed: printed is None or until in printed,
            deadline_seconds=READY_SECONDS,
            what=f"{block} printing {until!r}",
        )
        assert terminal.poll() is None, f"{block} ended:\n{path.read_text()}"

    def write(self, block: Block, name: str) -> None:
        """Write the block into a file of the checkout."""
        (self._checkout / name).write_text(block.code)

    def close(self) -> None:
        """Press Ctrl-C in every terminal, the last one first."""
        for terminal in reversed(self._terminals):
            os.killpg(terminal.pid, signal.SIGINT)
            try:
                terminal.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(terminal.pid, signal.SIGKILL)
                terminal.wait()

    def _script(self, code: str, *, keep: bool) -> str:
        """Each block is a shell of its own, so that its end and its output are known; folder and
        variables go from one to the next."""
        # Without job control a background shell ignores SIGINT, and so would its children.
        lines = [f". {_quoted(str(self._state))}", "set -e -o pipefail", code]
        if keep:
            lines += [f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {_quoted(str(self._state))}"]
        return "\n".join(lines)


def lay_checkout(folder: Path) -> None:
    """A folder that looks like this checkout, environment included, and can be written into."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".celeriac", "build"):
            (folder / entry.name).symlink_to(entry)


def assert_printed(block: Block, printed: str, expected: str) -> None:
    """Compare what was printed with what the page shows; … there stands for anything."""
    pattern = "".join(
        ".*" if part == "…" else re.escape(part) for part in re.split("(…)", expected.strip())
    )
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), (
        f"{block} shows\n{expected}\nbut this was printed:\n{printed}"
    )


def _environment() -> dict[str, str]:
    """This process's, as it was before a checkout's environment was activated."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if re.fullmatch(r"[A-Za-z_]\w*", name)
        and not name.startswith(("CELERIAC_", "PYTEST", "VIRTUAL_ENV"))
    }
    ours = str(ROOT / ".venv/bin")
    folders = [folder for folder in kept.get("PATH", "").split(":") if folder != ours]
    return kept | {"PATH": ":".join(folders), "COLUMNS": "200", "NO_COLOR": "1"}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
