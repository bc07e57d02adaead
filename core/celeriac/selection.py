"""Which messages of a conversation a model is sent, when not all of them fit.

A pure function of the messages and the limit, so that whoever computes it again comes to the same.
The order of worth: what must be there (the newest exchange, and the latest thing that the user
said), what opened the run, and then from the newest message back for as long as there is room.

A call and its results are one exchange and go together, with all other calls of the same response:
providers refuse a call without its result and a result without its call. Nothing is reordered, and
what is sent begins with something that a user said, as it did before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from celeriac.codec import JsonValue, dumps
from celeriac.errors import CeleriacError
from celeriac.ids import RunId
from celeriac.messages import opens_run
from celeriac.token_count import BYTES_PER_TOKEN, message_tokens, text_tokens

CUT_NOTE = "\n[cut here: {shown} of {whole} characters are shown]"
_NOTE_TOKENS = text_tokens(CUT_NOTE.format(shown=10**9, whole=10**9))


class ContextTooLong(CeleriacError):
    """What must be sent does not fit, even with its tool results cut."""


@dataclass(frozen=True, slots=True)
class Place:
    """A message of a conversation, and where it stands."""

    run_id: RunId
    position: int
    message: ModelMessage
    tokens: int
    follows: bool = True  # directly the one before it in the list; of the first: nothing is before

    @property
    def is_prompt(self) -> bool:
        """Whether a user said it."""
        return isinstance(self.message, ModelRequest) and any(
            isinstance(part, UserPromptPart) for part in self.message.parts
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """A tool's result of which the model is shown the beginning."""

    run_id: RunId
    position: int
    part: int
    characters: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What is sent, in order, and the results that are cut in it."""

    places: Sequence[Place]
    cuts: Sequence[Cut]
    tokens: int
    is_everything: bool

    @property
    def messages(self) -> list[ModelMessage]:
        return apply_cuts(self.places, self.cuts)


def select(places: Sequence[Place], room: int) -> Selection:
    """The messages that fit into `room` tokens. `places` is the end of a conversation, or all of
    it, at least as much as may fit, with the prompts that stay.

    Raises `ContextTooLong`, which says by how much.
    """
    total = sum(place.tokens for place in places)
    if total <= room and all(place.follows for place in places):
        return Selection(places, (), total, is_everything=True)
    exchanges = _exchanges(places)
    kept = {len(exchanges) - 1}
    kept |= _last(exchanges, lambda place: place.is_prompt)
    cuts: Sequence[Cut] = ()
    used = _tokens(exchanges, kept)
    saved = 0
    if used > room:
        cuts = _fitting_cuts(exchanges[-1], used, room)
        saved = _tokens(exchanges, {len(exchanges) - 1}) - _after_cuts(exchanges[-1], cuts)
        used -= saved
    opening = _last(exchanges, lambda place: opens_run(place.message)) - kept
    for number in opening:
        if used + _tokens(exchanges, {number}) <= room:
            kept.add(number)
            used += _tokens(exchanges, {number})
    first = _filled_from(exchanges, kept, room - used)
    first = _begin_with_prompt(exchanges, kept, first)
    kept |= set(range(first, len(exchanges)))
    chosen = [place for number in sorted(kept) for place in exchanges[number]]
    return Selection(
        chosen, cuts, sum(place.tokens for place in chosen) - saved, is_everything=False
    )


def to_record(selection: Selection, room: int, own_run: RunId) -> dict[str, JsonValue]:
    """What is kept of it: the messages that were sent by run and position, those of the same runs
    that were not, and why. Earlier runs of the thread that are not named were not sent either."""
    included = _ranges([(place.run_id, place.position) for place in selection.places])
    dropped: list[JsonValue] = []
    expected: dict[str, int] = {}
    for each in included:
        run, begin, end = str(each["run"]), _int(each["from"]), _int(each["to"])
        if begin > expected.get(run, 0):
            gap: dict[str, JsonValue] = {"run": run, "from": expected.get(run, 0), "to": begin - 1}
            dropped.append({**gap, "why": "over_budget"})
        expected[run] = end + 1
    record: dict[str, JsonValue] = {
        "tokens": selection.tokens,
        "room": room,
        "counted_by": "estimate",
        "included": [*included],
        "dropped": dropped,
    }
    if selection.places[0].run_id == own_run or not selection.places[0].follows:
        record["earlier_runs"] = "over_budget"
    if selection.cuts:
        record["cut"] = [
            {
                "run": cut.run_id,
                "position": cut.position,
                "part": cut.part,
                "characters": cut.characters,
            }
            for cut in selection.cuts
        ]
    return record


def ranges_of(record: dict[str, JsonValue]) -> list[tuple[RunId, int, int]]:
    """Run, first position and the one after the last, of what the record says was sent."""
    included: Any = record["included"]
    return [(RunId(each["run"]), each["from"], each["to"] + 1) for each in included]


def tokens_of(record: dict[str, JsonValue]) -> int:
    return _int(record["tokens"])


def cuts_of(record: dict[str, JsonValue]) -> list[Cut]:
    cut: Any = record.get("cut", [])
    return [
        Cut(RunId(each["run"]), each["position"], each["part"], each["characters"]) for each in cut
    ]


def apply_cuts(places: Sequence[Place], cuts: Sequence[Cut]) -> list[ModelMessage]:
    """The messages, with the results cut. Those that are in the log stay as they are."""
    if not cuts:
        return [place.message for place in places]
    wanted = {(cut.run_id, cut.position, cut.part): cut.characters for cut in cuts}
    messages: list[ModelMessage] = []
    for place in places:
        message = place.message
        if isinstance(message, ModelRequest):
            parts = [
                part
                if (length := wanted.get((place.run_id, place.position, number))) is None
                else _cut(part, length)
                for number, part in enumerate(message.parts)
            ]
            message = replace(message, parts=parts)
        messages.append(message)
    return messages


def _exchanges(places: Sequence[Place]) -> list[list[Place]]:
    """The places in groups that go together: a response with calls and all their results, or an
    unfinished turn and its rest; else one message each."""
    exchanges: list[list[Place]] = []
    unanswered: set[str] = set()
    is_unfinished = False
    for place in places:
        message = place.message
        if not place.follows:
            unanswered, is_unfinished = set(), False
        if exchanges and (unanswered or is_unfinished):
            exchanges[-1].append(place)
        else:
            exchanges.append([place])
        if isinstance(message, ModelResponse):
            is_unfinished = message.state == "suspended"
            unanswered |= {part.tool_call_id for part in message.tool_calls}
        else:
            is_unfinished = False
            unanswered -= _answered(message)
    return exchanges


def _answered(message: ModelRequest) -> set[str]:
    return {
        part.tool_call_id
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    }


def _is_torn(exchange: Sequence[Place]) -> bool:
    """Whether it has results whose calls are not here: they were before what was loaded."""
    calls: set[str] = set()
    for place in exchange:
        if isinstance(place.message, ModelResponse):
            calls |= {part.tool_call_id for part in place.message.tool_calls}
        elif _answered(place.message) - calls:
            return True
    return False


def _last(exchanges: Sequence[Sequence[Place]], is_wanted: Any) -> set[int]:
    """The number of the last exchange with such a message, if there is one."""
    for number in reversed(range(len(exchanges))):
        if any(is_wanted(place) for place in exchanges[number]):
            return {number}
    return set()


def _tokens(exchanges: Sequence[Sequence[Place]], numbers: set[int]) -> int:
    return sum(place.tokens for number in numbers for place in exchanges[number])


def _filled_from(exchanges: Sequence[Sequence[Place]], kept: set[int], room: int) -> int:
    """The first of the exchanges, from the last one back without a gap, that have room."""
    first = len(exchanges) - 1
    for number in reversed(range(len(exchanges) - 1)):
        if not exchanges[number + 1][0].follows or _is_torn(exchanges[number]):
            break
        if number not in kept:
            room -= _tokens(exchanges, {number})
            if room < 0:
                break
        first = number
    return first


def _begin_with_prompt(exchanges: Sequence[Sequence[Place]], kept: set[int], first: int) -> int:
    """`first`, or the next one at which something begins that a user said."""
    if any(number < first for number in kept):
        return first  # what stays is before it, and a prompt
    for number in range(first, len(exchanges)):
        if exchanges[number][0].is_prompt:
            return number
    return first  # nobody ever said anything


def _fitting_cuts(last: Sequence[Place], used: int, room: int) -> list[Cut]:
    """Cuts of the results in the newest exchange that save what is used beyond `room`: the longest
    ones lose most. Raises `ContextTooLong` if that is not enough."""
    results = [
        (place, number, text_tokens(_text(part)))
        for place in last
        for number, part in enumerate(place.message.parts)
        if isinstance(part, ToolReturnPart)
    ]
    left = room - (used - sum(tokens for *_, tokens in results))
    level = _level([tokens for *_, tokens in results], left)
    if level <= _NOTE_TOKENS:
        raise ContextTooLong(
            f"the call would need about {used} tokens, and {room} are left for messages; what the "
            "user said last, and the model's newest calls, cannot be left out. Allow more with "
            "Agent(context=ContextPolicy(max_tokens=...)), or send less"
        )
    cuts = []
    for place, number, tokens in results:
        if tokens > level:
            text = _text(place.message.parts[number])
            size = (level - _NOTE_TOKENS) * BYTES_PER_TOKEN
            cuts.append(Cut(place.run_id, place.position, number, _characters(text, size)))
    return cuts


def _level(sizes: Sequence[int], room: int) -> int:
    """The most that each may have so that all together have no more than `room`."""
    if sum(sizes) <= room:
        return max(sizes, default=0)
    for number, size in enumerate(ordered := sorted(sizes)):
        share = max(room, 0) // (len(ordered) - number)
        if size > share:
            return share
        room -= size
    return 0


def _after_cuts(exchange: Sequence[Place], cuts: Sequence[Cut]) -> int:
    return sum(message_tokens(message) for message in apply_cuts(exchange, cuts))


def _text(part: Any) -> str:
    content = part.content
    return content if isinstance(content, str) else dumps(content)


def _characters(text: str, size: int) -> int:
    """How many characters from the beginning have at most `size` bytes."""
    encoded = text.encode(errors="surrogatepass")[:size]
    return len(encoded.decode(errors="ignore"))


def _cut(part: Any, characters: int) -> Any:
    text = _text(part)
    note = CUT_NOTE.format(shown=characters, whole=len(text))
    return replace(part, content=text[:characters] + note)


def _ranges(places: Sequence[tuple[RunId, int]]) -> list[dict[str, JsonValue]]:
    ranges: list[dict[str, JsonValue]] = []
    begin = 0
    for number, (here, after) in enumerate(pairwise([*places, (RunId(""), -1)])):
        if after != (here[0], here[1] + 1):
            run, position = places[begin]
            ranges.append({"run": run, "from": position, "to": here[1]})
            begin = number + 1
    return ranges


def _int(value: JsonValue) -> int:
    assert isinstance(value, int)
    return value
