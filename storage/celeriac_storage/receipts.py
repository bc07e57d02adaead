"""Receipts of calls that change files where no worker sees them: what was asked for, what came.

The nonce stands in the call's first entry, and the receipt, as it was given, in the one that
settles the call; entries are only ever added. A run's calls of this kind are requested one at a
time, so the order of calls and entries is the order of what they did.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac import reports
from celeriac.codec import JsonValue
from celeriac.errors import InvalidReceipt
from celeriac.ids import CallId, RunId
from celeriac.workspace.attestation import ALGORITHM, drift
from celeriac.workspace.receipts import CheckedReceipt, Issued, Receipt, read_receipt

LAST_DIGEST = """(
    SELECT evidence #>> '{receipt,workspace,after_digest}'
    FROM celeriac.effect_attempts AS entry JOIN celeriac.effects AS call USING (run_id, call_id)
    WHERE entry.run_id = run.run_id AND evidence ? 'receipt'
    ORDER BY call.step DESC, call_index DESC, entry.attempt DESC, entry.entry DESC LIMIT 1
)"""
"""What the workspace of the run named `run` was when it was last heard of; NULL before that."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a call's receipt has to say, and the one that is there."""

    issued: Issued
    last_digest: str | None
    receipt: JsonValue  # None: there is none yet


def requested_workspace(
    root: str, nonce: str | None, last_digest: str | None
) -> reports.RequestedWorkspace | None:
    """What whoever executes a call is told of its workspace; None if the call changes none."""
    if nonce is None:
        return None
    return reports.RequestedWorkspace(root, nonce, ALGORITHM, last_digest)


def expected(connection: Connection, run_id: RunId) -> dict[CallId, Expected]:
    """By call, of the latest attempts of the run that were requested with a nonce."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT call_id, thread_id, first.evidence ->> 'nonce', {LAST_DIGEST}, (
            SELECT evidence -> 'receipt' FROM celeriac.effect_attempts AS later
            WHERE (later.run_id, later.call_id, later.attempt)
                = (first.run_id, first.call_id, first.attempt) AND evidence ? 'receipt'
            ORDER BY entry DESC LIMIT 1
        )
        FROM celeriac.runs AS run JOIN celeriac.effects AS effect USING (run_id)
        JOIN celeriac.effect_attempts AS first USING (run_id, call_id, attempt)
        WHERE run_id = %s AND first.entry = 0 AND first.evidence ? 'nonce'
        """,
        (run_id,),
    )
    return {
        CallId(call_id): Expected(Issued(root, nonce), last_digest, receipt)
        for call_id, root, nonce, last_digest, receipt in rows
    }


@dataclass(frozen=True, slots=True)
class Received:
    """A good receipt, with what it is evidence of."""

    checked: CheckedReceipt
    evidence: dict[str, JsonValue]
    drift: str | None
    """Why it does not continue from what was last known of the workspace."""


def receive(call_id: CallId, tool: str, result: object, known: Expected | None) -> Received | None:
    """What came with a result; None if nothing has to. Raises `InvalidReceipt`."""
    if known is None:
        if isinstance(result, Receipt):
            raise InvalidReceipt(
                f"call {call_id} ({tool}) changes no files, so there is nothing to have a receipt "
                "of; submit its plain result. Nothing of the batch was recorded"
            )
        return None
    if not isinstance(result, Receipt):
        raise InvalidReceipt(
            f"call {call_id} ({tool}) changes files in workspace {known.issued.root}, so its "
            "result counts only with a receipt (`celeriac attest --call`). Nothing of the batch "
            "was recorded, and the run still waits"
        )
    checked = read_receipt(result, call_id, known.issued)
    evidence: dict[str, JsonValue] = {
        "receipt": result.given,
        "changes": checked.changes.to_json(),
    }
    return Received(checked, evidence, drift(checked.attestation, known.last_digest))
