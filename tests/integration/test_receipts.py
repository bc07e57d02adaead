"""A call that changes files elsewhere counts only with a receipt: of this call, of this workspace,
consistent with itself, and going on from what was last known."""

# features: 004-27, 004-30, 004-31
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from celeriac import external_tool
from celeriac.client import Failed, NotDone, Receipt, TookEffect
from celeriac.codec import JsonValue, dumps
from celeriac.errors import CeleriacError, Conflict, InvalidReceipt
from celeriac.states import RunStatus
from celeriac.workspace.attestation import ALGORITHM, EMPTY
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.attesting_host import Host, altered
from tests.talk import Calls, Talk

WAITS = ("paused", "waiting_external")
ZEROS = "0" * 64


@external_tool(mutates_workspace=True)
def patch(path: str) -> str:
    """Have another process change a file."""
    return path


PATCHES: Calls = [
    ("scan", {"shelf": "a"}), ("patch", {"path": "a.txt"}), ("patch", {"path": "b.txt"}),
]  # fmt: skip
"""Calls 0.0 and 0.1 are requested together, 0.2 after them."""


class Patching:
    """A run that waits for calls which change files, and the process that executes them."""

    def __init__(self, talk: Talk, folder: Path) -> None:
        self.talk = talk
        self.host = Host(talk.client, talk.run_id, folder)

    def everything(self) -> list[Any]:
        """All rows that a refused batch must leave as they are."""
        return [
            self.talk.query(f"SELECT * FROM celeriac.{table} ORDER BY 1, 2")
            for table in ("effects", "effect_attempts", "messages", "checkpoints")
        ]

    def refused(self, results: Mapping[str, Any], kind: type[CeleriacError], words: str) -> None:
        """The batch is refused for that reason, nothing of it is written, and the run waits."""
        before = self.everything()
        with pytest.raises(kind, match=words):
            self.talk.client.submit(self.talk.run_id, results, by="mallory")
        assert self.everything() == before
        assert self.talk.stands == WAITS
        assert self.talk.events[-1] == "results.refused"
        trail = self.talk.query("SELECT actor, action, outcome FROM celeriac.audit")
        assert ("mallory", "results.submit", "denied") in [tuple(row) for row in trail]

    def evidence(self, call_id: str, attempt: int = 1) -> dict[str, Any]:
        (row,) = self.talk.query(
            "SELECT evidence FROM celeriac.effect_attempts WHERE run_id = %s AND call_id = %s"
            " AND attempt = %s AND evidence ? 'receipt'",
            self.talk.run_id, call_id, attempt,
        )  # fmt: skip
        told: dict[str, Any] = row[0]
        return told


@pytest.fixture
def patching(database: Database, broker_url: str, tmp_path: Path) -> Iterator[Patching]:
    talk = Talk(database, broker_url, PATCHES, [patch])
    talk.start()
    talk.go_on()
    yield Patching(talk, tmp_path)
    talk.close()


def test_a_change_is_requested_with_what_its_receipt_must_say_again(patching: Patching) -> None:
    scan, change = patching.host.requested
    assert scan.workspace is None
    assert (change.call_id, change.tool) == ("0.1", "patch")
    asked = change.workspace
    assert asked is not None
    assert (asked.root, asked.algorithm) == (patching.talk.row.thread_id, ALGORITHM)
    assert asked.last_digest is None
    assert patching.host.requested[1].workspace == asked, "the nonce is the call's, not the look's"
    assert patching.talk.states == ["in_flight", "in_flight", "planned"]


def test_a_receipt_is_stored_as_it_was_given_and_as_it_was_read(patching: Patching) -> None:
    host = patching.host
    receipt = host.receipt(host.write("a.txt", "new"), {"lines": 1})

    host.submit(receipt)

    evidence = patching.evidence("0.1")
    assert evidence["receipt"] == receipt
    assert evidence["by"] == "host"
    told = receipt["workspace"]
    assert evidence["changes"] == {
        "root": patching.talk.row.thread_id,
        "paths": {"a.txt": told["contents"]["a.txt"]},
        "before_digest": told["before_digest"],
        "after_digest": told["after_digest"],
    }
    assert patching.talk.states == ["in_flight", "committed", "planned"]


def test_each_change_goes_on_from_the_one_before(patching: Patching) -> None:
    host, talk = patching.host, patching.talk
    first = host.receipt(host.write("a.txt", "new"), "first")
    host.submit(first)
    talk.client.submit(talk.run_id, {"0.0": 1})
    assert (talk.go_on(), talk.stands) == (RunStatus.PAUSED, WAITS)
    (second,) = host.requested
    assert second.workspace is not None
    assert second.workspace.last_digest == first["workspace"]["after_digest"]

    host.submit(host.receipt(host.write("b.txt", "new"), "second"))

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-3:] == ["1", "first", "second"]


MALFORMED: dict[str, tuple[dict[str, JsonValue], str]] = {
    "of another call": ({"tool_call_id": "0.2"}, "it is of call '0.2'"),
    "without a host": ({"host": ""}, "its host is no text"),
    "with digests that are none": ({"before_digest": "zzz", "after_digest": "zzz"}, "hex digits"),
    "of another algorithm": ({"algorithm": "sha1-tree"}, "'sha1-tree'; only"),
    "of another workspace": ({"root": "/home/mallory"}, "is of workspace '/home/mallory'"),
    "with another call's nonce": ({"nonce": "7"}, "its nonce is not the call's"),
    "with a path that climbs out": ({"created": ["../a.txt"]}, "no path inside"),
    "with an absolute path": ({"created": ["/etc/passwd"]}, "no path inside"),
    "with a path twice": ({"created": ["a.txt", "a.txt"]}, "a path twice"),
    "with a path in two lists": ({"modified": ["a.txt"]}, "a path twice"),
    "not sorted": ({"created": ["b", "a"]}, "not sorted"),
    "with a path of git's": ({"created": [".git/hooks/post-commit"]}, "does not take in"),
    "with a file below a link": ({"created": ["link", "link/passwd"]}, "cannot have stood"),
    "with ten thousand and one": ({"created": [f"{n:05}" for n in range(10_001)]}, "10000 are"),
    "with a name too long": ({"created": ["x" * 300]}, "too long"),
    "with nothing listed": ({"created": []}, "lists no path"),
    "with a change of nothing": ({"before_digest": EMPTY, "deleted": ["gone"]}, "of nothing"),
    "with the same digest twice": ({"before_digest": ZEROS, "after_digest": ZEROS}, "are the same"),
    "with contents of other paths": ({"contents": {}}, "not of its lists"),
    "with contents that are none": ({"contents": {"a.txt": ["x", None]}}, "two digests or null"),
    "with something else besides": ({"signature": "x"}, "has no signature"),
    "with a number for a list": ({"deleted": 7}, "deleted is no list"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_receipt_that_cannot_be_right_refuses_the_whole_batch(
    patching: Patching, case: str
) -> None:
    wrong, words = MALFORMED[case]
    host, talk = patching.host, patching.talk
    good = host.receipt(host.write("a.txt", "new"))

    batch = {"0.0": "a good result", "0.1": Receipt(altered(good, **wrong))}
    patching.refused(batch, InvalidReceipt, words)

    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": Receipt(good)})
    assert talk.states == ["committed", "committed", "planned"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("a plain result", "counts only with a receipt"),
        (Failed("it failed"), "counts only with a receipt"),
        (Receipt(None), "no JSON object"),
        (Receipt({"tool_call_id": "0.1", "result": 1, "host": "h"}), "it has no workspace"),
        (Receipt({"tool_call_id": "0.1", "host": "h"}), "either a result or an error"),
        (Receipt({"tool_call_id": "0.1", "error": 7, "host": "h"}), "error is no text"),
        (Receipt({"tool_call_id": "0.1", "error": "x", "result": 1}), "either a result or an"),
    ],
)
def test_without_a_receipt_a_change_is_not_taken_for_done(
    patching: Patching, result: Any, words: str
) -> None:
    patching.refused({"0.0": "a good result", "0.1": result}, InvalidReceipt, words)


def test_a_call_that_changes_no_files_takes_no_receipt(patching: Patching) -> None:
    receipt = altered(patching.host.receipt(), tool_call_id="0.0")
    patching.refused({"0.0": Receipt(receipt)}, InvalidReceipt, "changes no files")


def test_a_failed_call_has_a_receipt_as_well(patching: Patching) -> None:
    host, talk = patching.host, patching.talk
    receipt = host.receipt(host.write("half.txt", "of it"))
    failed = {name: value for name, value in receipt.items() if name != "result"}

    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": Receipt({**failed, "error": "disk full"})})

    assert talk.states == ["committed", "failed", "planned"]
    assert list(patching.evidence("0.1")["changes"]["paths"]) == ["half.txt"]


def test_the_same_receipt_again_is_no_news_and_another_one_is_refused(patching: Patching) -> None:
    host, talk = patching.host, patching.talk
    receipt = host.receipt(host.write("a.txt", "new"))
    host.submit(receipt)
    before, events = patching.everything(), talk.events

    host.submit(receipt)
    assert (patching.everything(), talk.events) == (before, events)
    patching.refused({"0.1": Receipt(altered(receipt, host="other"))}, Conflict, "which stays")
    patching.refused({"0.1": "something else"}, Conflict, "with another result")


def test_a_receipt_does_not_count_for_the_next_call(patching: Patching) -> None:
    host, talk = patching.host, patching.talk
    receipt = host.receipt(host.write("a.txt", "new"))
    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": Receipt(receipt)})
    talk.go_on()

    replayed = Receipt(altered(receipt, tool_call_id="0.2"))
    patching.refused({"0.2": replayed}, InvalidReceipt, "its nonce is not the call's")


def test_of_two_receipts_at_once_one_is_taken(patching: Patching) -> None:
    host, talk = patching.host, patching.talk
    receipt = host.receipt(host.write("a.txt", "new"))
    refused: list[Exception] = []
    together = threading.Barrier(2)

    def race(name: str) -> None:
        together.wait(5)
        try:
            talk.client.submit(talk.run_id, {"0.1": Receipt(altered(receipt, host=name))})
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=race, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(refused) == 1
    assert patching.evidence("0.1")["receipt"]["host"] in ("one", "other")


def test_names_in_two_normal_forms_are_two_paths_as_they_are_on_the_disk(
    patching: Patching,
) -> None:
    host = patching.host
    composed, apart = "caf\u00e9.txt", "cafe\u0301.txt"

    host.submit(host.receipt(lambda: [host.write(name, name)() for name in (composed, apart)]))

    assert set(patching.evidence("0.1")["changes"]["paths"]) == {composed, apart}


# Somebody else has changed the files --------------------------------------------------------------


@pytest.fixture
def drifted(patching: Patching) -> Patching:
    """The call 0.2 has found other files than 0.1 had left behind."""
    host, talk = patching.host, patching.talk
    talk.client.submit(
        talk.run_id, {"0.0": 1, "0.1": Receipt(host.receipt(host.write("a.txt", "new")))}
    )
    talk.go_on()
    host.write("a.txt", "by somebody else")()
    assert host.submit(host.receipt(host.write("b.txt", "new"), "second")) == "queued"
    assert talk.go_on() is RunStatus.NEEDS_ATTENTION
    return patching


def test_other_files_than_the_run_left_behind_go_to_a_person(drifted: Patching) -> None:
    talk = drifted.talk
    assert talk.states == ["committed", "committed", "unknown"]
    assert talk.row.error["kind"] == "workspace_drift"
    assert f"celeriac resolve {talk.run_id} 0.2 --committed JSON" in talk.row.error["message"]
    assert talk.events[-6:] == [
        "call.requested", "run.paused", "workspace.drifted", "effect.unknown", "run.woken",
        "run.needs_attention",
    ]  # fmt: skip
    (noted,) = talk.query("SELECT * FROM celeriac.audit WHERE action = 'workspace.drift'")
    assert (noted.actor, noted.outcome, noted.detail["host"]) == ("host", "denied", "laptop-7")
    assert drifted.evidence("0.2")["receipt"]["result"] == "second", "what was said is kept"
    assert len(talk.shown) == 1, "the model was told nothing"


def test_a_drift_alerts_at_once_though_another_result_is_missing(
    database: Database, broker_url: str, tmp_path: Path
) -> None:
    calls: Calls = [PATCHES[1], PATCHES[0], PATCHES[2]]
    talk = Talk(database, broker_url, calls, [patch])
    host = Host(talk.client, talk.start(), tmp_path)
    talk.go_on()
    host.submit(host.receipt(host.write("a.txt", "new")))
    talk.go_on()
    host.write("a.txt", "by somebody else")()

    host.submit(host.receipt())

    assert talk.go_on() is RunStatus.NEEDS_ATTENTION
    assert talk.states == ["committed", "in_flight", "unknown"]
    talk.client.submit(talk.run_id, {"0.1": 7})
    talk.client.resolve(talk.run_id, "0.2", TookEffect("looked"))
    assert talk.go_on() is RunStatus.COMPLETED
    talk.close()


def test_a_person_may_say_that_the_files_are_right(drifted: Patching) -> None:
    talk = drifted.talk
    talk.client.resolve(talk.run_id, "0.2", TookEffect("looked at it"))

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-1] == "looked at it"


def test_or_have_the_call_made_again_with_another_nonce(drifted: Patching) -> None:
    talk, host = drifted.talk, drifted.host
    old = drifted.evidence("0.2")["receipt"]
    talk.client.resolve(talk.run_id, "0.2", NotDone())
    assert (talk.go_on(), talk.stands) == (RunStatus.PAUSED, WAITS)

    (again,) = host.requested
    assert again.workspace is not None
    assert again.workspace.nonce != old["workspace"]["nonce"]
    assert again.workspace.last_digest == old["workspace"]["after_digest"], "as a person saw it"
    drifted.refused({"0.2": Receipt(old)}, InvalidReceipt, "its nonce")
    host.submit(host.receipt(host.write("b.txt", "newer"), "third"))
    assert talk.go_on() is RunStatus.COMPLETED


def test_the_receipt_of_a_drift_again_is_no_news(drifted: Patching) -> None:
    before = drifted.everything()
    drifted.host.submit(drifted.evidence("0.2")["receipt"])
    assert drifted.everything() == before


def test_a_cancelled_run_whose_files_drifted_ends(drifted: Patching) -> None:
    assert drifted.talk.client.cancel(drifted.talk.run_id) is RunStatus.CANCELLED


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("evidence - 'receipt'", "without a receipt"),
        ("jsonb_set(evidence, '{receipt,tool_call_id}', '\"0.2\"')", "a receipt of call 0.2"),
        ("jsonb_set(evidence, '{receipt,workspace,nonce}', '\"7\"')", "for another request"),
    ],
)
def test_the_audit_finds_a_change_without_its_receipt(
    patching: Patching, damage: str, said: str
) -> None:
    host, talk = patching.host, patching.talk
    host.submit(host.receipt(host.write("a.txt", "new")))
    assert audit(talk.database) == []
    right = patching.evidence("0.1")
    change = "UPDATE celeriac.effect_attempts SET evidence = {} WHERE call_id = '0.1' AND entry = 1"
    with talk.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(change.format(damage))

    (violation,) = audit(talk.database)

    assert (violation.invariant, violation.run_id) == (3, talk.run_id)
    assert said in violation.detail
    with talk.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(change.format("%s::jsonb"), (dumps(right),))
