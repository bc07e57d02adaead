import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr
from sqlalchemy import NullPool, create_engine, text

from celeriac.codec import dumps, loads
from celeriac.context import MAX_PROGRESS_CHARACTERS, ToolContext
from celeriac.errors import InvalidAgent, InvalidArguments, NoConnection, ToolError
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId
from celeriac.recovery import Retry
from celeriac.schemas import problems_by_schema
from celeriac.states import EffectKind
from celeriac.tools import Tool, parse_arguments, tool


class Line(BaseModel):
    item: str
    quantity: Annotated[int, Field(ge=1)]


@tool(effect="external", timeout_seconds=5, version="3", exclusive=True)
def refund(
    order_id: str,
    amount: Annotated[Decimal, Field(gt=0, max_digits=14, decimal_places=2)],
    lines: list[Line],
    context: ToolContext,
    at: datetime | None = None,
    currency: Literal["EUR", "USD"] = "EUR",
) -> str:
    """Pay money back
    to a customer.

    Longer talk that the model need not read.

    Args:
        order_id: The order that was paid.
        amount: How much,
            in `currency`.
    """
    return f"{order_id} {amount} {len(lines)} {at} {currency} {context.idempotency_key}"


@tool(effect="none")
def count(number: int) -> int:
    """Count to a number."""
    return number


VALID: dict[str, Any] = {"order_id": "1001", "amount": "18.50", "lines": []}


def context_of(tool_name: str, **more: Any) -> ToolContext:
    return ToolContext(
        tool=tool_name,
        run_id=RunId("r1"),
        thread_id=ThreadId("t1"),
        user_id=UserId("u1"),
        tenant_id=TenantId("default"),
        step=2,
        call_id=CallId("1.0"),
        idempotency_key="default:r1:1.0",
        **more,
    )


def refusal_of(arguments: Any, by: Tool[..., Any] = refund) -> str:
    with pytest.raises(InvalidArguments) as refused:
        by.validate(arguments)
    return str(refused.value)


# ------------------------------------------------------------------------------ what a tool is


def test_a_tool_is_what_its_function_and_its_declaration_say() -> None:
    assert refund.name == "refund"
    assert refund.description == "Pay money back to a customer."
    assert refund.effect is EffectKind.EXTERNAL
    assert (refund.version, refund.timeout_seconds, refund.is_async) == ("3", 5, False)
    assert refund.takes_context
    schema: Any = refund.parameters_schema
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["order_id", "amount", "lines"]
    assert list(schema["properties"]) == ["order_id", "amount", "lines", "at", "currency"]
    assert schema["properties"]["order_id"] == {
        "type": "string",
        "description": "The order that was paid.",
    }
    assert schema["properties"]["amount"]["description"] == "How much, in `currency`."
    assert schema["properties"]["currency"]["default"] == "EUR"


# features: 002-21, 004-29
def test_a_tool_that_declares_nothing_is_external_and_stateful() -> None:
    @tool
    def deduct_inventory(item: str) -> str:
        """Take an item out of stock."""
        return item

    row = deduct_inventory.registration()

    assert row["effect"] == "external"
    assert row["flags"] == {
        "exclusive": False,
        "stateful": True,
        "mutates_workspace": False,
        "pagination": False,
        "elsewhere": False,
    }


# features: 002-21
def test_the_registry_row_carries_effect_and_flags_as_plain_json() -> None:
    row = refund.registration()

    assert json.loads(dumps(row)) == row
    assert row["effect"] == "external"
    assert row["flags"] == {
        "exclusive": True,
        "stateful": False,
        "mutates_workspace": False,
        "pagination": False,
        "elsewhere": False,
    }
    assert row["parameters_schema"] == refund.parameters.shape.exact_schema
    assert (row["version"], row["timeout_seconds"]) == ("3", 5.0)


def test_what_a_tool_returns_is_registered_as_far_as_it_is_known() -> None:
    class Parcel(BaseModel):
        weight: Decimal
        label: str = "none"

    @tool
    def pack(sku: str) -> Parcel:
        """Pack."""
        raise NotImplementedError

    @tool
    def weigh(sku: str) -> object:
        """Weigh."""
        raise NotImplementedError

    registered: Any = pack.registration()["result_schemas"]
    schema, written = registered

    assert problems_by_schema({"weight": "1.50"}, written) == []
    assert problems_by_schema({"weight": 1.5}, written) == ["weight: 1.5 is not a string"]
    assert schema["required"] == ["weight"]
    assert problems_by_schema({"weight": "1.50", "more": 1}, schema) == []
    assert problems_by_schema({"weight": 1.5}, schema) == []
    assert problems_by_schema({}, schema) == ["weight: required, but missing"]
    assert "result_schemas" not in weigh.registration()


def test_a_type_that_cannot_tell_its_schema_keeps_no_tool_from_being_registered() -> None:
    class Frame(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> Any:
            raise ValueError("a frame has no columns yet")

    @tool
    def load(sku: str) -> Frame:
        """Load."""
        raise NotImplementedError

    assert "result_schemas" not in load.registration()


def test_a_tool_can_be_called_like_the_function_that_it_was() -> None:
    assert count(3) == 3


def test_an_async_function_is_known_as_one() -> None:
    @tool(effect="none")
    async def look() -> str:
        """Look."""
        return "seen"

    assert look.is_async


def _google() -> None:
    """Move stock.

    Args:
        item: The item to move.
        _count (int): How many.
    """


def _numpy() -> None:
    """Move stock.

    Parameters
    ----------
    item : str
        The item
        to move.
    _count
        How many.
    """


def _sphinx() -> None:
    """Move stock.

    :param item: The item to move.
    :param int _count: How many.
    :returns: Nothing.
    """


@pytest.mark.parametrize("style", [_google, _numpy, _sphinx])
def test_descriptions_come_from_a_docstring_of_any_style(style: Callable[[], None]) -> None:
    def move(item: str, _count: int) -> None: ...

    move.__doc__ = style.__doc__
    schema: Any = tool(move).parameters_schema

    assert tool(move).description == "Move stock."
    assert schema["properties"]["item"]["description"] == "The item to move."
    assert schema["properties"]["_count"]["description"] == "How many."


def test_a_description_in_the_type_stands_if_the_docstring_has_none() -> None:
    @tool
    def move(item: Annotated[str, Field(description="An SKU.")]) -> None:
        """Move stock."""

    schema: Any = move.parameters_schema
    assert schema["properties"]["item"]["description"] == "An SKU."


def test_parameters_may_have_the_names_of_model_attributes() -> None:
    @tool(effect="none")
    def odd(json: str, copy: int, _hidden: bool, model_config: str, schema: str = "s") -> list[Any]:
        """Take odd names."""
        return [json, copy, _hidden, model_config, schema]

    sent = odd.validate({"json": "j", "copy": 1, "_hidden": True, "model_config": "m"})

    assert odd(**odd.call_arguments(sent)) == ["j", 1, True, "m", "s"]


def test_the_model_is_told_name_description_and_schema() -> None:
    definition = refund.definition()

    assert definition.name == "refund"
    assert definition.description == "Pay money back to a customer."
    assert definition.parameters_json_schema == refund.parameters_schema
    definition.parameters_json_schema.clear()  # as a provider may
    assert refund.parameters_schema


# ------------------------------------------------------------------------- what cannot be a tool


def no_type(item) -> None:  # type: ignore[no-untyped-def]
    """Move."""


def no_words(item: str) -> None: ...


def only_parameters(item: str) -> None:
    """
    Args:
        item: The item.
    """


def any_number(*items: str) -> None:
    """Move."""


def any_names(**items: str) -> None:
    """Move."""


def by_position(item: str, /) -> None:
    """Move."""


def two_contexts(one: ToolContext, two: ToolContext) -> None:
    """Move."""


def no_json(item: Callable[[], None]) -> None:
    """Move."""


def unknown_type(item: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Move."""


def wrong_default(item: str = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
    """Move."""


def yields(item: str) -> Iterator[str]:
    """Move."""
    yield item


async def yields_later(item: str) -> Any:
    """Move."""
    yield item


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (no_type, "'item' has no type"),
        (no_words, "no description"),
        (only_parameters, "no description"),
        (any_number, "any number of values"),
        (any_names, "names that the model cannot know"),
        (by_position, "can only be given by position"),
        (two_contexts, "both 'one' and 'two' are a ToolContext"),
        (no_json, "JSON cannot express"),
        (unknown_type, "'Nowhere' is not defined"),
        (wrong_default, "default None, which its type does not allow"),
        (yields, "it yields values"),
        (yields_later, "it yields values"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused(
    function: Callable[..., object], reason: str
) -> None:
    with pytest.raises(InvalidAgent, match=reason) as refused:
        tool(function)
    assert str(refused.value).startswith(f"tool {function.__name__!r}: ")


def plain(item: str) -> None:
    """Move."""


def writing(context: ToolContext, item: str) -> None:
    """Move."""


async def writing_later(context: ToolContext, item: str) -> None:
    """Move."""


async def holds_later(context: ToolContext) -> None:
    """Never asked."""


def holds(context: ToolContext, item: str) -> None:
    """Whatever happens."""


def holds_for(context: ToolContext, price: int) -> None:
    """Asks for what the tool is not given."""


# features: 004-25, 004-29
@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (plain, {"effect": "none", "precondition": holds}, "guards an effect"),
        (plain, {"precondition": holds_later}, "precondition is an async function"),
        (plain, {"precondition": holds_for}, r"\(item\); price does not fit"),
        (plain, {"precondition": lambda: None}, "the ToolContext does not fit"),
        (plain, {"precondition": holds, "on_unknown": "resend"}, "judge the call by its own"),
        (plain, {"effect": "none", "mutates_workspace": True}, "reads only, but mutates"),
        (plain, {"effect": "none", "stateful": True}, "nothing behind to build on"),
        (plain, {"pagination": True}, "page after page"),
        (plain, {"effect": "transactional"}, "no parameter is a ToolContext"),
        (writing, {"effect": "transactional", "mutates_workspace": True}, "leaves files"),
        (writing, {"effect": "transactional", "pagination": True}, "page after page"),
        (writing_later, {"effect": "transactional"}, "use a plain def"),
        (plain, {"effect": "read"}, "'none', 'transactional', 'external'"),
        (plain, {"name": "move stock"}, "1 to 64 letters"),
        (plain, {"name": ""}, "1 to 64 letters"),
        (plain, {"name": "x" * 65}, "1 to 64 letters"),
        (plain, {"name": "umräumen"}, "1 to 64 letters"),
        (plain, {"timeout_seconds": 0}, "not a number of seconds"),
        (plain, {"timeout_seconds": -1.0}, "not a number of seconds"),
        (plain, {"timeout_seconds": True}, "not a number of seconds"),
        (plain, {"timeout_seconds": float("nan")}, "not a number of seconds"),
        (plain, {"timeout_seconds": float("inf")}, "not a number of seconds"),
        (plain, {"timeout_seconds": 0.0001}, "not a number of seconds from 0.001 to 1728000"),
        (plain, {"timeout_seconds": 2_200_000}, "not a number of seconds from 0.001 to 1728000"),
        (plain, {"visibility_seconds": 1e13}, "not a number of seconds from 0 to 315360000"),
        (plain, {"version": ""}, "version is empty"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    function: Callable[..., object], options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidAgent, match=reason):
        tool(**options)(function)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": 40_000},
        {"first_seconds": 0},
        {"longest_seconds": 1e13},
        {"first_seconds": 3, "longest_seconds": 2},
    ],
)
def test_a_retry_policy_that_no_row_could_follow_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidAgent, match="Retry"):
        Retry(**options)


def test_a_name_as_the_only_argument_is_refused() -> None:
    with pytest.raises(InvalidAgent, match="'refund' is not a function"):
        tool("refund")  # type: ignore[call-overload]


# ------------------------------------------------------------------- what a provider delivers


@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "/"',
        "{'path': '/'}",
        "{} {}",
        '{"amount": NaN}',
        '{"amount": -Infinity}',
        '{"amount": 1e999}',
        '{"amount": 1, "amount": 2}',
        '{"order": {"id": 1, "id": 2}}',
        "[]",
        '"{}"',
        "null",
        "0",
        " ",
        "[" * 100_000,
        '{"n": ' + "9" * 5_000 + "}",
        {"amount": float("nan")},
        {"amount": float("inf")},
        {"amount": Decimal(1)},
        {"amount": b"1"},
        {1: "a", "1": "b"},
    ],
    ids=lambda raw: str(raw)[:30],
)
# features: 003-02
def test_arguments_that_are_no_json_object_are_refused_and_never_read_as_none(raw: Any) -> None:
    with pytest.raises(InvalidArguments, match="nothing was executed"):
        parse_arguments(raw)


def test_arguments_that_a_provider_delivers_are_read() -> None:
    assert parse_arguments('{"a": [1, null, "ü"]}') == {"a": [1, None, "ü"]}
    assert parse_arguments({"a": [1, None, "ü"]}) == {"a": [1, None, "ü"]}
    assert parse_arguments("{}") == {}


# features: 003-02
@pytest.mark.parametrize("raw", [None, ""])
def test_arguments_that_got_lost_never_run_a_tool_with_its_defaults(raw: str | None) -> None:
    @tool
    def remove(path: str = "/") -> None:
        """Remove a file."""

    assert remove.validate(parse_arguments("{}")) == {"path": "/"}
    assert "none were sent" in refusal_of(parse_arguments(raw), remove)


def test_a_tool_without_parameters_needs_no_arguments() -> None:
    @tool(effect="none")
    def look(context: ToolContext) -> str:
        """Look."""
        return context.run_id

    assert look.validate(parse_arguments("")) == {}
    assert "path: unknown" in refusal_of({"path": "/"}, look)


# --------------------------------------------------------------------- what arguments are valid


def test_the_canonical_form_is_json_with_the_defaults_filled_in() -> None:
    canonical = refund.validate({**VALID, "at": "2026-01-02T03:04:05+00:00"})

    assert canonical == {
        "order_id": "1001",
        "amount": "18.50",
        "lines": [],
        "at": "2026-01-02T03:04:05Z",
        "currency": "EUR",
    }


def test_the_function_gets_python_objects_and_its_context() -> None:
    canonical = refund.validate(
        {**VALID, "at": "2026-01-02T03:04:05Z", "lines": [{"item": "tea", "quantity": 2}]}
    )
    context = context_of("refund")

    keywords = refund.call_arguments(loads(dumps(canonical)), context)

    assert keywords == {
        "order_id": "1001",
        "amount": Decimal("18.50"),
        "lines": [Line(item="tea", quantity=2)],
        "context": context,
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "currency": "EUR",
    }
    assert refund(**keywords).endswith("EUR default:r1:1.0")


def test_every_problem_is_told_with_its_place_its_value_and_what_is_expected() -> None:
    told = refusal_of(
        {
            "order_id": 1001,
            "lines": [{"item": "tea", "quantity": 0}, {"item": "tea", "quantity": 1, "colour": 1}],
            "currency": "GBP",
            "note": "x",
        }
    )

    assert told.startswith("The arguments of refund cannot be used and nothing was executed: ")
    problems = told.partition("executed: ")[2].split("; ")
    assert "order_id: 1001 is not a string" in problems
    assert "amount: required, but missing" in problems
    assert "lines[0].quantity: 0 is less than 1" in problems
    assert any(problem.startswith("lines[1].colour: unknown") for problem in problems)
    assert 'currency: "GBP" is not "EUR" or "USD"' in problems
    assert any(problem.startswith("note: unknown") for problem in problems)


@pytest.mark.parametrize(
    "amount",
    [
        True,
        None,
        [],
        "",
        "NaN",
        "Infinity",
        "1E+30",
        "1E-7",
        "1_000",
        " 5",
        "5\n",
        "+5",
        "１８",  # noqa: RUF001  full-width digits
        "٣",
        18.505,
        "18.505",
        0,
        -1,
        "-1",
        10**30,
        1e22,
    ],
    ids=ascii,
)
def test_money_is_refused_unless_it_is_plain_and_in_range(amount: Any) -> None:
    assert "amount: " in refusal_of({**VALID, "amount": amount})


def test_a_decimal_that_may_have_lost_digits_as_a_json_number_is_refused() -> None:
    @tool(effect="none")
    def weigh(grams: Decimal) -> None:
        """Weigh."""

    for lossy in ("12345678901234567.89", "0.30000000000000004"):
        sent = parse_arguments(f'{{"grams": {lossy}}}')
        assert "send it as a string" in refusal_of(sent, weigh)
        assert weigh.validate({"grams": lossy}) == {"grams": lossy}
    exact = weigh.validate(parse_arguments('{"grams": 123456789012.345}'))
    assert exact == {"grams": "123456789012.345"}


def test_half_a_character_is_refused_in_words() -> None:
    assert "lone surrogate" in refusal_of({**VALID, "order_id": "\ud83d"})


@pytest.mark.parametrize("number", ["12", "１２", True, False, None, 1.5, [1], {}, "NaN"])  # noqa: RUF001
def test_only_an_integer_is_an_integer(number: Any) -> None:
    assert "is not an integer" in refusal_of({"number": number}, count)


def test_a_number_without_a_fraction_is_an_integer() -> None:
    canonical = count.validate({"number": 3.0})

    assert dumps(canonical) == '{"number":3}'
    assert type(count.call_arguments(canonical)["number"]) is int


@given(st.integers())
def test_an_integer_of_any_size_arrives_as_it_was_sent(number: int) -> None:
    canonical = count.validate(parse_arguments(json.dumps({"number": number})))

    assert count.call_arguments(canonical) == {"number": number}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_is_sent_is_either_that_integer_or_refused(number: Any) -> None:
    try:
        canonical = count.validate({"number": number})
    except InvalidArguments:
        return
    assert not isinstance(number, bool)
    assert canonical == {"number": number}


@given(
    st.fixed_dictionaries(
        {
            "order_id": st.text(),
            "amount": st.decimals("0.01", "99999.99", places=2).map(str)
            | st.integers(1, 10_000)
            | st.floats(0.01, 10_000).map(lambda amount: round(amount, 2)),
            "lines": st.lists(
                st.fixed_dictionaries({"item": st.text(), "quantity": st.integers(1)}), max_size=3
            ),
        },
        optional={
            "at": st.none() | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
            "currency": st.sampled_from(["EUR", "USD"]),
        },
    )
)
def test_what_is_stored_is_what_runs(sent: dict[str, Any]) -> None:
    canonical = refund.validate(sent)
    keywords = refund.call_arguments(canonical)

    assert refund.validate(dict(canonical)) == canonical
    assert keywords["amount"] == Decimal(str(sent["amount"]))
    assert keywords["order_id"] == sent["order_id"]
    assert [line.model_dump() for line in keywords["lines"]] == sent["lines"]


def test_unknown_keys_are_refused_in_nested_models_that_do_not_allow_them() -> None:
    class Open(BaseModel, extra="allow"):
        item: str

    @tool(effect="none")
    def look(closed: Line | None = None, open_: Open | None = None) -> None:
        """Look."""

    assert "closed.x: unknown" in refusal_of({"closed": {"item": "a", "quantity": 1, "x": 1}}, look)
    assert look.validate({"open_": {"item": "a", "x": 1}})["open_"] == {"item": "a", "x": 1}


def test_a_type_that_json_would_hollow_out_is_the_tools_fault_not_the_arguments() -> None:
    @tool
    def log_in(password: SecretStr) -> None:
        """Log in."""

    with pytest.raises(InvalidAgent, match="does not survive"):
        log_in.validate({"password": "open sesame"})


# ---------------------------------------------------------- when the code changed in between


def test_stored_arguments_that_the_code_no_longer_takes_are_refused() -> None:
    @tool(name="count")
    def count_less(number: Annotated[int, Field(le=10)]) -> None:
        """Count."""

    with pytest.raises(InvalidArguments, match="number: 11 is more than 10"):
        count_less.call_arguments(count.validate({"number": 11}))


def test_a_parameter_added_since_is_not_filled_into_arguments_that_were_approved() -> None:
    @tool(name="count")
    def count_more(number: int, doubled: bool = True) -> None:
        """Count."""

    with pytest.raises(InvalidArguments, match="doubled: missing"):
        count_more.call_arguments(count.validate({"number": 11}))


# ------------------------------------------------------------------------------- the context


def test_only_a_transactional_tool_has_a_connection() -> None:
    context = context_of("notify_shipped")

    with pytest.raises(NoConnection, match=r'notify_shipped.*effect="transactional"') as refused:
        _ = context.connection
    # That would claim that the tool changed nothing before it asked.
    assert not isinstance(refused.value, ToolError)


def test_the_connection_is_the_one_of_the_step() -> None:
    # No pool: what one keeps is closed by the garbage collector, in some other test.
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        context = context_of("deduct_inventory", _connection=connection)
        assert context.connection.execute(text("SELECT 1")).scalar_one() == 1


def test_progress_is_reported_and_bounded() -> None:
    told: list[str] = []
    context = context_of("crawl", _report=told.append)

    context.progress("page 1 of 9")
    context.progress("x" * (MAX_PROGRESS_CHARACTERS + 1))
    context_of("crawl").progress("nobody listens")

    assert told[0] == "page 1 of 9"
    assert len(told[1]) == MAX_PROGRESS_CHARACTERS
    assert told[1].endswith("x…")
