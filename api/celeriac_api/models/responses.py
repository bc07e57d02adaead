"""What an endpoint may answer besides its report, as the OpenAPI document shows it."""

from typing import Annotated, Any

from pydantic import BaseModel, Field


class FieldProblem(BaseModel):
    pointer: str
    detail: str


class ProblemModel(BaseModel):
    """What went wrong (RFC 9457). Programs go by `type`."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: Annotated[
        list[FieldProblem], Field(default_factory=list, description="Of an invalid request.")
    ]


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": meaning,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for status, meaning in {
        400: "The request cannot be read, or lacks an idempotency key that it needs",
        401: "No good token",
        403: "Not with these roles, or not by this person",
        404: "There is no such thing, or it is not yours to see",
        409: "The state of the run does not allow this",
        410: "This was done, and its answer is not kept any more",
        413: "The body is too large",
        415: "The body is not JSON",
        422: "This cannot be used",
        429: "Too many requests",
        500: "Something went wrong in the service",
        503: "A server is away; ask again",
    }.items()
}


NOT_SET_UP: dict[int | str, dict[str, Any]] = {
    501: {**PROBLEMS[500], "description": "No login of this service may do that"}
}


def answers(status: int, model: type[BaseModel], meaning: str) -> dict[int | str, dict[str, Any]]:
    """An endpoint's responses as the OpenAPI document shows them."""
    return {status: {"model": model, "description": meaning}, **PROBLEMS}
