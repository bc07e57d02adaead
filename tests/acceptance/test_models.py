"""A run does not care which kind of model goes on with it."""

from tests.acceptance.agents import ANSWER, PROVIDER
from tests.acceptance.terminal import Terminal
from tests.provider_server import ProviderServer, Reply


# features: 003-01
def test_a_run_is_finished_by_another_kind_of_model_than_began_it(terminal: Terminal) -> None:
    (scripted,) = terminal.open(workers=1, test_points="think.before_model_call@2=kill")
    run_id = terminal.begin("exchangeable", "Ask.")
    terminal.wait_for_death(scripted)

    with ProviderServer([Reply.text("said by another")]) as provider:
        terminal.processes.environment[PROVIDER] = provider.url
        terminal.start_worker()
        run = terminal.completed(run_id)

    assert run["result"] == "said by another"
    (request,) = provider.requests
    asked, called, told = request["messages"]
    assert asked == {"role": "user", "content": "Ask."}
    assert called["tool_calls"][0]["id"] == told["tool_call_id"]
    assert (told["role"], told["content"]) == ("tool", ANSWER)
    assert [name for (name,) in terminal.query("SELECT model FROM celeriac.model_calls")] == [
        "scripted",
        "other",
    ]
    terminal.assert_sound()
