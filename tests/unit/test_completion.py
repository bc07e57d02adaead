"""A contract is held against what was done in its order: what came later counts."""

# features: 004-34, 004-35, 004-36
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.codec import dumps, loads
from celeriac.completion import unmet
from celeriac.contract import Contract, matches
from celeriac.errors import InvalidAgent
from celeriac.evidence import UNTOLD, Changes, CommandRun, Deed, Standing
from celeriac.ids import CallId

MUTATED = Contract(require_workspace_mutation=True)
TESTED = Contract(require_focused_verification=True)
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def change(path: str = "src/a.py", before: Standing = A, after: Standing = B, **told: Any) -> Deed:
    changes = Changes(
        "here", {path: (before, after)} if before != after or before == UNTOLD else {}, **told
    )
    return Deed(CallId("?"), "edit_file", 0, 0, mutates_workspace=True, changes=[changes])


def checked(exit_code: int | None = 0, passed: int | None = 3, **told: Any) -> Deed:
    run = CommandRun(["pytest", "-q", *told.pop("words", [])], exit_code, tests=passed, **told)
    return Deed(CallId("?"), "run_tests", 0, 0, mutates_workspace=True, verifies=True, command=run)


def command(*words: str, exit_code: int | None = 0) -> Deed:
    run = CommandRun(list(words), exit_code)
    return Deed(CallId("?"), "run_command", 0, 0, mutates_workspace=True, command=run)


def effect(tool: str = "deploy", *, is_observed: bool = True, **told: Any) -> Deed:
    return Deed(CallId("?"), tool, 0, 0, is_observed=is_observed, **told)


def in_order(*deeds: Deed) -> list[Deed]:
    """One after the other, as a worker makes them."""
    numbers = count(1)
    return [
        replace(deed, call_id=CallId(f"{n}.0"), begun=next(numbers), ended=next(numbers))
        for n, deed in enumerate(deeds)
    ]


def missing(contract: Contract, *deeds: Deed) -> list[str]:
    return [each.requirement for each in unmet(contract, in_order(*deeds))]


def why(contract: Contract, *deeds: Deed) -> str:
    return "; ".join(each.why for each in unmet(contract, in_order(*deeds)))


# What has changed --------------------------------------------------------------------------------


def test_nothing_done_is_nothing_changed() -> None:
    assert missing(MUTATED) == ["require_workspace_mutation"]
    assert missing(MUTATED, change(before=A, after=A)) == ["require_workspace_mutation"]
    assert missing(MUTATED, change()) == []


def test_a_file_that_is_again_what_it_was_has_not_changed() -> None:
    back = change(before=B, after=A)
    assert missing(MUTATED, change(), back) == ["require_workspace_mutation"]
    assert missing(MUTATED, change(), back, change(after=C)) == []
    assert missing(MUTATED, change("x", None, B), change("x", B, None)) != []


def test_what_nobody_told_is_the_same_as_nothing() -> None:
    untold = change(before=UNTOLD, after=UNTOLD)
    assert missing(MUTATED, untold, untold) == []
    digests = {"before_digest": A, "after_digest": B}
    backwards = {"before_digest": B, "after_digest": A}
    assert missing(
        MUTATED,
        change(before=UNTOLD, after=UNTOLD, **digests),
        change(before=UNTOLD, after=UNTOLD, **backwards),
    ) == ["require_workspace_mutation"], "the whole workspace is what it was"


def test_only_a_change_where_it_is_wanted_counts() -> None:
    contract = Contract(paths_changed=["src/**/*.py", "docs/*"])
    assert missing(contract, change("README.md")) == ["paths_changed", "paths_changed"]
    assert "src/**/*.py" in why(contract, change("docs/a"))
    assert missing(contract, change("docs/a"), change("src/x/y.py")) == []


@pytest.mark.parametrize(
    ("pattern", "path", "is_one"),
    [
        ("a.py", "a.py", True), ("a.py", "axpy", False), ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True), ("**/*.py", "x/y/a.py", True), ("src/**", "src/x/y", True),
        ("src/**", "srcs/x", False), ("?.py", "a.py", True), ("?.py", "/.py", False),
        ("[ab].py", "a.py", False), ("caf\u00e9", "cafe\u0301", True), ("*.py", "a\n.py", True),
    ],
)  # fmt: skip
def test_a_pattern_names_paths(pattern: str, path: str, is_one: bool) -> None:
    assert matches(pattern, path) is is_one


@pytest.mark.timeout(60)  # a search that comes back takes hours
def test_a_path_that_somebody_made_up_for_it_takes_no_time() -> None:
    assert not matches("/".join(["**", "src"] * 8), "src/" * 1000 + "x")
    assert not matches("*a" * 20 + "*b", "a" * 4000)


def test_two_stars_stand_for_whole_folders_only() -> None:
    with pytest.raises(InvalidAgent, match=r"whole folders, as in src/\*\*/\*\.py"):
        Contract(paths_changed=["src/**.py"])


def test_what_tests_leave_behind_is_no_change_and_makes_nothing_stale() -> None:
    cache = replace(checked(), changes=change("cache/x", None, B).changes)
    assert missing(MUTATED, cache) == ["require_workspace_mutation"]
    assert missing(TESTED, change(), cache) == []


def test_tests_that_change_what_others_wrote_make_themselves_stale() -> None:
    rewriting = replace(checked(), changes=change(before=B, after=C).changes)
    assert missing(TESTED, change(), rewriting) == ["require_focused_verification"]
    assert missing(TESTED, change(), rewriting, checked()) == []


# Tests and commands ------------------------------------------------------------------------------


def test_tests_have_to_pass_after_the_last_change() -> None:
    assert "have not been run" in why(TESTED, change())
    assert missing(TESTED, change(), checked()) == []
    assert "before the last change (call 2.0)" in why(TESTED, change(), checked(), change())
    assert missing(TESTED, change(), checked(), change(before=B, after=B)) == [], (
        "it changed nothing"
    )


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (checked(exit_code=1), "failed with exit code 1"),
        (checked(exit_code=None), "did not come to its end"),
        (checked(passed=0), "ran no test"),
        (checked(passed=None), "does not say how many"),
        (checked(is_whole=False), "too long"),
        (replace(checked(), command=None, is_done=False), "nobody knows"),
        (checked(exit_code=2, words=["other.py"]), "failed with exit code 2"),
    ],
)
def test_a_later_run_of_the_tests_undoes_an_earlier_one(later: Deed, words: str) -> None:
    assert words in why(TESTED, change(), checked(), later)
    assert missing(TESTED, change(), checked(), later, checked()) == []


def test_only_the_tests_that_are_meant_count_and_any_that_fail() -> None:
    contract = Contract(require_focused_verification=["test_a.py"])
    focused, other = checked(words=["test_a.py"]), checked(words=["test_b.py"])
    assert missing(contract, change(), other) == ["require_focused_verification"]
    assert missing(contract, change(), focused, other) == []
    failed = checked(exit_code=1, words=["test_b.py"])
    assert missing(contract, change(), focused, failed) == ["require_focused_verification"]
    assert missing(contract, change(), focused, failed, other) != [], (
        "another that passed says less"
    )


def test_tests_that_began_before_a_change_was_over_may_have_seen_the_old_files() -> None:
    changed = replace(change(), begun=1, ended=4)
    overlapping = replace(checked(), begun=2, ended=5)
    assert unmet(TESTED, [changed, overlapping])
    assert unmet(TESTED, [changed, replace(overlapping, begun=5, ended=6)]) == []


def test_a_change_that_nobody_told_of_makes_tests_stale() -> None:
    untold = Deed(CallId("?"), "fix", 0, 0, mutates_workspace=True, is_told=False)
    assert missing(TESTED, checked(), untold) == ["require_focused_verification"]
    assert missing(MUTATED, untold) == ["require_workspace_mutation"]


def test_a_command_has_to_succeed_after_the_last_change() -> None:
    contract = Contract(command_succeeded=[["make", "docs"]])
    made = command("make", "docs")
    assert "has not been run" in why(contract, command("make", "docs", "-n"))
    assert missing(contract, change(), made) == []
    assert missing(contract, made, change()) == ["command_succeeded"]
    assert "ended with 2" in why(contract, made, command("make", "docs", exit_code=2))
    assert "did not come to its end" in why(contract, command("make", "docs", exit_code=None))


def test_two_commands_that_both_make_files_do_not_make_each_other_stale() -> None:
    contract = Contract(command_succeeded=[["make", "a"], ["make", "b"]])
    both = [replace(command("make", name), changes=change(name, None, B).changes) for name in "ab"]
    assert missing(contract, change(), *both) == []


# Effects -----------------------------------------------------------------------------------------


def test_an_effect_has_to_be_seen_outside_of_the_workspace() -> None:
    contract = Contract(require_observed_effect=True)
    assert missing(contract, effect(is_observed=False)) == ["require_observed_effect"]
    assert missing(contract, effect(is_done=False)) == ["require_observed_effect"]
    assert missing(contract, effect()) == []
    assert missing(contract, checked()) == ["require_observed_effect"]


def test_a_changed_file_is_an_effect_only_where_it_is_wanted() -> None:
    attested = replace(change("notes.txt"), is_observed=True)
    assert missing(Contract(require_observed_effect=True), attested) != []
    contract = Contract(require_observed_effect=True, paths_changed=["notes.*"])
    assert missing(contract, attested) == []
    assert missing(contract, attested, change("notes.txt", B, A))[-1] == "require_observed_effect"


def test_each_named_tool_has_to_have_an_effect() -> None:
    contract = Contract(require_observed_effect=["deploy", "announce"])
    assert "announce" in why(contract, effect("deploy"))
    assert missing(contract, effect("deploy"), effect("announce")) == []


# Declaring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "requires nothing"),
        ({"paths_changed": "src"}, "give a list"),
        ({"paths_changed": ["/src"]}, "no path inside"),
        ({"paths_changed": ["../src"]}, "no path inside"),
        ({"command_succeeded": ["make"]}, "no list of words"),
        ({"require_workspace_mutation": True, "enforcement": "loose"}, "neither strict nor"),
        ({"require_workspace_mutation": True, "max_corrections": -1}, "from 0 to 20"),
        ({"require_workspace_mutation": True, "max_corrections": True}, "from 0 to 20"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidAgent, match=words):
        Contract(**wrong)


def test_a_requirement_of_a_newer_version_is_not_left_out() -> None:
    with pytest.raises(InvalidAgent, match="requires review, which this version does not know"):
        Contract.from_json({**MUTATED.to_json(), "review": True})


def test_a_contract_reads_back_as_it_was_stored() -> None:
    contract = Contract(
        paths_changed=("src/**",),
        command_succeeded=(("make", "docs"),),
        require_focused_verification=("test_a.py",),
    )
    stored = loads(dumps(contract.to_json()))
    assert isinstance(stored, dict)
    again = Contract.from_json(stored)
    assert again.to_json() == contract.to_json()
    assert missing(again, command("make", "docs"), change("src/a")) == missing(
        contract, command("make", "docs"), change("src/a")
    )


# In any order ------------------------------------------------------------------------------------

EVERYTHING = Contract(
    require_workspace_mutation=True,
    paths_changed=["src/**"],
    require_observed_effect=True,
    command_succeeded=[["make"]],
    require_focused_verification=True,
)
STANDINGS: st.SearchStrategy[Standing] = st.sampled_from([None, A, B, C, UNTOLD])
DEEDS = st.one_of(
    st.builds(change, st.sampled_from(["src/a.py", "src/b.py", "notes"]), STANDINGS, STANDINGS),
    st.builds(checked, st.sampled_from([0, 1, None]), st.sampled_from([0, 3, None])),
    st.builds(lambda code: command("make", exit_code=code), st.sampled_from([0, 1, None])),
    st.builds(lambda seen: effect(is_observed=seen), st.booleans()),
)
HISTORIES = st.lists(DEEDS, max_size=8)
GOOD_END = [change("src/new.py", None, C), effect(), command("make"), checked()]


@given(HISTORIES)
def test_whatever_was_done_before_a_good_end_is_a_good_end(history: Sequence[Deed]) -> None:
    assert missing(EVERYTHING, *history, *GOOD_END) == []


@given(HISTORIES, st.sampled_from([1, None]), st.sampled_from([0, 3, None]))
def test_no_past_makes_up_for_tests_that_fail_in_the_end(
    history: Sequence[Deed], exit_code: int | None, passed: int | None
) -> None:
    last = checked(exit_code, passed)
    assert "require_focused_verification" in missing(EVERYTHING, *history, *GOOD_END, last)


@given(HISTORIES, st.sampled_from(["src/a.py", "elsewhere"]))
def test_a_change_in_the_end_makes_everything_before_it_stale(
    history: Sequence[Deed], path: str
) -> None:
    found = missing(EVERYTHING, *history, *GOOD_END, change(path, A, B))
    assert {"command_succeeded", "require_focused_verification"} <= {*found}


@given(HISTORIES)
def test_the_judgement_rests_on_the_order_of_events_and_on_nothing_else(
    history: Sequence[Deed],
) -> None:
    deeds = in_order(*history)
    judgement = unmet(EVERYTHING, deeds)
    assert unmet(EVERYTHING, reversed(deeds)) == judgement
    assert unmet(EVERYTHING, deeds) == judgement
    stretched = [replace(deed, begun=deed.begun * 10, ended=deed.ended * 10) for deed in deeds]
    assert unmet(EVERYTHING, stretched) == judgement


# What a command's output says --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "passed"),
    [
        ("==== 3 passed, 1 skipped in 0.02s ====", 3),
        ("no tests ran in 0.01s", None),
        ("3 tests collected in 0.01s", None),
        ("Ran 4 tests in 0.001s\n\nOK\n", 4),
        ("Ran 0 tests in 0.000s\n\nOK\n", 0),
        ("test result: ok. 2 passed; 0 failed\n\ntest result: ok. 0 passed; 0 failed", 2),
        ("  7 passing (12ms)", 7),
        ("# tests 2\n# pass 2\n# fail 0", 2),
        ("ok  \texample.com/a\t0.004s\nok  \texample.com/b\t(cached)", 2),
        ("ok  \texample.com/a\t0.004s [no tests to run]", None),
        ("?   \texample.com/a\t[no test files]", None),
        ("all good", None),
    ],
)
def test_the_tests_that_passed_are_read_from_the_output(output: str, passed: int | None) -> None:
    run = CommandRun.of_result({"exit_code": 0, "command": ["x"], "output": output})
    assert run is not None
    assert run.tests == passed
    assert (run.outcome == "passed") is bool(passed)
    assert CommandRun.from_json(run.to_json()) == run


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ({"exit_code": 0, "tests_passed": 2}, "passed"),
        ({"exit_code": 0, "tests_passed": 0}, "unavailable"),
        ({"exit_code": 0, "tests_passed": True}, "unavailable"),
        ({"exit_code": True, "tests_passed": 2}, "unavailable"),
        ({"exit_code": "0", "tests_passed": 2}, "unavailable"),
        ({"exit_code": 0, "tests_passed": 2, "timed_out": True}, "unavailable"),
        ({"exit_code": 0, "tests_passed": 2, "is_truncated": True}, "unavailable"),
        ({"exit_code": 1, "tests_passed": 2}, "failed"),
        ({"exit_code": None, "output": "3 passed"}, "unavailable"),
    ],
)
def test_a_result_that_is_not_certain_is_unavailable(result: dict[str, Any], outcome: str) -> None:
    run = CommandRun.of_result(result)
    assert run is not None
    assert run.outcome == outcome
