"""`docs/api.md` says of roles, problems and endpoints what the code says."""

import re

from celeriac.settings import load_settings
from celeriac_api import authorization, idempotency, problems
from celeriac_api.app import create_app
from celeriac_storage import idempotency_keys
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/api.md").read_text()


def test_the_table_of_roles_is_the_one_that_is_asked() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)

    assert rows == [
        (action, rule.own.word, rule.others.word) for action, rule in authorization.RULES.items()
    ]


def test_the_table_of_problems_is_complete() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", PAGE, re.MULTILINE)
    told = {(int(status), name) for status, names in rows for name in re.findall(r"`(.*?)`", names)}

    kinds = [*problems.KINDS.values(), *problems._BY_STATUS.values(), problems.INVALID_REQUEST]
    assert told == {(kind.status, kind.name) for kind in kinds}


def test_every_endpoint_is_on_the_page() -> None:
    settings = load_settings(database_url="postgresql://nowhere/none")
    served = create_app(settings).openapi()["paths"]
    table = PAGE.partition("## What there is")[2].partition("## ")[0]

    for path in served:
        if path.endswith("/events"):
            continue  # docs/streaming.md
        *_, last = path.split("/")
        assert re.sub(r"\w+_id", "id", path) in table or f"/{last}`" in table, path


def test_the_figures_are_those_of_the_code() -> None:
    assert f"1 to {idempotency.LONGEST_KEY_CHARACTERS}\nvisible" in PAGE
    assert f"within {idempotency_keys.WAIT_SECONDS} s" in PAGE
    assert f"{idempotency_keys.KEPT_HOURS} h later" in PAGE
