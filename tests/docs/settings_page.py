"""The table of docs/settings.md, made from the settings themselves.

python -m tests.docs.settings_page          rewrites it in the page
"""

import re

from celeriac.settings import Settings
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/settings.md"
_TABLE = re.compile(r"^\| variable \|.*\n(?:\|.*\n)+", re.MULTILINE)


def table() -> str:
    """The table as it should be: one row for each setting, in the order of the class."""
    rows = ["| variable | default | what it says |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append(f"| `CELERIAC_{name.upper()}` | {default} | {field.description} |")
    return "\n".join([*rows, ""])


def table_of_page() -> str:
    """The table as it is."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no table of variables any more"
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(table_of_page(), table()))
