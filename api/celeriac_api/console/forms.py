"""Forms that people send: where they come from, what is in them, and how they become requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from celeriac.codec import JsonValue, loads_strict
from celeriac.errors import InvalidInput
from celeriac_api.caller import Caller
from celeriac_api.console.sessions import CurrentUser, check_csrf, check_origin
from celeriac_api.idempotency import Order, checked_key

MOST_FIELDS = 300
_MEDIA_TYPE = "application/x-www-form-urlencoded"

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Form:
    """What a signed-in person has sent from a page of ours."""

    request: Request
    caller: Caller
    fields: Mapping[str, str]

    def text(self, name: str) -> str:
        """A text as it was typed; none is the empty one. Browsers send each line's end as CR LF."""
        return self.fields.get(name, "").replace("\r\n", "\n")

    def texts(self) -> dict[str, str]:
        """All of them, to be shown again."""
        return {name: self.text(name) for name in self.fields}

    def order(self, body: BaseModel | None = None) -> Order:
        """The form as a request of the API for the operation that the route is called by, under the
        key that the form was made with: sent twice, it is done once."""
        self.request.state.body = None if body is None else body.model_dump(mode="json")
        return Order(
            self.request,
            self.caller,
            self.request.scope["route"].name,
            checked_key(self.fields.get("idempotency_key")),
        )


def body_of(model: type[Body], **given: Any) -> Body:
    """A request's body, checked as the API checks it. Raises `InvalidInput`."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        told = "; ".join(
            ": ".join([*map(str, each["loc"]), each["msg"]]) for each in error.errors()
        )
        raise InvalidInput(f"this cannot be sent: {told}") from error


def json_value(text: str, name: str) -> JsonValue:
    """JSON that a person typed. Raises `InvalidInput`."""
    try:
        return loads_strict(text)
    except InvalidInput as error:
        raise InvalidInput(
            f'{name} is to be JSON, such as 12, true, null, "a text" or an object: {error}'
        ) from error


async def read_fields(request: Request) -> dict[str, str]:
    """The fields of a form. Raises an `HTTPException` for what no page of ours sends."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _MEDIA_TYPE:
        raise HTTPException(415, "a form is sent as " + _MEDIA_TYPE)
    body = await request.body()
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict",
            max_num_fields=MOST_FIELDS,
        )  # fmt: skip
    except ValueError as error:
        raise HTTPException(400, "the form cannot be read") from error
    fields = dict(pairs)
    if len(fields) < len(pairs) or any("\0" in each for pair in pairs for each in pair):
        raise HTTPException(400, "the form cannot be read: a field stands twice, or holds a NUL")
    return fields


async def _posted(request: Request, caller: CurrentUser) -> Form:
    check_origin(request)
    fields = await read_fields(request)
    check_csrf(request, fields.get("csrf", ""))
    return Form(request, caller, fields)


PostedForm = Annotated[Form, Depends(_posted)]
