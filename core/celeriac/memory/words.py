"""The words of a text as searches and comparisons take them, in any script.

Chinese and Japanese are written without spaces, so there each pair of neighbouring characters
counts as a word: 用户偏好 is 用户, 户偏, 偏好.
"""

import re
import unicodedata
from collections.abc import Iterator, Set
from itertools import pairwise

_WORD = re.compile(r"\w+")
_WITHOUT_SPACES = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]+"
)
_MIN_TELLING_CHARACTERS = 4
_STEM_CHARACTERS = 5
_ENDING_CHARACTERS = 3


def words(text: str) -> list[str]:
    """The words of `text` in their order, in lower case, each as often as it stands there."""
    return list(_words(unicodedata.normalize("NFKC", text).casefold()))


def telling_words(text: str) -> set[str]:
    """Those that say something: longer ones, numbers, and whatever is written without spaces."""
    return {
        word
        for word in words(text)
        if len(word) >= _MIN_TELLING_CHARACTERS
        or any(each.isdigit() for each in word)
        or _WITHOUT_SPACES.match(word)
    }


def plain(text: str) -> str:
    """`text` as it is compared: its words alone, with one space between them."""
    return " ".join(words(text))


def is_said(word: str, said: Set[str]) -> bool:
    """Whether `word` is among those words, or another form of it: `seats` where `seat` was said."""
    return word in said or any(_is_form(word, other) for other in said)


def _is_form(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if len(short) < _MIN_TELLING_CHARACTERS or not short.isalpha():
        return False
    if len(short) >= _STEM_CHARACTERS and short[:_STEM_CHARACTERS] == long[:_STEM_CHARACTERS]:
        return True
    return long.startswith(short) and len(long) - len(short) <= _ENDING_CHARACTERS


def _words(text: str) -> Iterator[str]:
    for found in _WORD.finditer(text):
        word, end = found[0], 0
        for run in _WITHOUT_SPACES.finditer(word):
            if run.start() > end:
                yield word[end : run.start()]
            yield from _pairs(run[0])
            end = run.end()
        if end < len(word):
            yield word[end:]


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second
