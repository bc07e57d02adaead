"""The order in which steps that need one another can be taken, and what is wrong with a plan that
has none."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidInput
from celeriac.plan.references import references

if TYPE_CHECKING:
    from celeriac.plan.plan import PlanStep

Needs = Mapping[str, Sequence[str]]
"""Of each step, which others must have completed before it can start."""


def problems(steps: Sequence["PlanStep"], output: JsonValue) -> Iterator[str]:
    """What contradicts itself; nothing if the steps are a graph without cycles, and refer only to
    what is known by then."""
    seen: set[str] = set()
    for step in steps:
        if step.id in seen:
            yield f"two steps have the id {step.id}"
        seen.add(step.id)
    unknown = {need for step in steps for need in step.needs} - seen
    for step in steps:
        for need in step.needs:
            if need in unknown:
                yield f"step {step.id} needs {need}, which is no step of the plan"
        if len({*step.needs}) < len(step.needs):
            yield f"step {step.id} names the same step twice among its needs"
    needs = {step.id: [need for need in step.needs if need in seen] for step in steps}
    if cycle := cycle_of(needs):
        yield f"these steps wait for one another: {' → '.join(cycle)} (each needs the next)"
        return
    before = ancestors(needs)
    for step in steps:
        yield from _wrong_references(f"step {step.id}", step.arguments, before[step.id], seen)
    yield from _wrong_references("the output", output, seen, seen)


def _wrong_references(
    whose: str, template: JsonValue, known: set[str], steps: set[str]
) -> Iterator[str]:
    try:
        referred = {reference.step for _, reference in references(template)}
    except InvalidInput as error:
        yield f"{whose}: {error}"
        return
    for step in sorted(referred - known):
        if step in steps:
            yield (
                f"{whose} refers to the result of {step}, but does not come after it: put {step} "
                "among its needs"
            )
        else:
            yield f"{whose} refers to the result of {step}, which is no step of the plan"


def order(needs: Needs) -> list[str]:
    """The steps, each after those that it needs; else as they were given. Those that wait for one
    another, and what needs them, are left out."""
    waiting = {step: len(set(of_step)) for step, of_step in needs.items()}
    dependents = dependents_of(needs)
    ready = [step for step in needs if not waiting[step]]
    for step in ready:  # grows meanwhile
        for dependent in dependents[step]:
            waiting[dependent] -= 1
            if not waiting[dependent]:
                ready.append(dependent)
    return ready


def dependents_of(needs: Needs) -> dict[str, list[str]]:
    """Of each step, those that need it directly."""
    dependents: dict[str, list[str]] = {step: [] for step in needs}
    for step, of_step in needs.items():
        for need in set(of_step):
            dependents[need].append(step)
    return dependents


def cycle_of(needs: Needs) -> list[str]:
    """Steps that wait for one another, each followed by one it needs, the first again at the end;
    empty if there are none."""
    stuck = needs.keys() - set(order(needs))
    if not stuck:
        return []
    # What is stuck needs something that is stuck, so whoever follows that must come round.
    path = [next(step for step in needs if step in stuck)]
    while True:
        following = next(need for need in needs[path[-1]] if need in stuck)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


def layers(needs: Needs) -> list[list[str]]:
    """The steps by layer: the first need nothing; the others need only steps of earlier layers, and
    at least one of the layer right before."""
    layer: dict[str, int] = {}
    for step in order(needs):
        layer[step] = 1 + max((layer[need] for need in needs[step]), default=-1)
    found: list[list[str]] = [[] for _ in range(1 + max(layer.values(), default=-1))]
    for step in needs:
        found[layer[step]].append(step)
    return found


def ancestors(needs: Needs) -> dict[str, set[str]]:
    """Of each step, all that must have completed before it can start."""
    found: dict[str, set[str]] = {}
    for step in order(needs):
        found[step] = {*needs[step]}.union(*(found[need] for need in needs[step]))
    return found


def identities(steps: Sequence["PlanStep"]) -> dict[str, str]:
    """Of each step, a SHA-256 in hex of what it does and of all that it depends on.

    Two versions of a plan have the same step only if that is the same: then its result still
    stands. How often it is tried, and what its failure means, is no part of it.
    """
    by_id = {step.id: step for step in steps}
    found: dict[str, str] = {}
    for step_id in order({step.id: step.needs for step in steps}):
        step = by_id[step_id]
        does: dict[str, JsonValue] = {
            "id": step.id,
            "tool": step.tool,
            "agent": step.agent,
            "question": step.question,
            "arguments": step.arguments,
            "needs": {need: found[need] for need in step.needs},
        }
        found[step_id] = hashlib.sha256(dumps(does).encode()).hexdigest()
    return found
