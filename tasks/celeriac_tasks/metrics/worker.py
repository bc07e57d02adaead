"""What a worker process counts of itself. Labels are names from the code of its agents."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

STEP_SECONDS = Histogram(
    "celeriac_step_seconds",
    "From a step's claim to its commit",
    ["agent", "kind"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
STEPS_LOST = Counter(
    "celeriac_steps_lost",
    "Claimed steps that were not committed here: fenced, no database, or an error of ours",
    ["why"],
    registry=REGISTRY,
)
for _why in ("fenced", "database", "error"):
    STEPS_LOST.labels(_why)  # from zero on: of a figure that begins with 1, no rate is known
MODEL_CALL_SECONDS = Histogram(
    "celeriac_model_call_seconds",
    "One request to a model",
    ["agent", "outcome"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
MODEL_TOKENS = Counter(
    "celeriac_model_tokens", "Tokens that models counted", ["agent", "direction"], registry=REGISTRY
)
TOOL_CALL_SECONDS = Histogram(
    "celeriac_tool_call_seconds",
    "One call of a tool's function",
    ["tool", "outcome"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
STEPS_HELD = Gauge(
    "celeriac_steps_held", "Steps that are claimed or about to be, most waiting", registry=REGISTRY
)
SLOTS = Gauge("celeriac_slots", "How many steps can be held at once", registry=REGISTRY)
