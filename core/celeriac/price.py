"""What a model costs, as an agent says it."""

from dataclasses import asdict, dataclass
from decimal import Decimal

from celeriac.errors import InvalidAgent

MILLION = Decimal(1_000_000)
SMALLEST_USD = Decimal("0.0000000001")


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in US dollars for a million tokens. For models that the price table does
    not know, such as your own, or that you pay less for. Raises `InvalidAgent` unless both are
    numbers of 0 or more; a float is taken as it is written, `0.1` as a tenth."""

    input_usd_per_million: Decimal
    output_usd_per_million: Decimal

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            number = _number(value)
            if number is None:
                raise InvalidAgent(f"price {name} is {value!r}; it must be a number of 0 or more")
            object.__setattr__(self, name, number)

    def of(self, input_tokens: int, output_tokens: int) -> Decimal:
        """US dollars for one call, to the smallest amount that is stored."""
        cost = (
            self.input_usd_per_million * input_tokens + self.output_usd_per_million * output_tokens
        ) / MILLION
        return cost.quantize(SMALLEST_USD)


def _number(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() and number >= 0 else None
