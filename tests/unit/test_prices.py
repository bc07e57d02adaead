"""What a call costs: by the agent's price, by the table, and by neither."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from celeriac import Price
from celeriac.errors import InvalidAgent
from celeriac.prices import ASSUMED_PRICE, cost_of, estimate
from celeriac.scripted import ScriptedModel, say

THOUSAND = RequestUsage(input_tokens=1000, output_tokens=1000)


def model(name: str) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(api_key="sk-test-0123456789abcdef"))


def response(name: str, provider: str | None = "openai") -> ModelResponse:
    return ModelResponse([TextPart("x")], usage=THOUSAND, model_name=name, provider_name=provider)


def test_a_listed_model_costs_what_the_table_says() -> None:
    cost = cost_of(response("gpt-4o-mini"), None)

    assert cost is not None
    assert cost == estimate(model("gpt-4o-mini"), None, 1000, 1000)
    assert Decimal("0.0001") < cost < Decimal("0.01")


def test_a_model_that_nobody_lists_has_no_cost_and_a_dear_estimate() -> None:
    dear = ASSUMED_PRICE.of(1000, 1000)

    assert cost_of(response("my-own-model"), None) is None
    assert cost_of(response("scripted", None), None) is None
    assert estimate(model("my-own-model"), None, 1000, 1000) == dear
    assert estimate(ScriptedModel([say("x")]), None, 1000, 1000) == dear
    assert dear > estimate(model("gpt-4o"), None, 1000, 1000)


def test_the_agents_own_price_goes_before_the_table() -> None:
    price = Price(Decimal("0.5"), Decimal(2))

    assert cost_of(response("gpt-4o"), price) == Decimal("0.0025")
    assert estimate(model("gpt-4o"), price, 1000, 1000) == Decimal("0.0025")


def test_of_several_models_the_dearest_is_expected() -> None:
    models = [model("gpt-4o-mini"), model("gpt-4o")]

    assert estimate(FallbackModel(*models), None, 1000, 1000) == max(
        estimate(each, None, 1000, 1000) for each in models
    )


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1", True, None])
def test_a_price_is_a_number_from_nothing_on(wrong: Any) -> None:
    with pytest.raises(InvalidAgent, match="must be a number of 0 or more"):
        Price(wrong, Decimal(1))


def test_a_float_is_taken_as_it_is_written() -> None:
    cheap: Any = Price(0.1, 1)  # type: ignore[arg-type]  # what people write

    assert cheap.of(1_000_000, 0) == Decimal("0.1")
