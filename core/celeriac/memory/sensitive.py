"""What must not be remembered: keys and tokens, card and account numbers, passwords.

Found by three readers: our own redaction (`celeriac.secrets`), the detectors of `detect-secrets`
(the maintained package is `bc-detect-secrets`), and the patterns below, for what those leave out.
A memory that is refused by mistake costs a preference; one that is kept by mistake is a secret in
every later prompt. So in doubt it counts as sensitive.

It cannot find a secret that a program has transformed, nor one that looks like ordinary words.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from celeriac.codec import JsonValue
from celeriac.secrets import redact

WITHHELD = "[withheld: {}]"
_MARK = re.compile(r"\[(?:redacted|withheld: [a-z ]+)\]")

MAX_SCANNED_CHARACTERS = 20_000  # some patterns take the square of it
_MIN_RANDOM_CHANGES = 8  # between digits, capitals and small letters
_MIN_RANDOM_BITS = 3.6  # per character; prose has about 3.2 within a word, random base64 above 4

# By label. The detectors of those libraries look for whole formats; none of them asks a server.
_DETECTORS: tuple[tuple[str, str, str], ...] = (
    ("access key", "artifactory", "ArtifactoryDetector"),
    ("access key", "aws", "AWSKeyDetector"),
    ("access key", "azure_storage_key", "AzureStorageKeyDetector"),
    ("password", "basic_auth", "BasicAuthDetector"),
    ("access key", "discord", "DiscordBotTokenDetector"),
    ("access key", "github_token", "GitHubTokenDetector"),
    ("token", "jwt", "JwtTokenDetector"),
    ("access key", "mailchimp", "MailchimpDetector"),
    ("access key", "npm", "NpmDetector"),
    ("private key", "private_key", "PrivateKeyDetector"),
    ("access key", "sendgrid", "SendGridDetector"),
    ("access key", "slack", "SlackDetector"),
    ("access key", "square_oauth", "SquareOAuthDetector"),
    ("access key", "stripe", "StripeDetector"),
    ("access key", "twilio", "TwilioKeyDetector"),
)

_NAMES_OF_SECRETS = (
    r"password|passphrase|passcode|passwd|pwd|pin(?: code)?|cvv|cvc|otp|passwort|kennwort"
    r"|mot de passe|contraseña|api[ _-]?key|secret(?: key)?|access[ _-]?token"
)
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [^-]*-----|\Z)"),
        ("access key", r"(?<![A-Za-z0-9])(?:sk|pk|rk|xox[abprs]|glpat|hf|api|key)[-_][\w-]{12,}"),
        ("access key", r"(?<![A-Za-z0-9])AIza[\w-]{30,}"),
        ("token", r"(?<![\w.-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
        ("password", rf"(?i)\b(?:{_NAMES_OF_SECRETS})\b\s*(?:is|are|ist|est|es|=|:|-)+\s*\S+"),
        ("password", r"(?:密码|口令|パスワード)\s*(?:是|为|は|:|=)?\s*\S+"),
        ("identity number", r"(?<!\d)\d{3}-\d{2}-\d{4}(?!\d)"),
    )
)
_DIGITS = re.compile(r"(?<![\d.])\d(?:[ .-]?\d){12,18}(?!\d)")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?![A-Za-z0-9])")
_RUN_OF_CHARACTERS = re.compile(r"[\w+/=~.-]{20,}", re.ASCII)


def kinds_of_secret(text: str) -> list[str]:
    """What sensitive things `text` holds, by label and in a fixed order; empty if none was found.

    A text from which something was withheld, or redacted, before holds it still.
    """
    found = {mark[1:-1].partition(": ")[2] or "secret" for mark in _MARK.findall(text)}
    for reading in {text, _plainly_written(text)}:
        found.update(label for label, _ in _findings(reading))
    return sorted(found)


def withhold(value: JsonValue) -> JsonValue:
    """A copy of `value` with what is sensitive in its texts replaced by a mark that says its kind.

    Keys of objects are texts too. Numbers that a card could be are replaced by the mark.
    """
    if isinstance(value, str):
        return _withheld_text(value)
    if isinstance(value, list):
        return [withhold(item) for item in value]
    if isinstance(value, dict):
        return {_withheld_text(key): withhold(item) for key, item in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        written = str(value)
        return value if _withheld_text(written) == written else _withheld_text(written)
    return value


def _withheld_text(text: str) -> str:
    if len(text) > MAX_SCANNED_CHARACTERS:
        return WITHHELD.format("too long")  # nobody has looked at all of it
    kept = redact(text)
    for label, secret in sorted(_findings(kept), key=lambda each: -len(each[1])):
        kept = kept.replace(secret, WITHHELD.format(label))
    # Written so that only a careful reader sees it, as in full-width digits: nothing of it is kept.
    for label, _ in _findings(_plainly_written(kept)):
        return WITHHELD.format(label)
    return kept


def _plainly_written(text: str) -> str:
    """`text` without what only looks different: full-width digits, invisible characters."""
    folded = unicodedata.normalize("NFKC", text)
    return "".join(each for each in folded if unicodedata.category(each) != "Cf")


def _findings(text: str) -> Iterator[tuple[str, str]]:
    """Label and text of each secret; those that stand in others may be left out."""
    text = _MARK.sub(" ", text[:MAX_SCANNED_CHARACTERS])
    if redact(text) != text:
        yield "secret", text
    for label, pattern in _PATTERNS:
        yield from ((label, found[0]) for found in pattern.finditer(text))
    yield from (("card number", found) for found in _numbers(text, _DIGITS, _is_card))
    yield from (("account number", found) for found in _numbers(text, _IBAN, _is_iban))
    for line in text.splitlines():
        for label, detector in _detectors():
            yield from ((label, secret) for secret in detector.analyze_string(line) if secret)
    for found in _RUN_OF_CHARACTERS.finditer(text):
        if _looks_random(found[0]):
            yield "secret", found[0]


def _numbers(text: str, pattern: re.Pattern[str], holds: Any) -> Iterable[str]:
    return (found[0] for found in pattern.finditer(text) if holds(found[0]))


def _is_card(written: str) -> bool:
    """Luhn's check digit (ISO/IEC 7812-1, annex B)."""
    digits = [int(each) for each in written if each.isdecimal()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_iban(written: str) -> bool:
    """ISO 7064, mod 97-10, as ISO 13616 uses it."""
    number = written.replace(" ", "")
    moved = number[4:] + number[:4]
    return len(number) >= 15 and int("".join(str(int(each, 36)) for each in moved)) % 97 == 1


def _looks_random(word: str) -> bool:
    """Letters and digits mixed as no name mixes them, which is how keys of any make look."""
    kinds = [each.isdigit() + 2 * each.isupper() + 4 * each.islower() for each in word]
    if not {1, 2} <= set(kinds) and not {1, 4} <= set(kinds):
        return False
    counts = Counter(word)
    bits = -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    changes = sum(a != b and bool(a and b) for a, b in pairwise(kinds))
    return bits >= _MIN_RANDOM_BITS and changes >= _MIN_RANDOM_CHANGES


@cache
def _detectors() -> list[tuple[str, Any]]:
    # At the first proposal of a process: importing them takes most of a second.
    return [
        (label, getattr(import_module(f"detect_secrets.plugins.{module}"), name)())
        for label, module, name in _DETECTORS
    ]
