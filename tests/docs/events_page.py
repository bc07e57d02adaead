"""The tables of docs/events.md, made from the models.

python -m tests.docs.events_page            rewrites them in the page
"""

import re
from typing import Any

from celeriac.events import event_types, json_schema
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/events.md"
_TABLE = re.compile(r"^\| type \|.*\n(?:\|.*\n)+", re.MULTILINE)


def table() -> str:
    """The table as it should be: one row for each type, in the order of the models."""
    shapes = json_schema()["$defs"]
    rows = ["| type | when | `data` |", "|---|---|---|"]
    for type_, model in event_types().items():
        data = shapes[shapes[model.__name__]["properties"]["data"]["$ref"].rpartition("/")[2]]
        rows.append(f"| `{type_}` | {model.__doc__} | {_fields(data)} |")
    return "\n".join([*rows, ""])


def table_of_page() -> str:
    """The table as it is."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None, f"{PAGE} has no table of events any more"
    return found[0]


def _fields(shape: dict[str, Any]) -> str:
    required = shape.get("required", [])
    return ", ".join(
        f"`{name}`{'' if name in required else '?'} {_type(field)}"
        for name, field in shape["properties"].items()
        if name != "v"
    )


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        (field,) = [each for each in field["anyOf"] if each.get("type") != "null"]
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return " or ".join(field["enum"])
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    return str(field["type"])


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(table_of_page(), table()))
