"""Who may decide, and who may use the API: principals and tokens."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from celeriac import reports
from celeriac_api.models.body import Body, Id, Text
from celeriac_api.models.report_model import model_of


class SetPrincipal(Body):
    """What a person may decide."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"roles": ["cashier"], "permissions": {"refund": [["amount", "<=", "500"]]}}
            ]
        }
    )

    roles: Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=100)] = []  # noqa: RUF012 - pydantic copies a default
    permissions: Annotated[
        dict[Text, Any] | None,
        Field(
            description="By tool, or * for all others, conditions on the arguments; a tool that is "
            "not there may not be decided. Without it there are no limits."
        ),
    ] = None
    disabled: Annotated[bool, Field(description="May decide nothing.")] = False


class CreateToken(Body):
    """Makes a token."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"user_id": "alice", "name": "laptop", "expires_days": 90}]}
    )

    user_id: Annotated[Id, Field(description="Who uses the API with it.")]
    name: Annotated[Text, Field(max_length=200, description="What it is for.")] = ""
    roles: Annotated[
        list[Literal["user", "operator", "admin"]], Field(max_length=3, description="user if none.")
    ] = []  # noqa: RUF012 - pydantic copies a default
    expires_days: Annotated[
        float | None, Field(gt=0, le=36_500, description="Else it is good until it is revoked.")
    ] = None


PrincipalModel = model_of(reports.Principal)
TokenModel = model_of(reports.Token)
NewTokenModel = model_of(reports.NewToken)


class Principals(BaseModel):
    principals: list[PrincipalModel]  # type: ignore[valid-type]  # made while it runs


class Tokens(BaseModel):
    tokens: list[TokenModel]  # type: ignore[valid-type]  # made while it runs
