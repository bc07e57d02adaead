"""What any request may hold, and the texts in it."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$"
MOST = 2**31 - 1


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("may not hold the character NUL, which PostgreSQL does not store")
    return text


Id = Annotated[str, Field(pattern=_ID_PATTERN)]
CallIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$", examples=["0.0"])]
Text = Annotated[str, AfterValidator(_without_nul)]


class Body(BaseModel):
    """What a request may hold; a field that is not known is refused, since it may be mistyped."""

    model_config = ConfigDict(extra="forbid", str_max_length=1_048_576)

    idempotency_key: Annotated[
        str | None,
        Field(description="The same as the header Idempotency-Key, which is preferred."),
    ] = None


class Nothing(Body):
    """Nothing but, if you like, an idempotency key."""
