"""What a run's model was sent, made of the rows once more: nobody asks a model, a tool, or the code
of the agent.

It is read by what the step reads (`lookback`, `selection`, memories), so that the two cannot tell
different things. Two things may be gone: memories that were changed or forgotten since, of which no
older version is kept, and earlier runs of the thread that were erased. Then it says so.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.ids import RunId
from celeriac.messages import dump_message
from celeriac.replay import Attempt, Question, Replay, ShownMessage
from celeriac.selection import Place, apply_cuts, cuts_of, ranges_of
from celeriac.shapes import without_decimals
from celeriac_storage import memories, replays
from celeriac_storage.replays import Asker, RecordedCall
from celeriac_tasks.lookback import Log, load_end, load_places
from celeriac_tasks.memorizing import among


def replay(connection: Connection, run_id: RunId, step: int | None = None) -> Replay:
    """All that the run's model was sent, or at one step. Needs a transaction that has read nothing
    yet. Raises `UnknownRun`, `Conflict` if it was erased, and `InvalidInput` if the model was not
    asked at that step."""
    asker = replays.begin(connection, run_id)
    calls = replays.recorded_calls(connection, run_id, step)
    if step is not None and not calls:
        raise InvalidInput(
            f"run {run_id} has not asked its model at step {step}: `celeriac show {run_id}` lists "
            "its steps, and a model is asked at those of the kind think"
        )
    telling = _Telling(connection, asker)
    questions = [telling.question([*attempts]) for _, attempts in groupby(calls, _step)]
    prompts, tools = telling.prompts, telling.tools
    named = [(question.prompt_hash or "", question.tools_hash or "") for question in questions]
    return Replay(
        run_id,
        asker.agent,
        asker.status,
        asker.outcome,
        questions,
        telling.messages,
        {prompt: prompts[prompt] for prompt, _ in named if prompt in prompts},
        {each: [_as_shown(tool) for tool in tools[each]] for _, each in named if each in tools},
        replays.broken(connection, {each.run_id for each in telling.messages if each.run_id}),
    )


class _Telling:
    """The questions of one run; each message is kept once."""

    def __init__(self, connection: Connection, asker: Asker) -> None:
        self._connection = connection
        self._asker = asker
        self.prompts, self.tools = replays.definitions(connection, asker.agent)
        self.messages: list[ShownMessage] = []
        self._numbers: dict[tuple[RunId, int], int] = {}
        log = Log(asker.run_id, asker.message_count, asker.has_givers)
        self._conversation = load_end(connection, log, None)
        self._answers = {
            place.position: place.message
            for place in self._conversation
            if place.run_id == asker.run_id
        }

    def question(self, attempts: Sequence[RecordedCall]) -> Question:
        last = attempts[-1]
        missing = self._unregistered(last)
        numbers = self._shown(last, missing)
        answer = self._answers.get(last.message_count) if last.outcome == "answered" else None
        return Question(
            last.step,
            last.model,
            last.prompt_hash,
            last.tools_hash,
            _ranges(numbers),
            [
                Attempt(
                    each.attempt,
                    each.outcome,
                    each.error,
                    each.input_tokens,
                    each.output_tokens,
                    each.cost,
                    each.started_at,
                    each.finished_at,
                )
                for each in attempts
            ],
            None if answer is None else dump_message(answer),
            missing,
        )

    def _shown(self, call: RecordedCall, missing: list[str]) -> list[int]:
        """The numbers of the messages that were sent."""
        selection: dict[str, Any] = dict(call.selection or {})
        places = self._places(call, selection, missing)
        cuts = cuts_of(selection)
        sent = apply_cuts(places, cuts)
        is_cut = {(cut.run_id, cut.position) for cut in cuts}
        numbers = [
            self._number(place)
            if (place.run_id, place.position) not in is_cut
            else self._add(ShownMessage(place.run_id, place.position, dump_message(message)))
            for place, message in zip(places, sent, strict=True)
        ]
        if recalled := selection.get("memories", {}).get("included"):
            numbers = self._with_memories(sent, numbers, recalled, missing)
        return numbers

    def _places(
        self, call: RecordedCall, selection: dict[str, Any], missing: list[str]
    ) -> Sequence[Place]:
        if "included" not in selection:
            if self._asker.forgotten:
                missing.append(f"{self._asker.forgotten} earlier runs of the thread, erased since")
            return [
                place
                for place in self._conversation
                if place.run_id != self._asker.run_id or place.position < call.message_count
            ]
        ranges = ranges_of(selection)
        there = replays.readable(self._connection, {run_id for run_id, *_ in ranges})
        missing += [
            f"messages {begin} to {end - 1} of run {run_id}, erased since"
            for run_id, begin, end in ranges
            if run_id not in there
        ]
        kept = [each for each in ranges if each[0] in there]
        return load_places(self._connection, kept) if kept else []

    def _with_memories(
        self, sent: Sequence[Any], numbers: list[int], recalled: list[Any], missing: list[str]
    ) -> list[int]:
        asker = self._asker
        versions = [(each["namespace"], each["key"], each["version"]) for each in recalled]
        there = memories.still_there(self._connection, asker.tenant_id, asker.user_id, versions)
        missing += [
            f"memory {namespace}/{key} in its version {version}, changed or forgotten since"
            for namespace, key, version in versions
            if (namespace, key) not in there
        ]
        found = [there[each[:2]] for each in versions if each[:2] in there]
        if not found:
            return numbers
        place, block = among(sent, found)
        number = self._add(ShownMessage(None, None, dump_message(block)))
        return [*numbers[:place], number, *numbers[place:]]

    def _number(self, place: Place) -> int:
        key = (place.run_id, place.position)
        if key not in self._numbers:
            message = dump_message(place.message)
            self._numbers[key] = self._add(ShownMessage(*key, message))
        return self._numbers[key]

    def _add(self, message: ShownMessage) -> int:
        self.messages.append(message)
        return len(self.messages) - 1

    def _unregistered(self, call: RecordedCall) -> list[str]:
        named = (
            ("instructions", call.prompt_hash, call.prompt_hash in self.prompts),
            ("tools", call.tools_hash, call.tools_hash in self.tools),
        )
        return [
            f"the {what} with the hash {digest}, which no worker has registered here"
            for what, digest, is_there in named
            if not is_there
        ]


def _step(call: RecordedCall) -> int:
    return call.step


def _as_shown(tool: dict[str, Any]) -> JsonValue:
    """A registered tool as a model is told of it."""
    return {
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": without_decimals(tool["parameters_schema"]),
    }


def _ranges(numbers: Sequence[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] = number + 1
        else:
            ranges.append([number, number + 1])
    return ranges
