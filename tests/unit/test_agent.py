import json
import os
import subprocess
import sys
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, model_validator

import celeriac
from celeriac.agent import STEP_MARGIN_SECONDS, Agent
from celeriac.codec import dumps, loads
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.limits import Limits
from celeriac.recovery import NotDone
from celeriac.rollback import InBand
from celeriac.schemas import MAX_PROBLEMS, check_against_schema, problems_by_schema
from celeriac.scripted import ScriptedModel, say
from celeriac.shapes import Shape
from celeriac.tools import tool


class Cash(BaseModel):
    kind: Literal["cash"]


class Card(BaseModel):
    kind: Literal["card"]
    number: Annotated[str, Field(pattern=r"^[0-9]{4}$")]


class Order(BaseModel):
    item: Annotated[str, Field(min_length=1, max_length=10)]
    quantity: Annotated[int, Field(ge=1, lt=100)]
    price: Annotated[Decimal, Field(gt=0)] = Decimal("9.90")
    payment: Annotated[Cash | Card, Field(discriminator="kind")] | None = None
    tags: Annotated[list[str], Field(max_length=2)] = []
    reference: int | str = 0


class Pledge(BaseModel):
    low: int
    high: int

    @model_validator(mode="after")
    def _in_order(self) -> "Pledge":
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


@tool(effect="none", timeout_seconds=200)
def check_inventory(item: str) -> int:
    """Count an item in stock."""
    return len(item)


def order_desk(**more: Any) -> Agent:
    return Agent(
        "order-desk", "openai:gpt-5", "Take orders.", [check_inventory], **{"input": Order, **more}
    )


# ------------------------------------------------------------------------------- the declaration


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": ""}, "cannot be an agent's name"),
        ({"name": "Order Desk"}, "cannot be an agent's name"),
        ({"name": "x" * 65}, "cannot be an agent's name"),
        ({"name": "über"}, "cannot be an agent's name"),
        ({"model": ""}, "'' is no model"),
        ({"model": 5}, "5 is no model"),
        ({"queue": "a queue"}, "cannot be a queue's name"),
        ({"tools": [check_inventory, check_inventory]}, "two tools of the name check_inventory"),
        ({"tools": [len]}, "is no tool; put @tool above the function"),
        ({"think_timeout_seconds": 0}, "think_timeout_seconds=0 is not a number of seconds"),
        ({"step_deadline_seconds": 1e13}, "is not a number of seconds"),
        ({"think_timeout_seconds": float("nan")}, "is not a number of seconds"),
        ({"step_deadline_seconds": 0}, "is not a number of seconds"),
        ({"step_deadline_seconds": 120}, "which may take 120 s"),
        ({"tools": [check_inventory], "step_deadline_seconds": 200}, "which may take 200 s"),
        ({"step_deadline_seconds": float("inf")}, "is not a number of seconds"),
        ({"input": object()}, "the input of agent a: JSON cannot express"),
    ],
)
def test_an_agent_that_contradicts_itself_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidAgent, match=reason):
        Agent(**{"name": "a", "model": "openai:gpt-5", **options})


def test_an_agent_cannot_be_changed() -> None:
    agent = order_desk()

    with pytest.raises(AttributeError, match="order-desk cannot be changed"):
        agent.instructions = "Take nothing."  # type: ignore[misc]
    assert agent.instructions == "Take orders."


def test_a_step_has_time_for_its_longest_call() -> None:
    assert order_desk().step_deadline_seconds == 200 + STEP_MARGIN_SECONDS
    assert Agent("a", "m").step_deadline_seconds == 120 + STEP_MARGIN_SECONDS
    assert Agent("a", "m", step_deadline_seconds=130).step_deadline_seconds == 130


def test_a_step_has_time_for_the_looks_before_and_after_its_call() -> None:
    @tool(timeout_seconds=100, verify=lambda _: NotDone(), precondition=lambda _: None)
    def pay() -> None:
        """Pay."""

    @tool(rollback=InBand(lambda _: None, timeout_seconds=200, verify=lambda _: NotDone()))
    def book() -> None:
        """Book."""

    assert Agent("a", "m", tools=[pay]).step_deadline_seconds == 300 + STEP_MARGIN_SECONDS
    assert Agent("a", "m", tools=[book]).step_deadline_seconds == 400 + STEP_MARGIN_SECONDS


def test_a_model_is_not_resolved_when_an_agent_is_declared() -> None:
    assert Agent("a", "no-such-provider:at-all").definition()["model"] == "no-such-provider:at-all"
    assert Agent("a", ScriptedModel([say("hi")], name="parrot")).definition()["model"] == "parrot"


def test_the_registry_row_is_plain_json_and_tells_all_but_the_code() -> None:
    row = order_desk(limits=Limits(steps=9), queue="fast", description="Takes orders.").definition()

    assert loads(dumps(row)) == row
    assert row["name"] == "order-desk"
    assert row["model"] == "openai:gpt-5"
    assert row["queue"] == "fast"
    assert row["description"] == "Takes orders."
    assert row["limits"] == Limits(steps=9).to_json()
    assert row["tools"] == [check_inventory.registration()]
    assert row["input_schema"] == Shape(Order).exact_schema
    assert row["think_timeout_seconds"] == 120.0
    assert row["step_deadline_seconds"] == 200 + STEP_MARGIN_SECONDS
    assert order_desk(input=None).definition()["input_schema"] is None


def test_each_hash_changes_with_what_it_stands_for_and_with_nothing_else() -> None:
    agent = order_desk()
    same = order_desk()
    other_prompt = Agent("order-desk", "openai:gpt-5", "Refuse.", [check_inventory], input=Order)
    other_tools = Agent("order-desk", "openai:gpt-5", "Take orders.", input=Order)
    other_queue = order_desk(queue="slow")

    def hashes(of: Agent) -> tuple[str, str, str]:
        return of.agent_hash, of.tools_hash, of.prompt_hash

    assert hashes(same) == hashes(agent)
    assert all(len(value) == 64 and int(value, 16) >= 0 for value in hashes(agent))
    assert other_prompt.prompt_hash != agent.prompt_hash
    assert other_prompt.tools_hash == agent.tools_hash
    assert other_tools.tools_hash != agent.tools_hash
    assert other_tools.prompt_hash == agent.prompt_hash
    assert (other_queue.tools_hash, other_queue.prompt_hash) == hashes(agent)[1:]
    assert len({each.agent_hash for each in (agent, other_prompt, other_tools, other_queue)}) == 4


# ---------------------------------------------------------------------------------------- input


def test_input_is_stored_in_its_canonical_form() -> None:
    assert order_desk().validate_input({"item": "tea", "quantity": 2}) == {
        "item": "tea",
        "quantity": 2,
        "price": "9.90",
        "payment": None,
        "tags": [],
        "reference": 0,
    }


def test_an_agent_without_an_input_type_takes_any_json_and_nothing_else() -> None:
    agent = order_desk(input=None)

    assert agent.validate_input({"a": [1, None]}) == {"a": [1, None]}
    assert agent.validate_input("hello") == "hello"
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(InvalidInput, match="the input of agent order-desk cannot be used"):
            agent.validate_input(value)


WRONG: list[tuple[object, list[str]]] = [
    ({"item": "tea", "quantity": 0}, ["quantity: 0 is less than 1"]),
    ({"item": "tea", "quantity": 100}, ["quantity: 100 is not less than 100"]),
    ({"item": "tea", "quantity": "2"}, ['quantity: "2" is not an integer']),
    ({"item": "tea", "quantity": True}, ["quantity: true is not an integer"]),
    ({"item": "tea", "quantity": 1.5}, ["quantity: 1.5 is not an integer"]),
    ({"item": "tea"}, ["quantity: required, but missing"]),
    ({}, ["item: required, but missing", "quantity: required, but missing"]),
    ("tea", ['"tea" is not an object']),
    (None, ["null is not an object"]),
    (
        {"item": "", "quantity": 1, "colour": 1},
        [
            "colour: unknown; expected are item, quantity, price, payment, tags, reference",
            'item: "" is shorter than 1 characters',
        ],
    ),
    (
        {"item": "x" * 11, "quantity": 1},
        ['item: "xxxxxxxxxxx" is longer than 10 characters'],
    ),
    ({"item": "t", "quantity": 1, "price": 0}, ["price: 0 is not more than 0"]),
    ({"item": "t", "quantity": 1, "price": "-1"}, ['price: "-1" is not more than 0']),
    (
        {"item": "t", "quantity": 1, "tags": ["a", "b", "c"]},
        ['tags: ["a", "b", "c"] has more than 2 items'],
    ),
    ({"item": "t", "quantity": 1, "tags": ["a", 2]}, ["tags[1]: 2 is not a string"]),
    ({"item": "t", "quantity": 1, "payment": "cash"}, ['payment: "cash" is not a valid Cash']),
    (
        {"item": "t", "quantity": 1, "payment": {"kind": "gold"}},
        ['payment.kind: "gold" is not "card" or "cash"'],
    ),
    ({"item": "t", "quantity": 1, "payment": {}}, ["payment.kind: required, but missing"]),
    (
        {"item": "t", "quantity": 1, "payment": {"kind": "card", "number": "12345"}},
        ['payment.number: "12345" does not match ^[0-9]{4}$'],
    ),
    (
        {"item": "t", "quantity": 1, "payment": {"kind": "card", "number": "1234\n"}},
        ['payment.number: "1234\\n" does not match ^[0-9]{4}$'],
    ),
    (
        {"item": "t", "quantity": 1, "reference": []},
        ["reference: [] is not an integer or a string"],
    ),
]


@pytest.mark.parametrize(("value", "problems"), WRONG)
def test_with_and_without_the_agents_code_the_same_problems_are_told(
    value: Any, problems: list[str]
) -> None:
    agent = order_desk()
    schema_in_the_database: Any = loads(dumps(agent.definition()["input_schema"]))

    with pytest.raises(InvalidInput) as by_agent:
        agent.validate_input(value)
    with pytest.raises(InvalidInput) as by_schema:
        check_against_schema(value, schema_in_the_database)

    for problem in problems:
        named = problem.partition(" expected are ")[0]  # the keys come in another order from jsonb
        assert named in str(by_agent.value)
        assert named in str(by_schema.value)
    count = len(problems) - 1
    assert str(by_agent.value).partition("be used: ")[2].count("; ") >= count
    assert str(by_agent.value).startswith("the input of agent order-desk cannot be used: ")


class ClubCard(Card):
    bank: Literal["club"]


class GiftCard(Card):
    bank: Literal["gift"]


AnyCard = Annotated[ClubCard | GiftCard, Field(discriminator="bank")]
Payment = Annotated[Cash | AnyCard, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"kind": "card", "number": "0123"}, "bank: required, but missing"),
        ({"kind": "card", "bank": "own"}, 'bank: "own" is not "club" or "gift"'),
        ({"kind": "card", "bank": "gift"}, "number: required, but missing"),
    ],
    ids=str,
)
def test_what_is_wrong_with_one_form_of_a_form_is_told(value: Any, problem: str) -> None:
    agent = order_desk(input=Payment)
    schema: Any = loads(dumps(agent.definition()["input_schema"]))

    with pytest.raises(InvalidInput, match=problem):
        agent.validate_input(value)
    assert problems_by_schema(value, schema) == [problem]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.dictionaries(
        st.sampled_from(["item", "quantity", "price", "payment", "tags", "reference", "x"]),
        json_values,
    )
)
def test_what_an_agent_takes_its_schema_takes_too(value: dict[str, Any]) -> None:
    schema: Any = order_desk().definition()["input_schema"]
    try:
        canonical = order_desk().validate_input(value)
    except InvalidInput:
        return
    check_against_schema(canonical, schema)
    check_against_schema(value, schema)


@given(
    st.fixed_dictionaries(
        {"item": st.text(min_size=1, max_size=10), "quantity": st.integers(1, 99)},
        optional={
            "price": st.decimals("0.01", "999", places=2).map(str),
            "payment": st.none()
            | st.just({"kind": "cash"})
            | st.just({"kind": "card", "number": "0123"}),
            "tags": st.lists(st.text(), max_size=2),
            "reference": st.integers() | st.text(),
        },
    )
)
def test_a_valid_input_is_accepted_and_its_canonical_form_is_stable(value: dict[str, Any]) -> None:
    canonical: Any = order_desk().validate_input(value)

    assert canonical == {**canonical, **value}
    assert order_desk().validate_input(canonical) == canonical


def test_what_only_code_can_check_is_told_too() -> None:
    agent = order_desk(input=Pledge)

    with pytest.raises(InvalidInput, match="low is above high"):
        agent.validate_input({"low": 2, "high": 1})


def test_an_input_type_that_json_would_hollow_out_is_the_agents_fault() -> None:
    with pytest.raises(InvalidAgent, match="does not survive"):
        order_desk(input=SecretStr).validate_input("open sesame")


def test_a_value_that_is_wrong_everywhere_is_told_in_a_bounded_text() -> None:
    with pytest.raises(InvalidInput, match=r"; and 980 more$") as refused:
        check_against_schema(
            ["x" * 10_000] * 1_000, {"type": "array", "items": {"type": "integer"}}
        )
    assert str(refused.value).count("; ") == MAX_PROBLEMS
    assert len(str(refused.value)) < 5_000


def test_nan_fits_no_schema() -> None:
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        check_against_schema(float("nan"), {"type": "number"})


def test_a_value_nested_too_deeply_is_refused_instead_of_ending_the_process() -> None:
    schema: Any = {"type": "array", "items": {"$ref": "#"}}
    value: Any = []
    for _ in range(500):
        value = [value]

    with pytest.raises(InvalidInput, match="nested deeper than 100 levels"):
        check_against_schema(value, schema)
    assert problems_by_schema(value, schema) == ["the value is nested too deeply to be checked"]


def test_a_schema_never_makes_us_fetch_another_one_from_the_network() -> None:
    with pytest.raises(Exception, match="Unresolvable"):
        check_against_schema({}, {"$ref": "http://127.0.0.1:9/schema.json"})


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("Two teas, please.", "Two teas, please."),
        ({"quantity": 2, "item": "tea"}, '{"item":"tea","quantity":2}'),
        (None, "null"),
        ([1, "é"], '[1,"é"]'),
    ],
)
def test_the_first_message_is_the_text_itself_or_canonical_json(value: Any, prompt: str) -> None:
    assert order_desk().prompt(value) == prompt


# ---------------------------------------------------------------------------------- the package


def test_the_package_exports_what_is_documented() -> None:
    assert celeriac.__all__ == [
        "ActivityFailed", "Agent", "Approval", "AsyncClient", "Client", "Compensate",
        "ContextPolicy", "Contract", "InBand", "Limits", "MemoryCandidate", "MemoryPolicy", "Plan",
        "PlanRunner", "PlanStep", "Price", "Rule", "ToolContext", "ToolError", "When", "Workflow",
        "WorkflowContext", "external_tool", "result_of", "sleep", "tool", "tool_from_task",
        "wake_at", "workflow",
    ]  # fmt: skip
    assert celeriac.Agent is Agent
    assert celeriac.tool is tool
    assert all(getattr(celeriac, name).__name__ == name for name in ("Client", "ToolContext"))
    with pytest.raises(AttributeError, match="no attribute 'Agents'"):
        _ = celeriac.Agents


HEAVY = ("pydantic_ai", "sqlalchemy", "celery", "redis", "psycopg")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import celeriac", (*HEAVY, "pydantic", "jsonschema", "griffe")),
        ("from celeriac import Agent, Limits, ToolContext, ToolError, tool", HEAVY),
        ("import celeriac.registry", HEAVY),
    ],
)
def test_declaring_agents_imports_no_provider_and_no_driver(
    statement: str, absent: tuple[str, ...]
) -> None:
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)

    assert set(absent).isdisjoint(json.loads(printed))
