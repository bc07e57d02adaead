"""What a run starts from, and where it stands then."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from celeriac.codec import JsonValue
from celeriac.ids import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    DEFAULT_USER,
    CallId,
    RunId,
    TenantId,
    ThreadId,
    UserId,
)
from celeriac.states import Phase, RunKind, RunStatus

OnBusy = Literal["wait", "reject", "say"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The call that a run is the answer to."""

    run_id: RunId
    call_id: CallId
    history_until: int | None = None  # of a hand-off: it goes on from so many of its messages


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that another one is a fork of, and where it begins."""

    run_id: RunId
    step: int  # that it makes instead
    history_until: int  # it goes on from so many of its messages


@dataclass(frozen=True, slots=True)
class NewPlan:
    """What a run executes that is one of a plan."""

    body: JsonValue
    version: int = 1
    continues: RunId | None = None  # the run whose completed steps it keeps


@dataclass(frozen=True, slots=True)
class NewRun:
    """What a run starts from, checked already."""

    run_id: RunId
    agent: str
    input: JsonValue
    user_message: dict[str, JsonValue] | None  # the first message, in stored form; if it has any
    limits: dict[str, JsonValue]
    thread_id: ThreadId
    user_id: UserId = DEFAULT_USER
    tenant_id: TenantId = DEFAULT_TENANT
    queue: str = DEFAULT_QUEUE
    on_busy: OnBusy = "wait"
    word: dict[str, JsonValue] | None = None  # the same as said during a run: for on_busy="say"
    kind: RunKind = RunKind.AGENT
    rolls_back: RunId | None = None  # the run that a rollback undoes
    plan: NewPlan | None = None
    parent: Parent | None = None  # the thread is that of the parent, and it has no turn in it
    origin: Origin | None = None
    start_at: datetime | None = None  # it waits until then, and only then for its thread
    deadline_at: datetime | None = None
    deadline_seconds: float | None = None  # from when it may begin; the sooner of both counts
    start_key: str | None = None  # one of all runs of its tenant
    is_published: bool = False  # the caller publishes it right after the commit
    contract: dict[str, JsonValue] | None = None
    traceparent: str | None = None  # the trace that its steps belong to (`celeriac.traceparent`)
    by: UserId | None = None  # who says `word`, if not the user


@dataclass(frozen=True, slots=True)
class Started:
    """Where a run stands that was just created, or that was told the input instead."""

    status: RunStatus
    phase: Phase | None  # None: the run that was told has ended since
    said_to: RunId | None = None  # the run that was told the input; then no run was created
