"""The histories of many runs for many readers: one look for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from celeriac.ids import RunId
from celeriac.reports import Event
from celeriac.states import RunStatus
from celeriac_storage.reading import Position
from celeriac_storage.requests import unknown_run
from celeriac_storage.tenancy import TenantDatabase


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a run's events, and where the run stood at that moment."""

    events: list[Event]
    position: Position

    @property
    def is_last(self) -> bool:
        """Whether the run has ended, and nothing comes after these events."""
        # With no events at all, those that there were are pruned.
        is_whole = not self.events or self.events[-1].seq == self.position.last_event_seq
        return self.position.status.is_terminal and is_whole


def read_page(tenants: TenantDatabase, run_id: RunId, after: int, limit: int) -> Page:
    """The run's next events after `after`, at most `limit`. Raises `UnknownRun`."""
    # One statement, so one moment: a run must not look ended beside events that lack its end.
    rows = tenants.fetch(
        """
        SELECT status, step, epoch, last_event_seq, event.seq, event.type, event.at, event.data
        FROM celeriac.runs AS run
        LEFT JOIN LATERAL (
            SELECT seq, type, at, data FROM celeriac.events
            WHERE events.run_id = run.run_id AND seq > %s
            ORDER BY seq LIMIT %s
        ) AS event ON true
        WHERE run.run_id = %s ORDER BY event.seq
        """,
        (after, limit, run_id),
    )
    if not rows:
        raise unknown_run(run_id)
    status, step, epoch, last_event_seq = rows[0][:4]
    return Page(
        [Event(run_id, *row[4:]) for row in rows if row[4] is not None],
        Position(RunStatus(status), step, epoch, last_event_seq),
    )


def read_news(tenants: TenantDatabase, heads: Mapping[RunId, int], limit: int) -> list[Event]:
    """The next events of each run after the `seq` that is given for it, at most `limit` of a run;
    in the order of the runs' ids, and of `seq`. A run without news costs a look at its row.
    """
    rows = tenants.fetch(
        """
        SELECT run_id, event.seq, event.type, event.at, event.data
        FROM unnest(%(run_ids)s::text[], %(heads)s::integer[]) AS known (run_id, head)
        JOIN celeriac.runs AS run USING (run_id)
        CROSS JOIN LATERAL (
            SELECT seq, type, at, data FROM celeriac.events
            WHERE events.run_id = run.run_id AND seq > head
            ORDER BY seq LIMIT %(limit)s
        ) AS event
        WHERE last_event_seq > head
        ORDER BY run_id, event.seq
        """,
        {"run_ids": list(heads), "heads": list(heads.values()), "limit": limit},
    )
    return [Event(RunId(run_id), seq, type_, at, data) for run_id, seq, type_, at, data in rows]
