"""What executes plans: one workflow, which has the tools, agents and the model that steps may use.

research = PlanRunner("research", tools=[search, compare], agents=[writer])
"""

from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, cast

from pydantic import AfterValidator

from celeriac.agent import Agent
from celeriac.approval import Approval
from celeriac.codec import JsonValue, dumps
from celeriac.errors import ActivityFailed, InvalidInput, InvalidPlan, PlanFailed
from celeriac.plan.log import KEPT, kept_name, refused_name
from celeriac.plan.means import TEXT, Mean, Means
from celeriac.plan.plan import Plan, PlanStep
from celeriac.plan.progress import Progress, StepState
from celeriac.results import result_schema
from celeriac.tools import Tool
from celeriac.workflows.context import WorkflowContext
from celeriac.workflows.definition import Workflow
from celeriac.workflows.promise import Promise

DEFAULT_NAME = "plans"
DESCRIPTION = (
    "Have a plan executed, each step after those that it needs, side by side where it can be."
)


class PlanRunner(Workflow[Any]):
    """A workflow whose input is a `Plan`, and which does what that says. Started as an agent is.

    `tools`, `agents` and `model` are what steps may use. A plan that asks for anything else, or
    with arguments that cannot fit, is refused before anything is written. All else is as of
    `@workflow`.
    """

    runs_plans: ClassVar = True

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        tools: Sequence[Tool[..., Any]] = (),
        agents: Sequence[Agent] = (),
        **options: Any,
    ) -> None:
        exclusive = {tool.name for tool in tools if tool.flags.exclusive}

        async def execute(ctx: WorkflowContext, plan: Plan) -> Any:
            """Do the steps of a plan, each after those that it needs."""
            return await _Execution(ctx, plan, exclusive).result()

        self.means: Final = Means(
            {tool.name: _mean_of_tool(tool) for tool in tools},
            {agent.name: _mean_of_agent(agent) for agent in agents},
            has_model="model" in options,
        )
        checked = Annotated[Plan, AfterValidator(self._checked)]
        execute.__annotations__ = {"ctx": WorkflowContext, "plan": checked, "return": Any}
        super().__init__(execute, name, tools, agents, **options)

    def validate_input(self, value: object) -> JsonValue:
        try:
            return super().validate_input(value)
        except InvalidInput as error:
            if isinstance(error.__cause__, InvalidPlan):  # it says of what it is
                raise error.__cause__ from None
            raise

    def _checked(self, plan: Plan) -> Plan:
        return self.means.check(plan)

    def begin(self, context: WorkflowContext, stored: JsonValue) -> Coroutine[Any, Any, Any]:
        # Without a look at the tools, which were looked at when it was started: a deploy may have
        # changed one that has been called for the last time.
        return self.function(context, Plan.from_json(stored))

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        approval: Approval | None = None,
    ) -> Tool[..., Any]:
        """A tool for a planning agent: it makes a plan, which is corrected until it can be
        executed, and is then told what came of it (docs/plans.md).

        The model is also told, after the `description`, what the steps may use.
        """
        made = super().as_tool(name, description or DESCRIPTION, approval=approval)
        return replace(made, description=f"{made.description}\n\n{self._catalogue()}")

    def _catalogue(self) -> str:
        """The tools and agents, each with what it takes, for a model that makes plans."""
        told = [
            f"tool {each.name}: {each.description} Its arguments: {dumps(each.parameters_schema)}"
            for each in self.tools
        ]
        for agent in self.agents:
            takes = "a text" if agent.input is None else dumps(agent.input.schema)
            told.append(f"agent {agent.name}: {agent.description} Its input: {takes}")
        if self.means.has_model:
            told.append("question: a model answers it with a text.")
        return "\n".join(["Its steps may be:", *(f"- {line}" for line in told)])

    def definition(self) -> dict[str, JsonValue]:
        return {**super().definition(), "plan": self.means.to_json()}


class _Execution:
    """One plan on its way: it asks `Progress` what is due, and the context for that."""

    def __init__(self, ctx: WorkflowContext, plan: Plan, exclusive: Collection[str]) -> None:
        self._ctx = ctx
        self._plan = plan
        self._progress = Progress(plan, exclusive)

    async def result(self) -> JsonValue:
        for step_id in cast("list[str]", self._ctx.value(KEPT, [])):
            result = self._ctx.value(kept_name(step_id), None, label=step_id)
            self._progress.keep(step_id, result)
        if self._plan.checkpoint_interval == "per_layer":
            await self._layer_by_layer()
        else:
            await self._go_on()
        if self._progress.is_failed:
            raise PlanFailed(_story(self._progress, self._ctx.run_id))
        return self._progress.output()

    async def _go_on(self) -> None:
        await self._ctx.gather(*[self._take(promise, step) for step, promise in self._due()])

    async def _take(self, promise: Promise[Any], step: PlanStep) -> None:
        """One step to its end, and all that is due with it."""
        with suppress(ActivityFailed):
            await promise
        self._end(step, promise)
        await self._go_on()

    async def _layer_by_layer(self) -> None:
        while due := self._due():
            # As one group: the run wakes when the last of them has ended.
            with suppress(ActivityFailed):
                await self._ctx.gather(*[promise for _, promise in due])
            for step, promise in due:
                self._end(step, promise)

    def _due(self) -> list[tuple[PlanStep, Promise[Any]]]:
        begun: list[tuple[PlanStep, Promise[Any]]] = []
        # Where none of them could begin, others may have waited for one that would run alone.
        while not begun and (due := self._progress.due()):
            for step in due:
                try:
                    begun.append((step, self._ask(step)))
                except InvalidInput as refused:
                    error: dict[str, JsonValue] = {"kind": "refused", "message": str(refused)}
                    self._ctx.value(refused_name(step.id), error, label=step.id)
                    self._progress.failed(step.id, error)
        return begun

    def _ask(self, step: PlanStep) -> Promise[Any]:
        arguments = self._progress.arguments(step.id)
        if step.tool is not None:
            given = arguments if isinstance(arguments, dict) else {}
            return self._ctx.tool(step.tool, given, retries=step.retries, output=Any, label=step.id)
        if step.agent is not None:
            return self._ctx.child(step.agent, arguments, output=Any, label=step.id)
        assert step.question is not None
        about = "" if arguments is None else f"\n\n{dumps(arguments)}"
        return self._ctx.model(step.question + about, label=step.id)

    def _end(self, step: PlanStep, promise: Promise[Any]) -> None:
        try:
            self._progress.completed(step.id, promise.result())
        except ActivityFailed as failed:
            self._progress.failed(step.id, failed.error)


def _story(progress: Progress, run_id: str) -> str:
    """What has failed, and what is left."""
    said = "; ".join(
        f"step {step_id} has failed: {error.get('message') or error.get('kind')}"
        for step_id, error in progress.errors.items()
    )
    left = progress.of_state(StepState.SKIPPED)
    done = len(progress.results)
    kept = "1 step that is" if done == 1 else f"{done} steps that are"
    return (
        f"{said}. "
        + (f"Not begun: {', '.join(left)}. " if left else "")
        + f"When the cause is mended, `celeriac plan retry {run_id}` does what is left, and keeps "
        f"the {kept} completed"
    )


def _mean_of_tool(tool: Tool[..., Any]) -> Mean:
    return Mean(tool.parameters.shape.exact_schema, result_schema(tool.function))


def _mean_of_agent(agent: Agent) -> Mean:
    takes = {} if agent.input is None else agent.input.exact_schema
    return Mean(takes, {} if isinstance(agent, Workflow) else TEXT)
