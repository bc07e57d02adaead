"""Who must agree, judged from plain JSON: conditions, rules, and what a person may decide."""

# features: 000-28, 004-41, 004-59
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac import Approval, Rule, When, tool
from celeriac.approval import Requirement, rendered
from celeriac.codec import dumps, loads
from celeriac.conditions import exact_number
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.ids import UserId
from celeriac.principal import Principal, permissions_from_json, permissions_to_json
from celeriac.rollback import Rollback

OUT_OF_BAND = Rollback.OUT_OF_BAND


def requirement(approval: Approval, rollback: Rollback = OUT_OF_BAND, **arguments: Any) -> Any:
    return approval.requirement(arguments, rollback)


# Conditions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "value", "holds"),
    [
        (When("amount", ">", 500), "500.01", True),
        (When("amount", ">", 500), 500, False),
        (When("amount", ">", 500), 500.1, True),
        (When("amount", ">=", "0.30"), 0.1 + 0.2, True),
        (When("amount", "<=", "0.30"), 0.1 + 0.2, False),  # it is 0.30000000000000004
        (When("amount", "<", Decimal("1E+2")), "99.99", True),
        (When("amount", "<", 5), "NaN", None),
        (When("amount", "<", 5), "\uff11", None),
        (When("amount", "<", 5), True, None),
        (When("amount", "<", 5), None, None),
        (When("amount", "==", 7), "7.0", True),
        (When("amount", "==", 7), "seven", None),
        (When("amount", "==", "007"), "7", False),
        (When("amount", "!=", "EUR"), "USD", True),
        (When("amount", "==", value=True), True, True),
        (When("amount", "==", value=True), 1, None),
        (When("amount", "in", ["EUR", "USD"]), "USD", True),
        (When("amount", "in", ["EUR", "USD"]), "GBP", False),
        (When("amount", "not in", ["EUR"]), "GBP", True),
        (When("amount", "in", ["EUR"]), 5, None),
        (When("amount", "in", [1, 2]), "2", True),
    ],
)
def test_a_condition_compares_exactly_or_cannot_say(
    when: When, value: Any, holds: bool | None
) -> None:
    assert when.holds({"amount": value}) is holds
    assert When.from_json(loads(dumps(when.to_json()))).holds({"amount": value}) is holds


def test_a_path_leads_through_objects_and_lists() -> None:
    arguments: Any = {"lines": [{"price": "1.50"}, {"price": "99"}]}

    assert When("lines.1.price", ">", 50).holds(arguments) is True
    assert When("lines.2.price", ">", 50).holds(arguments) is None
    assert When("lines.-1.price", ">", 50).holds(arguments) is None


@pytest.mark.parametrize(
    "declared",
    [
        lambda: When("amount", ">", 500.5),  # type: ignore[arg-type]  # what a float is refused for
        lambda: When("amount", ">", "many"),
        lambda: When("amount", "~", 1),
        lambda: When("amount", "in", "EUR"),
        lambda: When("", ">", 1),
        lambda: When("a..b", ">", 1),
        lambda: Approval(quorum=0),
        lambda: Approval(quorum=True),
        lambda: Approval(roles="finance"),
        lambda: Approval(checklist=[" "]),
        lambda: Approval(expires_seconds=0),
        lambda: Approval(expires_seconds=1e13),
        lambda: Approval(on_reject="stop"),  # type: ignore[arg-type]  # neither of the two
        lambda: Approval(unless=["amount"]),  # type: ignore[list-item]  # no condition
        lambda: Rule(when=()),
    ],
)
def test_what_nobody_could_fulfil_is_refused_when_it_is_declared(declared: Any) -> None:
    with pytest.raises(InvalidAgent):
        declared()


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4), st.integers())
def test_numbers_are_compared_as_they_are_written(number: Decimal, limit: int) -> None:
    assert When("n", ">", limit).holds({"n": f"{number:f}"}) is (number > limit)
    assert exact_number(f"{number:f}") == number


# Requirements -------------------------------------------------------------------------------------


def test_unless_spares_only_what_certainly_fulfils_all_of_it() -> None:
    approval = Approval(unless=[When("amount", "<=", "50"), When("currency", "==", "EUR")])

    assert requirement(approval, amount="50", currency="EUR") is None
    assert requirement(approval, amount="50", currency="USD") is not None
    assert requirement(approval, amount="50") is not None
    assert requirement(approval, amount="NaN", currency="EUR") is not None


def test_rules_make_the_review_stronger_and_never_weaker() -> None:
    approval = Approval(
        roles=["refunds"],
        quorum=2,
        checklist=["paid?"],
        expires_seconds=60,
        rules=[
            Rule(When("amount", ">", 100), quorum=1, checklist=["called?"], expires_seconds=600),
            Rule(When("amount", ">", 1000), roles=["finance"], quorum=3, expires_seconds=30),
        ],
    )

    small = requirement(approval, amount=50)
    middle = requirement(approval, amount=500)
    large = requirement(approval, amount=5000)
    unknown = requirement(approval)

    assert (small.roles, small.quorum, small.checklist) == (("refunds",), 2, ("paid?",))
    assert (middle.quorum, middle.checklist, middle.expires_seconds) == (
        2, ("paid?", "called?"), 60,
    )  # fmt: skip
    assert (large.roles, large.quorum, large.expires_seconds) == (("finance",), 3, 30)
    assert large.reason == "amount > 1000"
    assert unknown == large, "what cannot be compared is taken for the worse"


def test_what_cannot_be_taken_back_needs_two_or_a_checklist() -> None:
    assert requirement(Approval(), Rollback.NONE).quorum == 2
    assert requirement(Approval(quorum=3), Rollback.NONE).quorum == 3
    assert requirement(Approval(checklist=["sure?"]), Rollback.NONE).quorum == 1
    assert requirement(Approval(), Rollback.COMPENSATE).quorum == 1


def test_an_approval_survives_json_and_has_one_version() -> None:
    approval = Approval(
        roles=["a"],
        unless=When("amount", "<", "1.50"),
        rules=[Rule([When("kind", "in", ["x", "y"])], quorum=2)],
        immutable=["order_id"],
        on_reject="end",
        expires_seconds=1.5,
    )

    again = Approval.from_json(loads(dumps(approval.to_json())))  # type: ignore[arg-type]  # an object

    assert again == approval
    assert again.policy_version == approval.policy_version
    assert Approval().policy_version != approval.policy_version
    needed = requirement(approval, amount=2, kind="x")
    assert Requirement.from_json(loads(dumps(needed.to_json()))) == needed  # type: ignore[arg-type]  # an object


def test_a_template_shows_arguments_and_nothing_else() -> None:
    text = "{amount} to {name} ({lines})"
    shown = rendered(text, {"amount": "5.00", "name": "{amount}", "lines": [1]})

    assert shown == "5.00 to {amount} ([1])"


@pytest.mark.parametrize(
    "approval",
    [
        Approval(blast_radius="{ammount} leave"),
        Approval(intent="{nobody}"),
        Approval(immutable=["ammount"]),
        Approval(unless=When("ammount", "<", 1)),
        Approval(rules=[Rule(When("ammount.x", "<", 1))]),
    ],
)
def test_a_tool_whose_approval_names_no_parameter_is_refused(approval: Approval) -> None:
    with pytest.raises(InvalidAgent, match="no parameter"):

        @tool(approval=approval)
        def pay(amount: int) -> None:
            """Pay."""


def test_a_tool_tells_its_registration_how_its_calls_are_reviewed() -> None:
    @tool(effect="external", rollback="none", approval=Approval(roles=["a"]))
    def pay(amount: Decimal) -> None:
        """Pay."""

    row = pay.registration()

    assert row["rollback"] == "none"
    assert row["approval"] == Approval(roles=["a"]).to_json()
    with pytest.raises(InvalidAgent, match="rollback='undo' is none of"):
        tool(rollback="undo")(pay.function)  # type: ignore[call-overload]  # none of them


# Persons ------------------------------------------------------------------------------------------


def person(**about: Any) -> Principal:
    return Principal(UserId("alice"), **about)


@pytest.mark.parametrize(
    ("alice", "approval", "may"),
    [
        (person(), Approval(), True),
        (person(is_disabled=True), Approval(), False),
        (person(), Approval(roles=["a"]), False),
        (person(roles=("b", "a")), Approval(roles=["a"]), True),
        (person(permissions={}), Approval(), False),
        (person(permissions={"pay": ()}), Approval(), True),
        (person(permissions={"*": (), "pay": [When("amount", "<", 5)]}), Approval(), False),
        (person(permissions={"*": (), "ship": [When("amount", "<", 5)]}), Approval(), True),
        (person(permissions={"*": [When("amount", "<=", 7)]}), Approval(), True),
        (person(permissions={"*": [When("missing", "<=", 7)]}), Approval(), False),
    ],
)
def test_a_person_may_decide_what_role_and_limits_allow(
    alice: Principal, approval: Approval, may: bool
) -> None:
    needed = requirement(approval, amount=7)

    objection = alice.objection(needed, "pay", {"amount": 7}, "bob")

    assert (objection is None) is may
    assert alice.objection(needed, "pay", {"amount": 7}, "alice") is not None


def test_permissions_survive_json_and_nothing_else_is_taken_for_them() -> None:
    permissions = {"pay": [When("amount", "<", "5.50")], "*": ()}

    stored = loads(dumps(permissions_to_json(permissions)))

    assert stored == {"pay": [["amount", "<", "5.50"]], "*": []}
    assert permissions_to_json(permissions_from_json(stored)) == stored
    wrongs: list[Any] = [[], {"pay": 5}, {"": []}, {"pay": [["amount"]]}, {"pay": [["a", "~", 1]]}]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            permissions_from_json(wrong)
