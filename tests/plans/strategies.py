"""Random plans, and ways to run them without a worker."""

from collections.abc import Callable

from hypothesis import strategies as st

from celeriac.codec import JsonValue
from celeriac.plan import CheckpointInterval, OnFailure, Plan, PlanStep, result_of
from celeriac.plan.progress import Progress

MAX_STEPS = 8


@st.composite
def plans(
    draw: st.DrawFn,
    *,
    on_failure: st.SearchStrategy[OnFailure] = st.just("fail"),  # noqa: B008 - immutable
) -> Plan:
    """A graph without cycles, its steps in any order, with references to some of what they need."""
    count = draw(st.integers(1, MAX_STEPS))
    steps: list[PlanStep] = []
    for number in range(count):
        earlier = [step.id for step in steps]
        needs = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        arguments: dict[str, JsonValue] = {"number": number}
        if needs:
            arguments["of"] = [result_of(need) for need in draw(st.sets(st.sampled_from(needs)))]
        steps.append(
            PlanStep(
                f"s{number}",
                tool="work",
                arguments=arguments,
                needs=needs,
                on_failure=draw(on_failure),
            )
        )
    interval: CheckpointInterval = draw(st.sampled_from(["per_step", "per_layer"]))
    return Plan(draw(st.permutations(steps)), checkpoint_interval=interval)


def played(
    plan: Plan,
    choose: Callable[[list[str]], str],
    fails: Callable[[str], bool] = lambda _: False,
    progress: Progress | None = None,
) -> tuple[Progress, list[list[str]]]:
    """The progress at the end, and which steps were started together; `choose` says which of those
    that run ends next."""
    progress = progress or Progress(plan)
    started: list[list[str]] = []
    while not progress.is_over:
        if due := [step.id for step in progress.due()]:
            started.append(due)
        running = [step.id for step in plan.steps if progress.states[step.id] == "running"]
        if not running:
            continue
        ended = choose(running)
        if fails(ended):
            progress.failed(ended, {"kind": "failed", "message": f"{ended} has failed"})
        else:
            progress.completed(ended, f"result of {ended}")
    return progress, started
