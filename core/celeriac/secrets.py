"""Keep secrets out of what is stored, logged and shown.

`redact` replaces two kinds of text by "[redacted]", wherever they stand:

1. Values known to be secret: environment variables whose name says so (`OPENAI_API_KEY`,
   `PGPASSWORD`, `DB_PASS`; not `MONKEY_MODE`, `TOKENIZERS_PARALLELISM`), the passwords of
   `USER:PASSWORD` in those that end in `_AUTH` and of URLs in any, and what `register_secret` was
   given.
2. Shapes that nothing else has: our own `cel_...` tokens, `sk-...` keys, AWS key ids, GitHub
   tokens, bearer tokens, PEM private keys, and the password of `scheme://user:password@host`.

A known value is replaced everywhere, so one that is also an ordinary word, number or place would
damage honest text: with `DB_PASSWORD=postgres`, every mention of PostgreSQL. These values of the
environment are therefore left alone (a password in a URL still is hidden by its shape):

- shorter than `MIN_SECRET_CHARACTERS`;
- shorter than `MIN_GUESSABLE_CHARACTERS` and made of plain words ("change-me", "Production") or
  of digits and punctuation ("31536000", "2025-01-31"): a lifetime, a limit, a name;
- a URL (its password counts by itself), and the absolute path of a file that exists.

This hides secrets that arrive by accident. It cannot find one that a program has transformed.
"""

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote

from celeriac.errors import InvalidInput

REDACTED = "[redacted]"
MIN_SECRET_CHARACTERS = 8
MIN_GUESSABLE_CHARACTERS = 16

_SECRET_NAME = re.compile(
    r"(?:(?<![a-z])|access|api|auth|encryption|private|secret|signing)keys?(?![a-z])"
    r"|(?:credential|secret|token)s?(?![a-z])"
    r"|passphrase|passwd|password"
    r"|_(?:pass|pwd)(?![a-z])",
    re.IGNORECASE,
)
_AUTH_NAME = re.compile(r"(?:^|_)auth$", re.IGNORECASE)
_PLAIN_WORDS = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)(?:[-_. ](?:[A-Z]?[a-z]+|[A-Z]+))*")
_DIGITS_AND_PUNCTUATION = re.compile(r"[-+\d.,:/ ]+")

# Each alternative begins with a literal character and none ignores case: only then does `re` skip
# to the few characters where a match can begin (1 KB: 5 µs instead of 47). Where an alternative
# has a group, the secret begins at the group's end.
_URL_USERINFO = r':(//[^\s/?#:@"]*:)[^\s/?#"]+(?=@)'
_BEARER = r"earer +)(?=[\w.~+/=-]*\d|[\w.~+/=-]{16})[\w.~+/=-]{8,}"
_SHAPES = (
    r"c(?<![A-Za-z0-9]c)el_[A-Za-z0-9_-]{40,}",  # our own (celeriac_storage.tokens)
    r"s(?<![A-Za-z0-9]s)k-[A-Za-z0-9_-]{16,}",
    r"A(?<![A-Z0-9]A)KIA[A-Z0-9]{16}(?![A-Z0-9])",
    r"A(?<![A-Z0-9]A)SIA[A-Z0-9]{16}(?![A-Z0-9])",
    r"gh[opsru]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}",
    rf"B({_BEARER}",
    rf"b({_BEARER}",
    # A key that was cut off has no end; then all that follows may belong to it.
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?s:.)*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    _URL_USERINFO,
)
_MALFORMED_USERINFO = re.compile(r"(://[^\s/?#:@]*:)(?:(?!://)[^\n])+(?=@)")
_LAST_WORD = re.compile(r"[!-~]+\Z")  # of the characters that keys and URLs are made of
_BEGINNING_OF_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]*-{0,5}\Z")
_QUERY_PARAMETER = re.compile(r"(?<=[?&])([^=&#\s]+)=[^&#\s]+")
_JSON_STRING_OR_NUMBER = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*')

_registered: set[str] = set()  # only grows, so its length is its version


def redact(text: str) -> str:
    """`text` with every secret replaced by "[redacted]"; `text` itself if there is none.

    Prose and JSON text alike: an object, array or string in JSON stays valid JSON. A secret is
    found in its escaped form there, and a number is replaced as a whole, by a string.
    """
    secret = _secret_pattern(len(_registered))
    if not secret.search(text):
        return text
    if not _is_json(text):
        return secret.sub(_redacted, text)
    # Not on the text as a whole: after the JSON "\n" + "ewpassword1" a match would begin inside
    # the escape, and one in a number would leave a bare word.
    return _JSON_STRING_OR_NUMBER.sub(functools.partial(_redacted_token, secret), text)


def redact_so_far(text: str) -> str:
    """The beginning of `redact(text)` that stays what it is, whatever is still added to `text`.

    Prose alone. The last word is held back, since it may become a secret, and so is what a secret
    of several words may begin with.
    """
    end = len(text)
    for held in (_LAST_WORD.search(text), _BEGINNING_OF_PEM.search(text)):
        if held is not None:
            end = min(end, held.start())
    for literal in _known_forms(len(_registered)):
        # From the longest beginning of the secret that `text` may end with, to the shortest.
        for length in range(min(len(literal) - 1, len(text)), len(text) - end, -1):
            if text.endswith(literal[:length]):
                end = len(text) - length
                break
    for found in _secret_pattern(len(_registered)).finditer(text):
        if found.start() < end < found.end():
            end = found.start()  # what is there as a whole must not be cut, or its half is shown
    return redact(text[:end])


def redact_url(url: str) -> str:
    """`url`, or several with any separator, fit to be shown: without passwords.

    Those of the user part and query parameters whose name says so (`?password=`) are replaced, a
    password with a raw `/`, `#`, `@` or blank in it as a whole. The result is for people; it need
    not be a valid URL.
    """
    hidden = _MALFORMED_USERINFO.sub(rf"\1{REDACTED}", url)
    return redact(_QUERY_PARAMETER.sub(_redacted_parameter, hidden))


def register_secret(value: str) -> None:
    """Have `redact` replace `value` from now on, in this process, even if it looks ordinary.

    Raises InvalidInput for fewer than `MIN_SECRET_CHARACTERS`: a short value stands by chance in
    too much other text.
    """
    if len(value) < MIN_SECRET_CHARACTERS:
        raise InvalidInput(
            f"a secret of {len(value)} characters cannot be redacted: fewer than "
            f"{MIN_SECRET_CHARACTERS} stand by chance in other text. Use a longer secret, or keep "
            "it out of inputs and results"
        )
    _registered.add(value)


def register_secrets(variables: Mapping[str, str]) -> None:
    """Have `redact` replace what it would replace if these were variables of the environment."""
    _registered.update(_secrets_among(variables))


def forget_cached_secrets() -> None:
    """Forget what was registered, and read the environment again at the next use. For tests.

    The environment is read once, at the first use in the process.
    """
    _registered.clear()
    _secrets_of_environment.cache_clear()
    _secret_pattern.cache_clear()
    _known_forms.cache_clear()


@functools.lru_cache(maxsize=1)
def _secret_pattern(_version: int) -> re.Pattern[str]:
    return re.compile("|".join([*map(re.escape, _known_forms(_version)), *_SHAPES]))


@functools.lru_cache(maxsize=1)
def _known_forms(_version: int) -> list[str]:
    known = _secrets_of_environment().union(_registered.copy())
    forms = {form for value in known for form in _written_forms(value)}
    # The longest first: of two secrets that begin alike, the rest of the longer must not stay.
    return sorted(forms, key=len, reverse=True)


@functools.cache
def _secrets_of_environment() -> frozenset[str]:
    return frozenset(_secrets_among(os.environ))


def _secrets_among(variables: Mapping[str, str]) -> Iterator[str]:
    for name, content in variables.items():
        for value in _secrets_of_variable(name, content.strip()):
            if len(value) >= MIN_SECRET_CHARACTERS and not _is_ordinary(value):
                yield value


def _secrets_of_variable(name: str, content: str) -> Iterator[str]:
    if "://" in content:
        for found in re.finditer(_URL_USERINFO, content):
            password = content[found.end(1) : found.end()]
            yield password
            yield unquote(password)
    elif _SECRET_NAME.search(name) and not _is_existing_path(content):
        yield content
    elif _AUTH_NAME.search(name):
        yield content
        yield content.partition(":")[2]


def _is_existing_path(value: str) -> bool:
    # Not Path.exists, which raises for a name that is too long, as a long base64 value may be.
    return value.startswith("/") and os.path.exists(value)  # noqa: PTH110


def _is_ordinary(value: str) -> bool:
    return len(value) < MIN_GUESSABLE_CHARACTERS and bool(
        _PLAIN_WORDS.fullmatch(value) or _DIGITS_AND_PUNCTUATION.fullmatch(value)
    )


def _written_forms(value: str) -> Iterator[str]:
    """`value` as it stands in prose, in a URL, in JSON text, and in JSON inside a JSON string."""
    yield value
    yield quote(value, safe="", errors="replace")
    for ensure_ascii in (False, True):
        text = value
        for _ in range(2):
            text = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
            yield text


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[", '"')):
        return False  # a number or a word alone is prose
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _redacted(found: re.Match[str]) -> str:
    kept = found[0][: found.end(found.lastindex) - found.start()] if found.lastindex else ""
    return kept + REDACTED


def _redacted_token(secret: re.Pattern[str], token: re.Match[str]) -> str:
    written = token[0]
    if not written.startswith('"'):
        return f'"{REDACTED}"' if secret.search(written) else written
    text: str = json.loads(written)
    redacted = secret.sub(_redacted, text)
    if redacted == text:
        return written
    return json.dumps(redacted, ensure_ascii=written.isascii())


def _redacted_parameter(parameter: re.Match[str]) -> str:
    name = parameter[1]
    return f"{name}={REDACTED}" if _SECRET_NAME.search(name) else parameter[0]
