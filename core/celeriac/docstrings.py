"""The descriptions that a docstring holds, in Google, NumPy or Sphinx style."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from griffe import PerStyleOptions


@dataclass(frozen=True)
class Descriptions:
    summary: str
    """The first paragraph in one line; empty if there is none."""
    parameters: Mapping[str, str]


def read_docstring(text: str) -> Descriptions:
    """Read a docstring of any of the three styles; what it does not describe is left out."""
    # Only here: a scheduler or an API imports this module as well, and reads no docstring.
    import griffe

    summary = ""
    parameters: dict[str, str] = {}
    for section in griffe.parse_auto(
        griffe.Docstring(text, lineno=1), default="google", per_style_options=_WITHOUT_WARNINGS
    ):
        if isinstance(section, griffe.DocstringSectionText) and not summary:
            summary = _one_line(section.value.split("\n\n", maxsplit=1)[0])
        elif isinstance(section, griffe.DocstringSectionParameters):
            for parameter in section.value:
                parameters.setdefault(parameter.name, _one_line(parameter.description))
    return Descriptions(summary, parameters)


def _one_line(text: str) -> str:
    return " ".join(text.split())


# griffe would log a warning for each parameter without a type in the docstring; ours stand in the
# signature.
_WITHOUT_WARNINGS: "PerStyleOptions" = {
    "google": {"warnings": False},
    "numpy": {"warnings": False},
    "sphinx": {"warnings": False},
}
