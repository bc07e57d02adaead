"""The words by which a user asks that something be remembered, or forgotten.

What is deleted is gone, so a model that was talked into forgetting must not find a sentence of the
user's that serves for anything. To forget a memory takes one sentence of the user's latest words
that asks for it and names it (`asks_to_forget`): "remove the item from my cart" forgets nothing,
nor does what the user said before the model last answered them. What does not pass is asked again
in clearer words.

To forget all takes more: words that plainly ask for just that, and nothing beside them
(`asks_to_forget_all`). A page that the user shows, or a sentence that is quoted, has something
beside them.
"""

import re
import unicodedata
from collections.abc import Sequence

from celeriac.codec import JsonValue
from celeriac.memory.candidate import text_of
from celeriac.memory.origin import SAYS_NOTHING, Said
from celeriac.memory.words import is_said, plain, telling_words, words

ASKS_TO_REMEMBER = (
    r"(?i)\b(?:remember|memori[sz]e|keep (?:it |this |that )?in mind|don'?t forget|make a note"
    r"|note (?:that|down)|save (?:this|that|my)|from now on|in (?:the )?future|next time"
    r"|i(?:'d)? (?:always |usually )?prefer|my preference|merk(?:e)? dir|denk daran|in zukunft"
    r"|ab jetzt|künftig|souviens-toi|rappelle-toi|désormais|à l'avenir|recuerda"
    r"|de ahora en adelante)\b|记住|记一下|请记|以后|今后|从现在|覚えて|今後|기억"
)
"""The words by which a user asks that something be kept, in a few languages."""

ASKS_TO_FORGET = (
    r"(?i)\b(?:forget|stop remembering|don'?t (?:keep|store|remember)|do not (?:keep|store"
    r"|remember)|vergiss|oublie[rz]?|olvida)\b|忘|잊"
    # These are said of carts and files as well, and so only of memories that are called that.
    r"|^(?=.*\b(?:delete|remove|erase|clear|drop|lösch\w*|entfern\w*|efface[rz]?|borra|elimina)\b)"
    r"(?=.*\b(?:memory|memories|remember(?:ed)?|(?:what )?you (?:know|(?:have )?(?:stored|noted))"
    r"|erinnerung\w*|gemerkt|mémoire|souvenirs?|memoria|recuerdos?)\b)"
    r"|^(?=.*(?:删除|删掉|清除|消して|削除))(?=.*(?:记忆|记住|记得|覚え|記憶))"
)
"""Those by which one asks in a sentence that something be forgotten."""

_DOES_NOT_ASK = re.compile(
    r"""
    # Says not to.
    \b(?:do\ not|don'?t|never|must\ not|mustn'?t|should\ not|shouldn'?t|cannot|can'?t
        |won'?t|not\ to|without)\ (?:\w+\ )?(?:forget|delet|remov|eras|clear|drop)\w*
    | \b(?:vergiss|vergesst)\b.*\bnicht\b | \bnicht\b.*\b(?:vergessen|löschen|vergiss)\b
    | \bn'?(?:oublie|efface)[rz]?\ (?:\w+\ )?pas\b | \bno\ (?:\w+\ )?(?:olvid|borr)\w*
    | (?:不要|不能|别|勿|没|未).{0,2}(?:忘|删|清) | 忘れ(?:ない|ず) | 消さない | 잊지
    # Tells of somebody who does.
    | \b(?:i|we|they|he|she|it|people)\ (?:\w+\ )?(?:forget|delete|remove|erase|clear|drop)s?\b
    | \bdid(?:n'?t)?\ (?:i|you|we|they|he|she)\ (?:\w+\ )?forget\b
    | \bif\ (?:i|you|we)\ (?:\w+\ )?forget\b
    """,
    re.IGNORECASE | re.VERBOSE,
)

_END_OF_SENTENCE = re.compile(r"(?<=[.!?;])\s+|(?<=[^ -~])[!?;]|[。\n]+")


_ASKS_TO_FORGET_ALL = re.compile(
    r"""
    (?:(?:please|kindly|ok|okay|hi|hello|now|so|just|bitte|por\ favor
        |(?:could|would)\ you|i(?:\ d|\ would)?\ (?:want|like|need)\ you\ to)\ )*
    (?:
        forget\ (?:everything|all)\ about\ me
        |(?:forget|delete|remove|erase|clear)\ (?:everything|all)\ (?:that\ )?
            you(?:\ have|\ ve)?\ (?:know|learned|learnt|noted|stored|saved|remember(?:ed)?)
            \ (?:about|of)\ me
        |(?:forget|delete|remove|erase|clear)\ all(?:\ of)?\ (?:my|your|the)\ memories
            (?:\ (?:about|of)\ me)?
        |(?:vergiss|vergessen\ sie)(?:\ bitte)?\ alles\ über\ mich
        |vergiss(?:\ bitte)?\ alles\ was\ du\ (?:über\ mich|von\ mir)\ weisst
        |oublie[rz]?\ tout\ ce\ que\ (?:tu\ sais|vous\ savez)\ (?:de|sur)\ moi
        |olvida\ todo\ lo\ que\ sabes\ (?:de|sobre)\ mí
    )
    (?:\ (?:please|now|right\ now|at\ once|completely|for\ good|forever|thanks|thank\ you
        |bitte|merci|por\ favor|gracias))*
    # Written without spaces.
    |(?:请|麻烦你)?(?:忘记|忘掉|删除|清除)(?:你(?:知道|记住|记得)的)?
        (?:关于我的(?:所有|一切|全部)|(?:所有|一切|全部)关于我的)(?:记忆|信息|事情)?
    |私について(?:覚えて|知って)いることを?(?:全部|すべて)(?:忘れて|消して)(?:ください)?
    """,
    re.VERBOSE,
)
# Any mark but those that end or part sentences, and an apostrophe within a word: there are more
# ways to quote, to cite and to strike out than could be listed.
_MARKED_OR_WONDERS = re.compile(
    "[^\\w\\s,.!?;:\u00a1\u00bf\u3001\u3002\u2013\u2014'\u2019-]"
    "|(?<!\\w)['\u2019]|['\u2019](?!\\w)"
    "|^(?!.*\\b(?:could|would) you\\b).*[?]",
    re.IGNORECASE | re.DOTALL,
)


def asks_to_remember(sentence: str, pattern: str = ASKS_TO_REMEMBER) -> bool:
    """Whether a user who says this wants something kept."""
    return re.search(pattern, sentence) is not None


def latest_words(said: Sequence[Said]) -> list[str]:
    """What the user has said last in the run, since anybody else said something."""
    latest: list[str] = []
    place: int | None = None
    for message in reversed(said):
        if message.position is None or (place is not None and message.position != place - 1):
            break
        latest.insert(0, message.text)
        place = message.position
    return latest


def asks_to_forget(
    latest: Sequence[str],
    user_said: str,
    key: str,
    value: JsonValue,
    pattern: str = ASKS_TO_FORGET,
) -> bool:
    """Whether a sentence of these latest words holds `user_said`, to the letter but for
    punctuation; asks that something be forgotten; and names the memory."""
    quoted = plain(user_said)
    if not quoted:
        return False
    sentences = [each for text in latest for each in _END_OF_SENTENCE.split(_plainly_written(text))]
    return any(
        f" {quoted} " in f" {plain(sentence)} "
        and re.search(pattern, sentence) is not None
        and _DOES_NOT_ASK.search(sentence) is None
        and _names(sentence, key, value)
        for sentence in sentences
    )


def asks_to_forget_all(
    latest: Sequence[str], user_said: str, pattern: str = ASKS_TO_FORGET
) -> bool:
    """Whether these latest words ask for nothing but that all memories of the speaker be forgotten,
    as "please forget everything you know about me", and hold `user_said` to the letter.

    With a word more, as of what is to stay or who says so, or with a mark that may quote it or
    strike it out, they do not.
    """
    return (
        bool(latest)
        and all(_asks_for_nothing_but_that(text, pattern) for text in latest)
        and any(f" {plain(user_said)} " in f" {plain(text)} " for text in latest)
    )


def _asks_for_nothing_but_that(text: str, pattern: str) -> bool:
    written = unicodedata.normalize("NFKC", text)
    if _MARKED_OR_WONDERS.search(written) or re.search(pattern, text) is None:
        return False
    said = re.sub(r"\W+", " ", written.casefold()).strip()
    return _ASKS_TO_FORGET_ALL.fullmatch(said) is not None


def _plainly_written(text: str) -> str:
    """Without what only looks different: full-width marks, a telephone's apostrophe."""
    return unicodedata.normalize("NFKC", text).replace("\u2019", "'")


def _names(sentence: str, key: str, value: JsonValue) -> bool:
    """Whether it says all words of the key, or half of those that say something of the content."""
    said = set(words(sentence))
    of_key = set(words(re.sub(r"[\W_]+", " ", key)))
    if telling_words(key.replace("_", " ")) and all(is_said(word, said) for word in of_key):
        return True
    of_value = telling_words(text_of(value)) - SAYS_NOTHING
    named = {word for word in of_value if is_said(word, said)}
    return bool(named) and 2 * len(named) >= len(of_value)
