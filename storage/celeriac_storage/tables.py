"""The tables as SQLAlchemy Core sees them; a test compares them with what migrations make."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    Identity,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA = "celeriac"
metadata = MetaData(schema=SCHEMA)
_TIME = DateTime(timezone=True)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("created_at", _TIME, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("created_at", _TIME, nullable=False),
)

threads = Table(
    "threads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("next_position", Integer, nullable=False),
    Column("created_at", _TIME, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("agent", Text, primary_key=True),
    Column("agent_hash", Text, primary_key=True),
    Column("definition", JSONB, nullable=False),
    Column("registered_at", _TIME, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("pool", Text, nullable=False),
    Column("agents", ARRAY(Text), nullable=False),
    Column("queues", ARRAY(Text), nullable=False),
    Column("lifeline_key", BigInteger),
    Column("lifeline_since", _TIME),
    Column("started_at", _TIME, nullable=False),
    Column("renewed_at", _TIME, nullable=False),
    Column("lease_until", _TIME, nullable=False),
    Column("stopped_at", _TIME),
    Column("dead_at", _TIME),
    Column("verdict", Text),
)

leaders = Table(
    "leaders",
    metadata,
    Column("role", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("held_until", _TIME, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("thread_id", Text, nullable=False),
    Column("thread_position", Integer),
    Column("root_run_id", Text, nullable=False),
    Column("parent_run_id", Text),
    Column("forked_from", Text),
    Column("forked_step", Integer),
    Column("kind", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("agent_hash", Text),
    Column("tools_hash", Text),
    Column("prompt_hash", Text),
    Column("status", Text, nullable=False),
    Column("phase", Text),
    Column("resume_phase", Text),
    Column("outcome", Text),
    Column("step", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("claim_token", Uuid),
    Column("worker_id", Text),
    Column("step_started_at", _TIME),
    Column("step_deadline", _TIME),
    Column("wake_at", _TIME),
    Column("queue", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("published_at", _TIME),
    Column("publish_count", Integer, nullable=False),
    Column("deaths", Integer, nullable=False),
    Column("strikes", Integer, nullable=False),
    Column("failed_thinks", Integer, nullable=False),
    Column("request_version", Integer, nullable=False),
    Column("cancel_requested_at", _TIME),
    Column("interrupt_requested_at", _TIME),
    Column("start_key", Text),
    Column("input", JSONB(none_as_null=True)),
    Column("result", JSONB(none_as_null=True)),
    Column("error", JSONB(none_as_null=True)),
    Column("erased_at", _TIME),
    Column("key_id", Text),
    Column("limits", JSONB, nullable=False),
    Column("tool_calls_used", Integer, nullable=False),
    Column("input_tokens_used", BigInteger, nullable=False),
    Column("output_tokens_used", BigInteger, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("last_event_seq", Integer, nullable=False),
    Column("pruned_to_seq", Integer, nullable=False),
    Column("created_at", _TIME, nullable=False),
    Column("started_at", _TIME),
    Column("finished_at", _TIME),
    Column("paused_at", _TIME),
    Column("waited", Interval, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", JSONB, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("schema_version", SmallInteger, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("started_at", _TIME, nullable=False),
    Column("committed_at", _TIME, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("role", Text, nullable=False),
    Column("body", JSONB),
    Column("hash", LargeBinary, nullable=False),
    Column("erased_at", _TIME),
    Column("key_id", Text),
)

inbox = Table(
    "inbox",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("inbox_id", BigInteger, Identity(always=True), primary_key=True),
    Column("author", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    Column("sent_at", _TIME, nullable=False),
    Column("drained_step", Integer),
)

events = Table(
    "events",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("type", Text, nullable=False),
    Column("at", _TIME, nullable=False),
    Column("data", JSONB, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("media_type", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("created_at", _TIME, nullable=False),
)

effects = Table(
    "effects",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("call_id", Text, primary_key=True),
    Column("step", Integer, nullable=False),
    Column("call_index", SmallInteger, nullable=False),
    Column("provider_call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("flags", JSONB),
    Column("requirement", JSONB),
    Column("arguments", JSONB),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("version", SmallInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", SmallInteger, nullable=False),
    Column("token", Uuid),
    Column("result", JSONB(none_as_null=True)),
    Column("result_hash", LargeBinary),
    Column("result_artifact", LargeBinary),
    Column("error", JSONB(none_as_null=True)),
    Column("rolls_back", Text),
    Column("planned_at", _TIME, nullable=False),
    Column("settled_at", _TIME),
    Column("erased_at", _TIME),
    Column("key_id", Text),
)

effect_attempts = Table(
    "effect_attempts",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("call_id", Text, primary_key=True),
    Column("attempt", SmallInteger, primary_key=True, autoincrement=False),
    Column("entry", SmallInteger, primary_key=True, autoincrement=False),
    Column("token", Uuid),
    Column("worker_id", Text),
    Column("outcome", Text, nullable=False),
    Column("evidence", JSONB),
    Column("approval_id", Text),
    Column("approval_version", SmallInteger),
    Column("deadline_at", _TIME),
    Column("at", _TIME, nullable=False),
)

model_calls = Table(
    "model_calls",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("attempt", SmallInteger, primary_key=True, autoincrement=False),
    Column("model", Text, nullable=False),
    Column("message_count", Integer, nullable=False),
    Column("selection", JSONB),
    Column("prompt_hash", Text),
    Column("tools_hash", Text),
    Column("outcome", Text, nullable=False),
    Column("error", JSONB),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("usage", JSONB),
    Column("cost", Numeric),
    Column("started_at", _TIME, nullable=False),
    Column("finished_at", _TIME, nullable=False),
)
