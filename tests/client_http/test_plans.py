"""Plans over HTTP: started, shown and retried as by a client of the database."""

from collections.abc import Iterator

import pytest

from celeriac.errors import Conflict, InvalidInput, InvalidPlan, UnknownRun
from celeriac.plan import Plan, PlanStep
from celeriac.reports import to_json
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from tests.client_http.conftest import PersonClient
from tests.family import Family
from tests.plan_desk import LAYERS, broken, calls, made, runner, writer


@pytest.fixture
def family(database: Database, broker_url: str) -> Iterator[Family]:
    calls.clear()
    broken.clear()
    family = Family(database.url, broker_url, [runner, writer])
    yield family
    assert family.violations() == []
    family.close()


def test_a_plan_is_started_shown_edited_and_retried(
    family: Family, client_of: PersonClient
) -> None:
    client = client_of("alice")
    broken.add("a is there")
    run_id = client.start_plan(Plan(LAYERS, goal="a letter")).run_id
    family.go_on()
    assert client.get(run_id).status is RunStatus.FAILED

    edited = Plan([*LAYERS, PlanStep("e", tool="look", arguments={"what": "e"})])
    retried = [client.retry_plan(run_id, edited).run_id for _ in range(2)]
    broken.clear()
    family.go_on()

    assert retried[0] == retried[1]
    assert client.get(retried[0]).result == {"d": "a text", "e": {"found": "e is there"}}
    assert made() == sorted(["a", "b", "a is there", "a is there", "e"])
    report = client.plan(retried[0])
    assert report == family.client.plan(retried[0])
    assert to_json(report) == to_json(family.client.plan(retried[0]))
    assert (report.version, report.continues) == (2, run_id)


@pytest.mark.usefixtures("family")
def test_what_is_refused_is_the_same_error(client_of: PersonClient) -> None:
    alice = client_of("alice")
    with pytest.raises(InvalidInput, match="step a: there is no tool play; known are book"):
        alice.start_plan(Plan([PlanStep("a", tool="play")]))
    run_id = alice.start_plan(Plan(LAYERS)).run_id

    with pytest.raises(Conflict, match="when it has ended"):
        alice.retry_plan(run_id)
    with pytest.raises(InvalidPlan, match="step a needs b"):
        alice.retry_plan(run_id, {"steps": [{"id": "a", "tool": "look", "needs": ["b"]}]})
    with pytest.raises(InvalidInput, match="executes no plan"):
        alice.plan(alice.start("writer", "x").run_id)


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(("user", "tenant"), [("bob", "default"), ("alice", "rival")])
def test_a_plan_of_somebody_else_is_not_there(
    client_of: PersonClient, user: str, tenant: str
) -> None:
    run_id = client_of("alice").start_plan(Plan(LAYERS)).run_id
    other = client_of(user, tenant=tenant)

    with pytest.raises(UnknownRun):
        other.plan(run_id)
    with pytest.raises(UnknownRun):
        other.retry_plan(run_id)
