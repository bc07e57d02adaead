"""What the docs say about the code is so: links, settings, test points, state machines, names."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pkgutil import iter_modules
from types import ModuleType

import pytest

import celeriac_storage
import celeriac_tasks
from celeriac import errors
from celeriac.cli.main import app
from celeriac.settings import Settings
from celeriac.states import (
    EFFECT_TRANSITIONS,
    RUN_TRANSITIONS,
    SETTLED_EFFECTS,
    EffectKind,
    EffectState,
    RunStatus,
)
from celeriac.think_backoff import DEFAULT_BACKOFF
from celeriac.think_failure import ThinkFailureKind
from tests.docs import events_page
from tests.docs.pages import PAGES, ROOT
from tests.docs.settings_page import table, table_of_page

SOURCES = [ROOT / name for name in ("core", "storage", "tasks", "scheduler", "api")]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
ARROW = re.compile(r"^ *(\[\*\]|\w+) --> (\[\*\]|\w+)", re.MULTILINE)
REACHED = re.compile(r'\breach\(\s*"([^"]+)"')


def page(name: str) -> str:
    return (ROOT / name).read_text()


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands under `## heading`, up to the next heading of that level."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {heading!r}"
    return found.group(1)


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each table row, headings included."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    broken = []
    for target in LINK.findall(without_code(page(name))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / name).parent / path if path else ROOT / name
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text())):
            broken.append(target)

    assert broken == []


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        name
        for source in SOURCES
        for path in [*source.rglob("*.py"), *source.rglob("*.sql")]
        for name in re.findall(r"docs/[a-z_]+\.md", path.read_text())
    }

    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_page_is_listed_in_the_readme() -> None:
    linked = set(LINK.findall(page("README.md")))

    assert [name for name in PAGES if name.startswith("docs/") and name not in linked] == []


# features: 004-15
def test_the_guarantees_page_promises_something_of_every_kind_of_tool() -> None:
    promises = dict(
        re.findall(r'^\| `"(\w+)"` \| ([^|]+) \|', page("docs/guarantees.md"), re.MULTILINE)
    )

    assert set(promises) == {kind.value for kind in EffectKind}
    assert promises["none"] == "called at least once"
    assert promises["transactional"] == "its writes happen exactly once"
    assert "never made again before it is certain" in promises["external"]


def test_the_events_page_repeats_the_models() -> None:
    assert events_page.table_of_page() == events_page.table(), (
        "run: python -m tests.docs.events_page"
    )


def test_the_settings_page_repeats_the_settings() -> None:
    assert table_of_page() == table(), "run: python -m tests.docs.settings_page"


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    known = {f"CELERIAC_{name.upper()}" for name in Settings.model_fields}

    unknown = {
        (name, variable)
        for name in PAGES
        for variable in re.findall(r"CELERIAC_[A-Z_]*[A-Z]\b(?!_)", page(name))
        if variable not in known and not variable.startswith("CELERIAC_TEST")
    }

    assert unknown == set()


def test_the_pages_say_what_a_death_at_each_test_point_means() -> None:
    reached = {
        point
        for source in SOURCES
        for path in source.rglob("*.py")
        for point in REACHED.findall(path.read_text())
    }
    told = [
        row[0].strip("`")
        for name, heading in (
            ("docs/step.md", "If the process dies here"),
            ("docs/api.md", "Asking twice"),
        )
        for row in rows(section(page(name), heading))
        if re.fullmatch(r"`\w+\.\w+`", row[0])
    ]

    assert reached
    assert sorted(told) == sorted(reached)


@pytest.mark.parametrize(
    ("heading", "transitions"), [("Run", RUN_TRANSITIONS), ("Effect", EFFECT_TRANSITIONS)]
)
def test_the_states_page_draws_every_arrow_and_no_other(
    heading: str, transitions: Mapping[StrEnum, frozenset[StrEnum]]
) -> None:
    drawn = ARROW.findall(section(page("docs/states.md"), heading))
    between = [(was, becomes) for was, becomes in drawn if "[*]" not in (was, becomes)]
    ends = [was for was, becomes in drawn if becomes == "[*]"]

    assert sorted(between) == sorted(
        (was.value, becomes.value) for was, all_ in transitions.items() for becomes in all_
    )
    assert sorted(ends) == sorted(was.value for was, all_ in transitions.items() if not all_)


@pytest.mark.parametrize(
    ("heading", "states"), [("Run", list(RunStatus)), ("Effect", list(EffectState))]
)
def test_the_states_page_says_who_takes_each_arrow_that_is_taken(
    heading: str, states: list[StrEnum]
) -> None:
    text = section(page("docs/states.md"), heading)
    names = {state.value for state in states}
    taken = {
        (was, becomes)
        for was, becomes, who in re.findall(r"^ *(\w+) --> (\w+): (.+)$", text, re.MULTILINE)
        if who != "†"
    }
    explained = {
        tuple(words)
        for row in rows(text)
        if "→" in row[0] and len(words := re.findall(r"`(\w+)`", row[0])) == 2
    }

    assert {name for arrow in taken for name in arrow} <= names
    assert explained == taken


def test_the_states_page_names_the_settled_states() -> None:
    text = page("docs/states.md")

    told = re.search(r"\*Settled\* are the states.*?: (.*?)\.\n", text, re.DOTALL)

    assert told is not None
    assert set(re.findall(r"`(\w+)`", told.group(1))) == {state.value for state in SETTLED_EFFECTS}


def test_the_models_page_tells_the_backoff_of_every_failure() -> None:
    told = {
        row[0].strip("`"): row[2:]
        for row in rows(section(page("docs/models.md"), "When a call fails"))
        if row[0].startswith("`")
    }
    tried_again = set(DEFAULT_BACKOFF) - {ThinkFailureKind.EMPTY_RESPONSE}  # answered in words

    assert set(told) == {kind.value for kind in ThinkFailureKind}
    for kind in ThinkFailureKind:
        if kind in tried_again:
            backoff = DEFAULT_BACKOFF[kind]
            waits = f"{backoff.first_seconds:g}, doubling to {backoff.cap_seconds:g}"
            assert backoff.factor == 2
            assert told[kind] == [waits, str(backoff.max_attempts)]
        elif not kind.is_transient:
            assert told[kind] == ["none", "1"]


@pytest.mark.parametrize("package", [celeriac_storage, celeriac_tasks])
def test_the_map_of_a_package_names_each_module_once(package: ModuleType) -> None:
    assert package.__doc__ is not None
    _, _, drawn = package.__doc__.partition("The modules, ")
    columns = [re.split(r"  +", line)[-1] for line in drawn.splitlines()[1:]]
    named = re.findall(r"\w+", " ".join(columns))

    assert sorted(named) == sorted(module.name for module in iter_modules(package.__path__))


def test_the_interface_page_names_every_command() -> None:
    commands = {
        command.name or (command.callback.__name__.replace("_", "-") if command.callback else "")
        for command in app.registered_commands
    } | {group.name for group in app.registered_groups}

    told = set(
        re.findall(r"`celeriac ([a-z-]+)", section(page("docs/interface.md"), "Command line"))
    )

    assert told == commands


def test_the_tree_of_errors_shows_every_error_under_its_base() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if found is None:
            continue
        depth = len(found.group(1)) // 4
        del above[depth:]
        drawn[found.group(2)] = above[-1] if above else "Exception"
        above.append(found.group(2))

    assert drawn == {
        name: found.__bases__[0].__name__
        for name, found in vars(errors).items()
        if isinstance(found, type) and found.__module__ == errors.__name__
    }
