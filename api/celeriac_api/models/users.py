"""Users, and what is erased with them."""

from typing import Annotated

from pydantic import Field

from celeriac_api.models.body import Body
from celeriac_api.models.report_model import model_of
from celeriac_storage.erasing import Erased


class EraseUser(Body):
    """Forgets a user."""

    cancel: Annotated[
        bool, Field(description="Cancel runs that go on first, instead of refusing.")
    ] = False


ErasedModel = model_of(Erased)
