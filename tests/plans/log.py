"""A workflow's log kept by hand: what storage and workers do for it, without either."""

from datetime import UTC, datetime

from celeriac.codec import JsonValue, stored_form
from celeriac.plan.runner import PlanRunner
from celeriac.workflows.entry import Asked, Entry, Turn
from celeriac.workflows.flow import Flow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Log:
    """Of one run; each turn is made by a live flow and by one that begins at the start."""

    def __init__(self, runner: PlanRunner, plan: JsonValue, entries: list[Entry] | None = None):
        self._runner = runner
        self._plan = stored_form(plan)
        self.entries = {entry.asked.number: entry for entry in entries or []}
        self.told = 0
        self.wakes = 0
        self._flow = Flow(runner, self._plan, NOW, run_id="r1")
        self.turn = self._advanced()

    @property
    def open(self) -> dict[str, Asked]:
        """What was asked for and goes on, by label."""
        return {
            str(entry.asked.label): entry.asked
            for entry in self.entries.values()
            if entry.told is None and not entry.asked.kind.is_answered_at_once
        }

    def end(self, label: str, result: JsonValue = None, error: str | None = None) -> None:
        asked = self.open[label]
        failure: dict[str, JsonValue] | None = (
            None if error is None else {"kind": "failed", "message": error}
        )
        self.entries[asked.number] = Entry(asked, self.told, result, failure)
        self.told += 1
        group = self.turn.groups.get(asked.number)
        if group is None:
            return
        together = [number for number, its in self.turn.groups.items() if its == group]
        if all(self.entries[number].told is not None for number in together):
            self.wakes += 1
            self.turn = self._advanced()

    def _advanced(self) -> Turn:
        turn = self._flow.advance([*self.entries.values()])
        # Whoever takes the run in another process comes to the same.
        cold = Flow(self._runner, self._plan, NOW, run_id="r1").advance([*self.entries.values()])
        assert (cold.asked, cold.groups, cold.end) == (turn.asked, turn.groups, turn.end)
        for asked in turn.asked:
            self.entries[asked.number] = Entry(asked)
        self._flow.committed()
        return turn
