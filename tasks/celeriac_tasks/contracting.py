"""Whether a run may complete: its contract, held against what its calls have left behind.

In the transaction of the commit, after everything else of the step is known. So a death leaves
either no judgement or the whole step, and whoever takes the step again judges by the same rows.
"""

from dataclasses import replace

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.completion import Unmet, unmet
from celeriac.contract import Contract
from celeriac.messages import dump_message, load_message, question_message
from celeriac.states import Phase, RunStatus
from celeriac.testpoints import reach
from celeriac_storage import deeds
from celeriac_storage.claims import Claim
from celeriac_storage.step_record import Event, Message, Next
from celeriac_tasks.transition import Transition


def judged(connection: Connection, claim: Claim, left: Transition) -> Transition:
    """`left`, if it does not complete a run that has a contract; else with what was found, and with
    where that leads: the run completes, its model is told what is missing, or the run fails."""
    if claim.contract is None or left.record.next.status is not RunStatus.COMPLETED:
        return left
    contract = Contract.from_json(claim.contract)
    history = deeds.load(connection, claim.run_id)
    missing = unmet(contract, history.deeds)
    reach("think.after_judgement", claim.step)
    if not missing:
        return _with(left, Event("contract.met"))
    told: dict[str, JsonValue] = {
        "enforcement": contract.enforcement,
        "unmet": [each.to_json() for each in missing],
    }
    if contract.enforcement == "advisory":
        return _with(left, Event("contract.unmet", told))
    if history.corrections >= contract.max_corrections:
        error: dict[str, JsonValue] = {
            "kind": "contract_unmet",
            "message": "the model says that it is done, and it is not: " + _listed(missing),
        }
        failed = Next.failed("contract_unmet", {**error, "unmet": told["unmet"]})
        return _with(left, Event("contract.unmet", told), failed)
    number = history.corrections + 1
    told |= {"correction": number, "max_corrections": contract.max_corrections}
    body = dump_message(question_message(_question(missing, number, contract.max_corrections)))
    record = left.record
    return replace(
        left,
        record=replace(
            record,
            next=Next.queued(Phase.WAITING_MODEL),
            reason="contract_refused",
            messages=[*record.messages, Message("question", body)],
            events=[*record.events, Event("contract.refused", told)],
        ),
        messages=[*left.messages, load_message(body)],
    )


def _with(left: Transition, event: Event, following: Next | None = None) -> Transition:
    record = left.record
    return replace(
        left,
        record=replace(record, next=following or record.next, events=[*record.events, event]),
    )


def _question(missing: list[Unmet], number: int, most: int) -> str:
    last = " This is the last time that you are told." if number == most else ""
    return (
        "The work is not done, whatever you have answered. What is missing: "
        f"{_listed(missing)}. Go on with your tools, and answer when this is so.{last}"
    )


def _listed(missing: list[Unmet]) -> str:
    return "; ".join(each.why for each in missing)
