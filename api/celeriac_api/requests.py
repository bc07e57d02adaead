"""How bodies are read and answers written: JSON as strict as the codec takes it (RFC 8259, I-JSON).

A key that stands twice, NaN, a number beyond a float's range and deep nesting are refused here,
instead of being changed silently.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from celeriac.codec import loads_strict
from celeriac.errors import InvalidInput
from celeriac.reports import to_json
from celeriac_api.authentication import authenticate


class JsonRoute(APIRoute):
    """An endpoint whose body, if it has one, is JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            await authenticate(request)  # before anything of the body: a stranger costs nothing
            strict = _StrictRequest(request.scope, request.receive)
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if await strict.body() and media_type != "application/json":
                raise HTTPException(
                    415, f"the body is {media_type or 'of no declared type'}; send application/json"
                )
            return await handle(strict)

        return handle_json


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            value = loads_strict(await self.body())
        except InvalidInput as error:
            raise HTTPException(400, str(error)) from error
        self.state.body = value
        return value


def json_text(value: object) -> str:
    """A report or plain JSON as one document that is UTF-8, whatever stands in it."""
    text = json.dumps(to_json(value), ensure_ascii=False)
    # A lone surrogate, which JSON allows, is no UTF-8: Python's escape of it is JSON's as well.
    return text.encode("utf-8", "backslashreplace").decode()


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A report or plain JSON as a response."""
    return Response(json_text(value), status, headers, "application/json")
