"""Carrying out what a request asks for, once however often it is sent (`Idempotency-Key`).

The key is claimed, the work done and the answer stored in one transaction, after it is known who
asks and that he may. What is refused is not stored: to ask again may help.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Request, Response
from sqlalchemy import Connection
from starlette.exceptions import HTTPException

from celeriac.client.operation import Operation
from celeriac.errors import CeleriacError
from celeriac.testpoints import reach
from celeriac_api.authentication import CurrentCaller
from celeriac_api.caller import Caller, service_of
from celeriac_api.requests import json_text
from celeriac_storage import idempotency_keys
from celeriac_storage.idempotency_keys import Key

REPLAYED = "Idempotent-Replayed"
LONGEST_KEY_CHARACTERS = 255
_VERSION = 1  # of the fingerprint

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: a report or plain JSON."""

    status: int
    body: object
    headers: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = True  # for a repeat; a secret is not


@dataclass(frozen=True, slots=True)
class Order:
    """A request that has an effect: who asks, for what, under which key."""

    request: Request
    caller: Caller
    action: str
    key: str | None

    def require_key(self) -> None:
        """Raise a 400 without a key: to send this again would do it again."""
        if self.key is None:
            raise HTTPException(
                400,
                "this would be done again if it were sent again: give it the header "
                "Idempotency-Key, with a value that no other request has, such as a UUID",
            )

    def carry_out(
        self,
        operation: Operation[Answer],
        reply: Callable[[Answer], Reply],
        check: Callable[[Connection], None],
        owners: Sequence[str] = (),
    ) -> Response:
        """Do it unless it was done, and answer. `check` raises if the caller may not. `owners` are
        those whose memories it is about."""
        service = service_of(self.request)
        transactions = service.tenant(self.caller.tenant_id, owners)
        is_acting = False
        try:
            with transactions.begin() as connection:
                check(connection)
                key = self._stored_key()
                if key is not None:
                    known = idempotency_keys.claim(connection, key)
                    if known is not None:
                        return _response(known, {REPLAYED: "true"})
                is_acting = True
                told = reply(operation.act(connection))
                is_acting = False
                answer = idempotency_keys.Answer(told.status, told.headers, json_text(told.body))
                if key is not None and told.is_kept:
                    idempotency_keys.answer(connection, key, answer)
                elif key is not None:
                    idempotency_keys.keep_no_answer(connection, key)
                reach("api.before_commit")
        except CeleriacError as refused:
            if is_acting and operation.is_noted(refused):
                with transactions.begin() as connection:
                    operation.note_refusal(connection, refused)
            raise
        reach("api.after_commit")
        operation.finish(transactions)
        return _response(answer)

    def _stored_key(self) -> Key | None:
        if self.key is None:
            return None
        return Key(
            self.caller.tenant_id,
            self.caller.user_id,
            self.action,
            self.key,
            _fingerprint(self.request, self.action),
        )


def _order(
    request: Request,
    caller: CurrentCaller,
    _documented: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            description="1 to 255 visible ASCII characters; the same for a repeat of this.",
        ),
    ] = None,
) -> Order:
    given = request.headers.getlist("idempotency-key")
    body = getattr(request.state, "body", None)
    if isinstance(body, dict) and isinstance(body.get("idempotency_key"), str):
        given.append(body["idempotency_key"])
    if len(set(given)) > 1:
        raise HTTPException(400, "there are several idempotency keys; give one")
    key = checked_key(given[0] if given else None)
    return Order(request, caller, request.scope["route"].name, key)


CurrentOrder = Annotated[Order, Depends(_order)]


def checked_key(key: str | None) -> str | None:
    """Raise a 400 for what cannot be an idempotency key."""
    if key is not None and not _is_key(key):
        raise HTTPException(
            400,
            f"an idempotency key has 1 to {LONGEST_KEY_CHARACTERS} visible ASCII characters and no "
            "space",
        )
    return key


def _is_key(text: str) -> bool:
    return 1 <= len(text) <= LONGEST_KEY_CHARACTERS and all("!" <= each <= "~" for each in text)


def _fingerprint(request: Request, action: str) -> bytes:
    body = getattr(request.state, "body", None)
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name != "idempotency_key"}
    asked = [_VERSION, request.method, action, request.path_params, body or None]
    if request.query_params:  # only then: of keys that are stored the fingerprints stay
        asked.append(sorted(request.query_params.multi_items()))
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).digest()


def _response(
    answer: idempotency_keys.Answer, more_headers: Mapping[str, str] | None = None
) -> Response:
    headers = {**answer.headers, **(more_headers or {})}
    return Response(answer.body, answer.status, headers, "application/json")
