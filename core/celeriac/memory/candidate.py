"""What somebody would have remembered. A candidate is no permission: a policy decides about it."""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidInput
from celeriac.ids import ApprovalId, CallId, RunId, UserId, is_id

DEFAULT_NAMESPACE = "default"
MAX_KEY_CHARACTERS = 128
MAX_EXPIRES_DAYS = 36_500.0

# Keys stand in addresses and file names of exports. So no slash, no leading or doubled dot and no
# control character; letters of any script are fine.
_KEY = re.compile(r"[^\W_](?:[\w@:+-]|\.(?!\.))*", re.UNICODE)


class MemoryKind(StrEnum):
    SEMANTIC = "semantic"
    """A stable fact or preference: prefers Chinese."""
    EPISODIC = "episodic"
    """Something that happened: the last trip went to Kyoto."""
    PROCEDURAL = "procedural"
    """How the agent should work. People decide about it, since it changes what agents do."""


class Origin(StrEnum):
    """Where the content comes from, as the application found it and not as a model says."""

    USER = "user"  # the user's own words in the run
    TOOL = "tool"  # something that a tool returned: a web page, a file, a mail
    MODEL = "model"  # neither
    PERSON = "person"  # somebody put it in directly, by the API or the command line


@dataclass(frozen=True, slots=True)
class Source:
    """Where a candidate comes from."""

    origin: Origin
    run_id: RunId | None = None
    call_id: CallId | None = None  # the call that proposed it, `STEP.INDEX`
    message_position: int | None = None  # of the run's message that holds the user's words
    source_call_id: CallId | None = None  # the call whose result holds the content


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCandidate:
    """What would be remembered, of whom, and on whose word.

    `owner_id` is the user that the run, or the request, was authenticated for.
    `explicit_user_request` says that this user asked for it, and `sensitive` that it is known to
    be; of a model's proposal neither is taken from the model alone.
    """

    owner_id: UserId
    key: str
    value: JsonValue
    kind: MemoryKind | str
    explicit_user_request: bool
    sensitive: bool = False
    namespace: str = DEFAULT_NAMESPACE
    expires_days: float | None = None
    source: Source = Source(Origin.MODEL)
    approval_id: ApprovalId | None = None
    """The proposal that persons with permission have approved, if they were asked."""

    @property
    def text(self) -> str:
        """All that a reader would see of it."""
        return " ".join((self.key, text_of(self.value)))


def text_of(value: JsonValue) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def is_key(text: object) -> bool:
    """Whether it can be the key, or the namespace, of a memory."""
    return (
        isinstance(text, str)
        and len(text) <= MAX_KEY_CHARACTERS
        and _KEY.fullmatch(text) is not None
        and not text.endswith(".")
        and unicodedata.normalize("NFC", text) == text  # or two keys would look alike
    )


def checked_key(text: str, what: str = "key") -> str:
    """`text`, or `InvalidInput` if it cannot be the key (or `what` it is) of a memory."""
    if not is_key(text):
        raise InvalidInput(
            f"{text!r} cannot be the {what} of a memory: 1 to {MAX_KEY_CHARACTERS} letters, digits "
            "and the signs _ . @ : + -, beginning with a letter or digit and with no two dots "
            "together"
        )
    return text


def is_owner(user_id: object) -> bool:
    return isinstance(user_id, str) and is_id(user_id)
