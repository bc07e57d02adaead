"""The statement of a step's commit stays small enough for psycopg to keep it parsed."""

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from celeriac_storage import step_statement, steps


@pytest.mark.parametrize(
    "parts",
    [
        {"checkpoint", "messages", "events", "planned", "model_call"},
        {"checkpoint", "messages", "events", "settled"},
        {"checkpoint", "messages", "events", "settled", "attempts"},
        {"events", "settled", "attempts"},
    ],
    ids=["think", "act", "external act", "attempt that did not get there"],
)
@pytest.mark.parametrize("more", [set[str](), {"keeps_claim"}, {"keeps_claim", "budgeted"}])
def test_the_statement_of_a_common_step_is_kept_parsed(parts: set[str], more: set[str]) -> None:
    names = step_statement.statement.__wrapped__.__annotations__
    chosen = {name: name in parts | more for name in names if name not in ("fence", "return")}

    statement = step_statement.statement(steps.FENCE, **chosen)

    assert len(statement) <= MAX_CACHED_STATEMENT_LENGTH
