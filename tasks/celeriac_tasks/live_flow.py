"""A workflow's code in memory, where it waits; and what this process knows of its log."""

import threading
from collections import OrderedDict

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.workflows.definition import Workflow
from celeriac.workflows.entry import Entry, EntryKind, Turn
from celeriac.workflows.flow import Flow
from celeriac_storage import entries, history
from celeriac_storage.claims import Claim

CACHED_FLOWS = 256
"""Workflows whose code one process keeps in memory; one more costs a run a replay, nothing else."""


class LiveFlow:
    """The code of one generation of a run, and how much of its log it knows."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._flow: Flow | None = None
        self._known_entries = 0
        self._known_ends = 0
        self._step: int | None = None  # the turn that it takes next, if no other process does
        self._groups: dict[int, int] = {}  # of entries that have not ended, as the rows say
        self._events: set[int] = set()  # entries that wait for an event

    def __del__(self) -> None:
        if self._flow is not None:
            self._flow.close()

    def entries_with(self, turn: Turn) -> int:
        """How many entries the log has once the turn is in it. In that of a retry, the turn may
        fill holes."""
        return max([self._known_entries, *(each.number + 1 for each in turn.asked)])

    @property
    def known_ends(self) -> int:
        return self._known_ends

    def catch_up(
        self, connection: Connection, workflow: Workflow[object], claim: Claim
    ) -> list[Entry]:
        """Read what the log has and the code was not told of; of a fresh flow, its input too."""
        if self._flow is None:
            value = history.load_input(connection, claim.run_id)
            self._flow = Flow(workflow, value, claim.step_started_at, run_id=claim.run_id)
        if claim.step != self._step:
            # A turn that another process took may have changed what old entries are waited for.
            self._groups = entries.load_groups(connection, claim)
            self._step = claim.step
        logged = entries.load(
            connection, claim, from_number=self._known_entries, from_told=self._known_ends
        )
        for entry in logged:
            number = entry.asked.number
            self._known_entries = max(self._known_entries, number + 1)
            if entry.asked.kind is EntryKind.EVENT:
                self._events.add(number)
            if entry.told is not None:
                self._known_ends = max(self._known_ends, entry.told + 1)
                self._groups.pop(number, None)
        return logged

    def advance(self, new: list[Entry], claim: Claim) -> Turn:
        """Go on until all of the code waits. Raises `StaleFlow`."""
        assert self._flow is not None, "it has caught up"
        return self._flow.advance(new, claim.step_started_at)

    def regrouped(self, turn: Turn) -> dict[int, int | None]:
        """The entries of earlier turns that the code waits for with others than the rows say."""
        asked = {each.number for each in turn.asked}
        before = self._groups
        left: dict[int, int | None] = {
            number: None for number in before if number not in turn.groups
        }
        return left | {
            number: group
            for number, group in turn.groups.items()
            if number not in asked and before.get(number) != group
        }

    def awaits_events(self, turn: Turn) -> bool:
        """Whether the code waits for something that it may have been told already."""
        asked = {each.number for each in turn.asked if each.kind is EntryKind.EVENT}
        return any(number in self._events or number in asked for number in turn.groups)

    def committed(self, turn: Turn, next_step: int) -> None:
        """The turn is in the log."""
        assert self._flow is not None
        self._flow.committed()
        self._known_entries = self.entries_with(turn)
        self._events |= {each.number for each in turn.asked if each.kind is EntryKind.EVENT}
        self._groups = dict(turn.groups)
        self._step = next_step


class FlowCache:
    """The flows of the runs whose turns this process took last.

    `take` removes what it returns, and only a turn that was committed is put back: so the database
    decides, and a cached flow only ever lacks the newest entries and ends.
    """

    def __init__(self, capacity: int = CACHED_FLOWS) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._flows: OrderedDict[RunId, LiveFlow] = OrderedDict()

    def take(self, claim: Claim) -> LiveFlow:
        with self._lock:
            flow = self._flows.pop(claim.run_id, None)
        if flow is None or flow.generation != claim.generation:
            return LiveFlow(claim.generation)
        return flow

    def put(self, run_id: RunId, flow: LiveFlow) -> None:
        oldest: tuple[RunId, LiveFlow] | None = None  # let go outside of the lock
        with self._lock:
            self._flows[run_id] = flow
            if len(self._flows) > self._capacity:
                oldest = self._flows.popitem(last=False)
        del oldest
