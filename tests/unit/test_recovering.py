"""What is done about a lost external call, case by case."""

# features: 000-13, 002-19, 002-20, 004-20, 004-21, 004-32, 004-33
from collections.abc import Callable

import pytest

from celeriac.codec import JsonValue
from celeriac.recovery import (
    MAX_LOOKS,
    MAX_SENDS,
    Done,
    Finding,
    NotDone,
    OnUnknown,
    Recovery,
    Unclear,
)
from celeriac.states import EffectState
from celeriac_storage.lost_calls import LostCall
from celeriac_tasks.recovering import Ask, Decision, LookLater, SendAgain, Settle, decide

LOST = "the worker of attempt 1 was lost during the call"
RESULT: JsonValue = {"refund": 7}


def lost(
    *,
    looks: int = 0,
    seconds_until_visible: float = -1.0,
    returned: JsonValue = None,
    has_returned: bool = False,
    reported: EffectState | None = None,
    report: JsonValue = None,
    follows_doubt: bool = False,
) -> LostCall:
    return LostCall(
        looks,
        seconds_until_visible,
        returned,
        has_returned,
        reported,
        report,
        follows_doubt=follows_doubt,
    )


def never() -> Finding:
    raise AssertionError("the target must not be asked now")


def says(finding: Finding) -> Callable[[], Finding]:
    return lambda: finding


def decided(
    call: LostCall,
    look: Callable[[], Finding] = never,
    *,
    has_verify: bool = True,
    on_unknown: OnUnknown = "ask",
    attempt: int = 1,
) -> Decision:
    recovery = Recovery(verify=never if has_verify else None, on_unknown=on_unknown)
    return decide(recovery, attempt, call, look, LOST)


def test_a_call_without_a_way_to_find_out_is_for_a_person() -> None:
    assert decided(lost(), has_verify=False) == Ask(EffectState.UNKNOWN, LOST)


@pytest.mark.parametrize("on_unknown", ["ask", "verify", "resend"])
def test_nobody_looks_or_sends_before_the_call_is_over_and_visible(on_unknown: OnUnknown) -> None:
    waits = decided(lost(seconds_until_visible=3.5), on_unknown=on_unknown)

    assert waits == LookLater(3.5, LOST)


def test_a_call_whose_key_makes_it_safe_is_sent_again_after_its_time() -> None:
    early = decided(lost(seconds_until_visible=2.0), has_verify=False, on_unknown="resend")

    assert early == LookLater(2.0, LOST)
    assert decided(lost(), has_verify=False, on_unknown="resend") == SendAgain(LOST)


def test_what_the_target_shows_is_done() -> None:
    seen = Settle(EffectState.COMMITTED, RESULT, is_seen=True)

    assert decided(lost(), says(Done(RESULT))) == seen


def test_a_target_that_only_says_done_leaves_the_result_that_the_tool_returned() -> None:
    call = lost(returned=RESULT, has_returned=True)

    assert decided(call, says(Done())) == Settle(EffectState.COMMITTED, RESULT, is_seen=True)


def test_what_is_certainly_not_done_is_sent_again_with_the_same_key() -> None:
    assert isinstance(decided(lost(), says(NotDone())), SendAgain)


def test_what_is_not_done_again_and_again_fails() -> None:
    failed = decided(lost(), says(NotDone()), attempt=MAX_SENDS)

    assert isinstance(failed, Settle)
    assert failed.state is EffectState.FAILED


def test_a_success_that_the_target_does_not_show_is_known_bad_and_never_sent_again() -> None:
    call = lost(returned=RESULT, has_returned=True)

    for on_unknown in ("ask", "verify", "resend"):
        bad = decided(call, says(NotDone()), on_unknown=on_unknown)
        assert isinstance(bad, Ask)
        assert bad.state is EffectState.KNOWN_BAD


@pytest.mark.parametrize(
    ("on_unknown", "expected"), [("ask", Ask), ("verify", LookLater), ("resend", SendAgain)]
)
def test_a_target_that_cannot_tell_leaves_it_to_the_tools_policy(
    on_unknown: OnUnknown, expected: type[Decision]
) -> None:
    assert isinstance(decided(lost(), says(Unclear("down")), on_unknown=on_unknown), expected)


def test_a_target_that_never_can_tell_is_for_a_person_in_the_end() -> None:
    looks = 0
    waits: list[float] = []
    while True:
        decision = decided(lost(looks=looks), says(Unclear("down")), on_unknown="verify")
        if isinstance(decision, Ask):
            break
        assert isinstance(decision, LookLater)
        waits.append(decision.seconds)
        looks += 1

    assert looks == MAX_LOOKS
    assert waits[-1] > waits[0]
    assert "the target cannot tell: down" in decision.why


def test_sending_again_ends_with_a_person_too() -> None:
    decision = decided(lost(), has_verify=False, on_unknown="resend", attempt=MAX_SENDS)

    assert isinstance(decision, Ask)
    assert decision.state is EffectState.UNKNOWN


@pytest.mark.parametrize("has_verify", [True, False])
def test_what_the_calls_own_worker_reports_counts_before_anything_else(has_verify: bool) -> None:
    done = lost(reported=EffectState.COMMITTED, report=RESULT, seconds_until_visible=9.0)
    refused = lost(reported=EffectState.FAILED, report={"kind": "tool_error", "message": "no"})

    assert decided(done, has_verify=has_verify) == Settle(EffectState.COMMITTED, RESULT)
    failed = decided(refused, has_verify=has_verify)
    assert isinstance(failed, Settle)
    assert failed.error == {"kind": "tool_error", "message": "no"}


def test_a_refusal_that_is_reported_is_no_proof_about_an_attempt_before_it() -> None:
    refused = lost(
        reported=EffectState.FAILED,
        report={"kind": "tool_error", "message": "no"},
        follows_doubt=True,
    )

    asked = decided(refused, has_verify=False, on_unknown="resend", attempt=2)

    assert isinstance(asked, Ask)
    assert asked.state is EffectState.UNKNOWN
    assert decided(refused, says(Done(RESULT)), attempt=2) == Settle(
        EffectState.COMMITTED, RESULT, is_seen=True
    )


def test_the_same_rows_lead_to_the_same_decision() -> None:
    call = lost(looks=2, returned=RESULT, has_returned=True)

    assert decided(call, says(Done())) == decided(call, says(Done()))
