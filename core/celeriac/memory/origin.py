"""Where the content of a proposal comes from: looked up in what the run has seen, never asked.

A web page can make a model call a tool with any words it likes. It cannot put words into what the
user has said. So a proposal names those words, and they must be there; and what it would keep may
not be what only a tool's result says. That compares words: content that a model has put in other
words, or in another language, is not told from what the user meant.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.memory.candidate import Origin, Source, text_of
from celeriac.memory.words import is_said, plain, telling_words, words

_COPIED_WORDS = 3  # in a row
SAYS_NOTHING = frozenset(
    telling_words(
        "about also been customer does from have into like likes more need needs only over prefer "
        "preference prefers that their them they this user users want wants were what when where "
        "which will with would your"
    )
)
"""Words that stand in most memories, so that none of them tells one from another."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the user."""

    text: str
    position: int | None  # in the run; None: in an earlier run of the thread


@dataclass(frozen=True, slots=True)
class Returned:
    """What a tool has returned."""

    text: str
    call_id: CallId | None  # in the run; None: in an earlier run of the thread


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model has seen in a run and the thread before it, the oldest first."""

    said: Sequence[Said]
    returned: Sequence[Returned]


def find_source(
    seen: Seen, value: JsonValue, user_said: str, *, run_id: RunId, call_id: CallId
) -> Source:
    """Where `value` comes from, which is claimed to rest on the words `user_said`."""
    by_user = " ".join(each.text for each in seen.said)
    for result in reversed(seen.returned):
        if _is_copied(text_of(value), result.text, by_user):
            return Source(Origin.TOOL, run_id, call_id, source_call_id=result.call_id)
    message = find_words(seen, user_said)
    if message is None:
        return Source(Origin.MODEL, run_id, call_id)
    return Source(Origin.USER, run_id, call_id, message.position)


def find_words(seen: Seen, words_of_user: str) -> Said | None:
    """The run's latest message of the user with these words, to the letter but for punctuation."""
    quoted = plain(words_of_user)
    for message in reversed(seen.said):
        is_of_run = message.position is not None
        if is_of_run and quoted and f" {quoted} " in f" {plain(message.text)} ":
            return message
    return None


def _is_copied(value: str, result: str, by_user: str) -> bool:
    """Whether `value` says what `result` says and the user does not."""
    told = telling_words(value) - SAYS_NOTHING
    said = set(words(by_user))
    brought = {word for word in told & telling_words(result) if not is_said(word, said)}
    if any(any(each.isdigit() for each in word) for word in brought):
        return True
    if brought and 2 * len(brought) >= len(told):
        return True
    known, ours = f" {plain(by_user)} ", f" {plain(result)} "
    row = words(value)
    for start in range(len(row) - _COPIED_WORDS + 1):
        piece = f" {' '.join(row[start : start + _COPIED_WORDS])} "
        if piece in ours and piece not in known and brought & set(piece.split()):
            return True
    return False
