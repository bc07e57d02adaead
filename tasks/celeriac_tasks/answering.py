"""What a workflow asks its model (`ctx.model`): how it is put, and whether the answer is of the
type that the code expects.

An answer that is not is questioned, as a bounded number of times as any that cannot be used.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from celeriac.codec import JsonValue, dumps, loads_strict
from celeriac.errors import InvalidInput
from celeriac.limits import Limits
from celeriac.messages import dump_message, load_message, question_message
from celeriac.schemas import check_against_schema
from celeriac.states import Phase, RunStatus
from celeriac_storage.claims import Claim
from celeriac_storage.step_record import Event, Message, Next
from celeriac_tasks.transition import Transition

_FENCED = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)


def prompt_of(question: Mapping[str, JsonValue]) -> str:
    """The one message of such a run, for what its input says."""
    parts = [str(question["prompt"])]
    if instructions := question.get("instructions"):
        parts.append(str(instructions))
    if (schema := question.get("schema")) is not None:
        parts.append(
            f"Answer with JSON alone, without other text, that fits this schema: {dumps(schema)}"
        )
    return "\n\n".join(parts)


def read(claim: Claim, question: JsonValue, left: Transition) -> Transition:
    """`left`, with the answer as the value that the code is given; or with what the model is asked
    then, or how its run ends, if the answer does not fit."""
    schema = question.get("schema") if isinstance(question, dict) else None
    record = left.record
    if not isinstance(schema, dict) or record.next.status is not RunStatus.COMPLETED:
        return left
    text = str(record.next.result)
    fenced = _FENCED.fullmatch(text)
    try:
        value = loads_strict(text if fenced is None else fenced[1])
        check_against_schema(value, schema)
    except InvalidInput as error:
        return _asked_back(claim, left, str(error))
    return replace(left, record=replace(record, next=replace(record.next, result=value)))


def _asked_back(claim: Claim, left: Transition, problem: str) -> Transition:
    record = left.record
    before = claim.state.get("corrections", 0)
    corrections = (before if isinstance(before, int) else 0) + 1
    limit = Limits.from_json(claim.limits).corrections
    if corrections > limit:
        error: dict[str, JsonValue] = {
            "kind": "invalid_answer",
            "message": f"{corrections} answers in a row did not fit what the workflow's code asks "
            f"for; the limit is {limit}. The last: {problem}",
        }
        return replace(left, record=replace(record, next=Next.failed("model_failed", error)))
    body = dump_message(question_message(f"The answer cannot be used: {problem}. Send JSON alone."))
    why = Event(
        "model.questioned", {"step": claim.step, "epoch": claim.epoch, "why": "invalid_answer"}
    )
    return replace(
        left,
        record=replace(
            record,
            next=Next.queued(Phase.WAITING_MODEL),
            reason="question",
            state={**record.state, "corrections": corrections},
            messages=[*record.messages, Message("question", body)],
            events=[*record.events, why],
        ),
        messages=[*left.messages, load_message(body)],
    )
