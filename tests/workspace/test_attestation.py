"""What a process says about its workspace agrees with itself and what is known, or is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.workspace.attestation import (
    Attestation,
    Collected,
    attest,
    check,
    collect,
    read_attestation,
)
from celeriac.workspace.receipts import Issued, Receipt, read_receipt
from tests.workspace.test_digests import fill
from tests.workspace.test_workspaces_cli import celeriac


@pytest.fixture
def attestation(tmp_path: Path) -> Attestation:
    """Of a call that made, changed and deleted one path each."""
    fill(tmp_path)
    before = collect(tmp_path)
    (tmp_path / "made.txt").write_text("new")
    (tmp_path / "run.sh").chmod(0o644)
    (tmp_path / "link").unlink()
    return attest(before, collect(tmp_path), root="checkout-7", nonce="n-1")


def test_it_lists_what_the_call_did(attestation: Attestation) -> None:
    assert attestation.created == ["made.txt"]
    assert attestation.modified == ["run.sh"]
    assert attestation.deleted == ["link"]
    assert read_attestation(json.loads(json.dumps(attestation.to_json()))) == attestation
    check(attestation, root="checkout-7", nonce="n-1", last_digest=attestation.before_digest)
    check(attestation, root="checkout-7", nonce="n-1", last_digest=None)


def test_a_call_that_changed_nothing_is_attested_as_such(tmp_path: Path) -> None:
    fill(tmp_path)

    nothing = attest(collect(tmp_path), collect(tmp_path), root="r", nonce="n")

    assert not nothing.is_change
    assert read_attestation(nothing.to_json()) == nothing


def test_what_was_collected_reads_back(tmp_path: Path) -> None:
    fill(tmp_path)
    collected = collect(tmp_path)

    again = Collected.from_json(json.loads(json.dumps(collected.to_json())))

    assert again == collected
    assert again.digest == collected.digest


ZEROS, ONES = "0" * 64, "1" * 64


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"before_digest": "zzz", "after_digest": "zzz"}, "hex"),
        ({"after_digest": "A" * 64}, "hex"),
        ({"after_digest": ZEROS + "\n"}, "hex"),
        ({"before_digest": ZEROS, "after_digest": ZEROS}, "digests are the same"),
        ({"created": [], "modified": [], "deleted": []}, "lists no path"),
        ({"created": ["run.sh"]}, "twice"),
        ({"created": ["../outside"]}, "no path inside"),
        ({"created": ["/etc/passwd"]}, "no path inside"),
        ({"created": "made.txt"}, "no list of paths"),
        ({"created": [7]}, "no list of paths"),
        ({"root": ""}, "root is missing"),
        ({"nonce": None}, "nonce is missing"),
        ({"algorithm": "md5"}, "only celeriac-workspace-1"),
        ({"verdict": "fine"}, "has no verdict"),
    ],
)
def test_what_contradicts_itself_is_refused(
    attestation: Attestation, wrong: dict[str, JsonValue], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_attestation({**attestation.to_json(), **wrong})


@pytest.mark.parametrize("given", [None, [], "text", {}])
def test_what_is_no_attestation_is_refused(given: JsonValue) -> None:
    with pytest.raises(InvalidInput):
        read_attestation(given)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"root": "another"}, "of workspace 'another'"),
        ({"nonce": "n-0"}, "another call"),
        ({"before_digest": ONES}, "somebody else has changed it"),
    ],
)
def test_what_is_of_another_workspace_call_or_time_is_refused(
    attestation: Attestation, wrong: dict[str, str], why: str
) -> None:
    last = attestation.before_digest
    other = replace(attestation, **wrong)  # type: ignore[arg-type]  # each is a text

    with pytest.raises(InvalidInput, match=why):
        check(other, root="checkout-7", nonce="n-1", last_digest=last)


def test_the_command_makes_the_receipt_of_a_call(tmp_path: Path) -> None:
    folder, file = tmp_path / "project", str(tmp_path / "before.json")
    folder.mkdir()
    celeriac("attest", str(folder), "--save", file)
    (folder / "made.txt").write_text("new")

    after = ("attest", str(folder), "--since", file, "--root", "thread-1", "--nonce", "n")
    made = json.loads(celeriac(*after, "--call", "3.0", "--result", '{"lines": 1}', "--host", "h"))

    read = read_receipt(Receipt(made), "3.0", Issued("thread-1", "n"))
    assert (read.result, read.error, read.host) == ({"lines": 1}, None, "h")
    assert read.attestation.created == ["made.txt"]
    failed = json.loads(celeriac(*after, "--call", "3.0", "--error", "disk full"))
    assert read_receipt(Receipt(failed), "3.0", Issued("thread-1", "n")).error == "disk full"
    assert "needs either --result or --error" in celeriac(*after, "--call", "3.0", code=2)


def test_the_command_attests_what_happened_in_between(tmp_path: Path) -> None:
    folder, file = tmp_path / "project", str(tmp_path / "before.json")
    folder.mkdir()
    fill(folder)

    told = json.loads(celeriac("attest", str(folder), "--save", file))
    (folder / "made.txt").write_text("new")
    after = ("attest", str(folder), "--since", file)
    made = json.loads(celeriac(*after, "--root", "r", "--nonce", "n"))

    assert read_attestation(made).created == ["made.txt"]
    assert made["before_digest"] == told["digest"]
    assert "needs --root" in celeriac(*after, code=2)
    wrong = (
        "attest",
        str(folder),
        "--since",
        str(folder / "run.sh"),
        "--root",
        "r",
        "--nonce",
        "n",
    )
    assert "was not made by" in celeriac(*wrong, code=1)
