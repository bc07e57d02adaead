"""The documentation's pages and their code blocks.

The word after the three backticks is the block's language; what follows on that line is for the
tests, and readers do not see it:

    ```sh                            run in the page's shell, which stays the same for the page
    ```sh until="Ready"              stays in a terminal of its own; the page goes on at this output
    ```sh usage                      only parsed, as commands of `celeriac`: it has placeholders
    ```sh not-run="why"              not even that
    ```python                        run; the blocks of a page share their names
    ```python file="shop.py"         written into the folder that the page's shell is in
    ```sql                           run as an auditor; `empty`: it must find nothing
    ```text                          what the command before it prints; … stands for anything
    ```mermaid                       a drawing
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
)

_BLOCK = re.compile(r"^```(?P<info>.*)\n(?P<code>(?:.*\n)*?)^```$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    options: Mapping[str, str]
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """The code blocks of a page, in their order."""
    text = (ROOT / page).read_text()
    for found in _BLOCK.finditer(text):
        language, *options = shlex.split(found["info"]) or [""]
        pairs = (option.partition("=") for option in options)
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            language,
            {name: value for name, _, value in pairs},
            found["code"],
        )
