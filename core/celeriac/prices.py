"""What a model call costs, in US dollars: by the agent's own price, or by a maintained price table.

The table is `genai-prices`, which comes with pydantic-ai and is read from the installed package, so
that the same version says the same price, without a network. It knows what providers list, and
nothing of discounts.
"""

from decimal import Decimal
from functools import lru_cache

from genai_prices import Usage, calc_price
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from celeriac.price import SMALLEST_USD, Price
from celeriac.scripted import ScriptedModel

ASSUMED_PRICE = Price(Decimal(30), Decimal(150))
"""For what a budget in dollars counts of a model whose price nobody has said: that of a dear one.
To count nothing would make the limit worthless; to refuse the call, every model of one's own."""


def cost_of(response: ModelResponse, price: Price | None) -> Decimal | None:
    """What the response cost; None if no price is known for its model."""
    if price is not None:
        return price.of(response.usage.input_tokens, response.usage.output_tokens)
    name = response.model_name
    if not name or not _is_listed(name, response.provider_name):
        return None
    try:
        return Decimal(response.cost().total_price).quantize(SMALLEST_USD)
    except (LookupError, ValueError):
        return None


def estimate(model: Model, price: Price | None, input_tokens: int, output_tokens: int) -> Decimal:
    """What a call of `model` with so many tokens may cost; by `ASSUMED_PRICE` if nobody knows."""
    if price is not None:
        return price.of(input_tokens, output_tokens)
    if isinstance(model, WrapperModel):
        return estimate(model.wrapped, None, input_tokens, output_tokens)
    if isinstance(model, FallbackModel):
        return max(estimate(each, None, input_tokens, output_tokens) for each in model.models)
    if not isinstance(model, ScriptedModel) and _is_listed(model.model_name, model.system):
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
        cost = calc_price(usage, model.model_name, provider_id=model.system).total_price
        return Decimal(cost).quantize(SMALLEST_USD)
    return ASSUMED_PRICE.of(input_tokens, output_tokens)


@lru_cache(maxsize=1024)
def _is_listed(model_name: str, provider: str | None) -> bool:
    """Whether the table knows the model; looking for one that it lacks goes through all of it."""
    try:
        calc_price(Usage(input_tokens=1, output_tokens=1), model_name, provider_id=provider)
    except (LookupError, ValueError):
        return False
    return True
