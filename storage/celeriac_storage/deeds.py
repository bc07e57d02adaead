"""What a run's calls have left behind, read from its events and the attempts at its calls.

Both are only ever added to, and everything that adds to them while the run is claimed counts the
run's requests up, so what is read here in the transaction of a step's commit is what the commit
finds. After the end nothing follows: whoever asks again, however late, gets the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from celeriac.evidence import Changes, CommandRun, Deed
from celeriac.ids import CallId, RunId
from celeriac.states import EffectKind, EffectState

_BEGUN = ("effect.in_flight", "call.requested")
_UNCERTAIN = (EffectState.UNKNOWN, EffectState.KNOWN_BAD, EffectState.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class History:
    """What the run has to show, and how often its model was told that something is missing."""

    deeds: Sequence[Deed]
    corrections: int


def load(connection: Connection, run_id: RunId) -> History:
    """The run's history so far. To that of a retry belongs what was done, up to where it goes on,
    by the run that it tries again; a fork, which has a thread of its own, begins with none."""
    links = connection.exec_driver_sql(
        """
        WITH RECURSIVE link AS (
            SELECT run_id, thread_id, forked_from, forked_step, NULL::integer AS until, 1 AS number
            FROM celeriac.runs WHERE run_id = %s
            UNION ALL
            SELECT origin.run_id, origin.thread_id, origin.forked_from, origin.forked_step,
                link.forked_step, number + 1
            FROM link JOIN celeriac.runs AS origin
                ON (origin.run_id, origin.thread_id) = (link.forked_from, link.thread_id)
        )
        SELECT run_id, until FROM link ORDER BY number DESC
        """,
        (run_id,),
    ).all()
    deeds: list[Deed] = []
    corrections = passed = 0
    for of_run, until in links:
        found, corrections, last = _load(connection, RunId(of_run), until)
        # Their numbers say which came first, so those of a later run go on counting.
        deeds += [
            replace(deed, begun=deed.begun + passed, ended=deed.ended + passed) for deed in found
        ]
        passed += last
    return History(deeds, corrections)


def _load(connection: Connection, run_id: RunId, until: int | None) -> tuple[list[Deed], int, int]:
    """The deeds of the run, or of its steps before `until`; how often its model was told that
    something is missing; and the number of the last event about them."""
    seen: dict[str, _Seen] = {}
    seq = 0
    corrections = 0
    for seq, type_, call_id, state in connection.exec_driver_sql(
        """
        SELECT seq, type, data ->> 'call_id', data ->> 'state' FROM celeriac.events
        WHERE run_id = %s
            AND (type LIKE 'effect.%%' OR type IN ('call.requested', 'contract.refused'))
        ORDER BY seq
        """,
        (run_id,),
    ):
        if call_id is None:
            corrections += 1
        else:
            seen.setdefault(call_id, _Seen()).add(seq, type_, state)
    rows = connection.exec_driver_sql(
        """
        SELECT call_id, tool, kind, coalesce(flags ? 'elsewhere', false),
            coalesce(flags ? 'mutates_workspace', false), coalesce(flags ? 'verifies', false),
            ARRAY(
                SELECT DISTINCT ON (attempt) evidence -> 'changes'
                FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                    AND evidence ? 'changes'
                ORDER BY attempt, entry DESC
            ), (
                SELECT evidence -> 'command' FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                    AND evidence ? 'command'
                ORDER BY attempt DESC, entry DESC LIMIT 1
            ), EXISTS (
                SELECT FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id) = (effect.run_id, effect.call_id)
                    AND evidence ?| ARRAY['verified', 'receipt']
            )
        FROM celeriac.effects AS effect
        WHERE run_id = %(run_id)s AND step < coalesce(%(until)s::int, step + 1)
            AND kind <> 'none' AND rolls_back IS NULL
        ORDER BY step, call_index
        """,
        {"run_id": run_id, "until": until},
    )
    deeds = [_deed(seen[row[0]], row) for row in rows if row[0] in seen]
    return [deed for deed in deeds if deed is not None], corrections, seq


@dataclass(slots=True)
class _Seen:
    """What the events say of one call."""

    begun: int = 0
    ended: int = 0
    state: EffectState | None = None
    was_unknown: bool = False

    def add(self, seq: int, type_: str, state: str | None) -> None:
        if type_ in _BEGUN:
            self.begun = seq
            return
        if type_ == "effect.reported":  # nothing is decided by that yet
            return
        name = type_.removeprefix("effect.")
        self.state = EffectState(state if name == "resolved" and state is not None else name)
        self.ended = seq
        self.was_unknown = self.was_unknown or self.state is EffectState.UNKNOWN


def _deed(seen: _Seen, row: Any) -> Deed | None:
    """None for a call that has changed nothing and says nothing."""
    call_id, tool, kind, is_elsewhere, mutates, verifies, told, command, is_attested = row
    is_done, has_failed = seen.state is EffectState.COMMITTED, seen.state is EffectState.FAILED
    if not (is_done or seen.state in _UNCERTAIN or (has_failed and (told or verifies))):
        return None
    is_transactional = EffectKind(kind) is EffectKind.TRANSACTIONAL
    # Of files that a worker changes itself, its own look at them is no second one.
    is_observed = is_transactional or (is_attested and (is_elsewhere or not mutates))
    # Where somebody else has changed the files, nobody has said what.
    has_drifted = is_elsewhere and mutates and seen.was_unknown
    return Deed(
        CallId(call_id),
        tool,
        begun=seen.begun or seen.ended,
        ended=seen.ended,
        is_done=is_done,
        mutates_workspace=mutates,
        verifies=verifies,
        is_observed=is_observed,
        changes=[Changes.from_json(each) for each in told],
        is_told=not mutates or ((bool(told) or has_failed) and not has_drifted),
        command=None if command is None or not is_done else CommandRun.from_json(command),
    )
