"""`/v1/users`: forgetting one of them, for administrators of a tenant."""

from fastapi import APIRouter, Response

from celeriac.ids import UserId, checked_id
from celeriac_api.authorization import require
from celeriac_api.caller import service_of
from celeriac_api.idempotency import CurrentOrder
from celeriac_api.models import users as models
from celeriac_api.models.responses import NOT_SET_UP, answers
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import erasing
from celeriac_storage.erasing import Scope

router = APIRouter(prefix="/v1/users", tags=["access"], route_class=JsonRoute)


@router.post(
    "/{user_id}/erase",
    responses={**answers(200, models.ErasedModel, "What was erased"), **NOT_SET_UP},
)
def erase_user(user_id: str, order: CurrentOrder, body: models.EraseUser | None = None) -> Response:
    """Erase all payloads of a user, for good. That it happened stays.

    It goes on in batches, each a transaction of its own. Whoever gets no answer says it again, and
    what was left is erased: so no idempotency key is needed, nor kept.
    """
    require(order.caller, order.action, is_own=False)
    scope = Scope(order.caller.tenant_id, user_id=UserId(checked_id(user_id, "user id")))
    done = erasing.erase(
        service_of(order.request).keeper(),
        scope,
        order.caller.user_id,
        cancels=body is not None and body.cancel,
    )
    return json_response(done)
