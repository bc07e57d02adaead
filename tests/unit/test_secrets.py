"""What counts as a secret, and that its removal leaves no trace and no damage."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celeriac.errors import InvalidInput
from celeriac.secrets import (
    REDACTED,
    forget_cached_secrets,
    redact,
    redact_so_far,
    redact_url,
    register_secret,
)


@pytest.fixture(autouse=True)
def _no_secrets_left() -> Iterator[None]:
    forget_cached_secrets()
    yield
    forget_cached_secrets()


# ------------------------------------------------------------------------ the environment


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "openai_api_key",
        "APIKEY",
        "API_KEYS",
        "KEY",
        "CELERIAC_TASK_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "ACCESSTOKEN",
        "PGPASSWORD",
        "MYSQL_PASSWD",
        "DB_PASS",
        "MYSQL_PWD",
        "GOOGLE_CREDENTIALS",
        "CLIENT_SECRET",
        "SSH_PASSPHRASE",
    ],
)
def test_a_variable_whose_name_says_secret_is_redacted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "w7-plum-tree")

    assert redact("it is w7-plum-tree.") == "it is [redacted]."


@pytest.mark.parametrize(
    "name", ["MONKEY_MODE", "KEYBOARD", "TOKENIZERS_CACHE", "SECRETARY", "HOME", "PWD", "BYPASS"]
)
def test_a_variable_whose_name_only_looks_like_it_is_left(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "w7-plum-tree")

    assert redact("it is w7-plum-tree.") == "it is w7-plum-tree."


@pytest.mark.parametrize(
    "value",
    [
        "",
        "w7-plum",  # 7 characters
        "password",
        "postgres",
        "change-me",
        "Production",
        "order_id.TASK",
        "31536000",
        "2025-01-31",
        "10.0.0.1:5432",
        "https://auth.example.com/oauth/token",
    ],
)
def test_a_short_or_ordinary_value_is_no_secret(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CELERIAC_TASK_KEY", value)

    assert redact(f"see {value}, {value}") == f"see {value}, {value}"


@pytest.mark.parametrize(
    "value",
    [
        "passw0rd",
        "aBcDeFgH",
        "correct-horse-battery",
        "1234567890123456",
        "/9j/4AAQSkZJRgABAQ",  # base64 may begin like a path
        "/9j/" + "4AAQSkZJ" * 100,
        " surrounded-by-1-space ",
    ],
)
def test_a_value_that_can_be_guessed_less_easily_is_a_secret(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CELERIAC_TASK_KEY", value)

    assert redact(f"see {value.strip()}, please") == "see [redacted], please"


def test_the_path_of_a_key_file_is_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key-1.pem"
    path.touch()
    monkeypatch.setenv("SSL_KEY", str(path))

    assert redact(f"cannot read {path}") == f"cannot read {path}"


def test_the_password_in_a_url_of_the_environment_is_a_secret_as_written_and_as_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELERIAC_DATABASE_URL", "postgresql://me:s3cret%2Fs3cret@db/celeriac")

    assert redact("s3cret/s3cret, s3cret%2Fs3cret") == "[redacted], [redacted]"


def test_the_password_of_a_user_and_password_is_a_secret_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELERIAC_FLOWER_AUTH", "operator:Zx9hunter2Qw8")

    assert redact("operator sent Zx9hunter2Qw8") == "operator sent [redacted]"


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact("w7-plum-tree") == "w7-plum-tree"
    monkeypatch.setenv("API_KEY", "w7-plum-tree")
    assert redact("w7-plum-tree") == "w7-plum-tree"

    forget_cached_secrets()

    assert redact("w7-plum-tree") == "[redacted]"


# --------------------------------------------------------------------- registered secrets


def test_a_registered_secret_is_redacted_from_then_on_even_if_it_looks_ordinary() -> None:
    assert redact("password") == "password"

    register_secret("password")

    assert redact("the password") == "the [redacted]"


def test_a_secret_too_short_to_be_found_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidInput, match="a secret of 7 characters") as refusal:
        register_secret("hunter2")

    assert "hunter2" not in str(refusal.value)


def test_of_two_secrets_that_begin_alike_the_longer_goes_whole() -> None:
    register_secret("plum-tree")
    register_secret("plum-tree-plum-cake")

    assert redact("plum-tree-plum-cake plum-tree") == "[redacted] [redacted]"


def test_a_secret_is_found_in_its_url_encoded_form() -> None:
    register_secret("a/b+c=plum tree")

    assert redact("?q=a%2Fb%2Bc%3Dplum%20tree&n=1") == "?q=[redacted]&n=1"


# -------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("key sk-proj-abcDEF0123456789xyz.", "key [redacted]."),
        ("id AKIAIOSFODNN7EXAMPLE", "id [redacted]"),
        ("id ASIAIOSFODNN7EXAMPLE", "id [redacted]"),
        ("ghp_0123456789abcdefABCDEF0123456789abcd", "[redacted]"),
        ("github_pat_11ABCDEFG0123456789_abcdef", "[redacted]"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]"),
        ("authorization: bearer abcdefghijklmnop==", "authorization: bearer [redacted]"),
        ("redis://:hush@cache:6379/0", "redis://:[redacted]@cache:6379/0"),
        (
            "amqp://guest:guest@mq, amqp://a:b@mq",
            "amqp://guest:[redacted]@mq, amqp://a:[redacted]@mq",
        ),
        ("postgresql://me:p@ss:w@db/x", "postgresql://me:[redacted]@db/x"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb",
            "a\n[redacted]\nb",
        ),
        ("a -----BEGIN PRIVATE KEY-----\nMIIE cut off", "a [redacted]"),
    ],
)
def test_an_unmistakable_shape_is_redacted(text: str, redacted: str) -> None:
    assert redact(text) == redacted
    assert redact(redacted) == redacted
    assert json.loads(redact(json.dumps([text]))) == [redacted]


@pytest.mark.parametrize(
    "text",
    [
        "desk-lamps-and-other-furniture",
        "the bearer of bad news, bearer certificates",
        "sk-SK is the locale",
        "http://host:8080/path@v1",
        "see http://host:8080 or mail a@b.example",
        "-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----",
        "XAKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_only_resembles_a_secret_is_left(text: str) -> None:
    assert redact(text) is text


# ------------------------------------------------------------------------------ JSON text

SECRETS = st.text(min_size=8, max_size=12).filter(lambda secret: secret not in "[redacted]")
DIGITS = st.text("0123456789", min_size=8, max_size=9)
ESCAPE_LIKE = st.sampled_from(
    ["newpass1", "u0000abc", "001fabcd", "tab\ttab\t", 'quo"ted"', "back\\slash\\", "null,null"]
)


@given(
    secret=st.one_of(SECRETS, DIGITS, ESCAPE_LIKE),
    before=st.text(max_size=3) | st.sampled_from(["\n", "\x1f", "\\", "\\\\", "\0"]),
    after=st.text(max_size=3),
    number=st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    ensure_ascii=st.booleans(),
)
def test_json_text_stays_valid_and_loses_the_secret_and_nothing_else(
    secret: str, before: str, after: str, number: float, ensure_ascii: bool
) -> None:
    forget_cached_secrets()
    register_secret(secret)
    honest = "" if secret in before + after else before + after
    value = {"n": number, before + secret + after: [before + secret + after, honest]}

    parsed = json.loads(redact(json.dumps(value, ensure_ascii=ensure_ascii)))

    (name, [text, kept]) = list(parsed.items())[-1]
    assert secret not in name.replace("[redacted]", "")
    assert secret not in text.replace("[redacted]", "")
    assert kept == honest
    assert parsed["n"] == ("[redacted]" if secret in json.dumps(number) else number)


@pytest.mark.parametrize(
    ("secret", "value", "redacted"),
    [
        ("newpass1", ["\newpass1"], ["\newpass1"]),  # the escape's n is not the secret's
        ("newpass1", ["\\newpass1"], ["\\[redacted]"]),
        ("001fabcd", ["\x1fabcd"], ["\x1fabcd"]),
        ("12345678", {"pin": 12345678, "at": [1.5]}, {"pin": "[redacted]", "at": [1.5]}),
        ("null,null", [None, None, "null,null"], [None, None, "[redacted]"]),
        ('a"b\\c\nd9', [json.dumps({"k": 'a"b\\c\nd9'})], ['{"k": "[redacted]"}']),
    ],
)
def test_a_match_never_begins_inside_an_escape_or_outside_of_a_string(
    secret: str, value: object, redacted: object
) -> None:
    register_secret(secret)

    assert json.loads(redact(json.dumps(value))) == redacted


def test_json_text_in_ascii_stays_in_ascii() -> None:
    register_secret("w7-plum-tree")

    assert redact(r'["\u00fc \ud800 w7-plum-tree"]') == r'["\u00fc \ud800 [redacted]"]'


def test_what_is_no_json_is_redacted_as_prose() -> None:
    register_secret("newpass1")

    assert redact(r"[not json \newpass1") == r"[not json \[redacted]"
    assert redact("newpass1") == "[redacted]"


def test_text_without_secrets_is_returned_itself() -> None:
    text = json.dumps({"a": ["nothing to hide", 12345678]})

    assert redact(text) is text


# ----------------------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql://me:pw@db/x?sslmode=off", "postgresql://me:[redacted]@db/x?sslmode=off"),
        ("postgresql:///x?user=me&password=pw", "postgresql:///x?user=me&password=[redacted]"),
        ("https://h/p?api_key=1&q=2#top", "https://h/p?api_key=[redacted]&q=2#top"),
        ("redis://:a@h1;redis://:b@h2", "redis://:[redacted]@h1;redis://:[redacted]@h2"),
        ("postgresql://me:a/b#c?d@e f@db/x", "postgresql://me:[redacted]@db/x"),
        ("redis://:1/2@h/0 and amqp://h:1/x", "redis://:[redacted]@h/0 and amqp://h:1/x"),
        ("no url at all", "no url at all"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown


# ------------------------------------------------------------------------ text in progress

PHRASE = "correct horse battery"
FRAGMENTS = st.sampled_from(
    [
        "plain words ",
        "correct horse ",
        PHRASE,
        "\n",
        " 中文。",
        "sk-0123456789abcdefghij",
        "sk-",
        "Bearer abcdef0123456789",
        "postgresql://shop:hunter2secret@db/shop",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n",
        "-----END RSA PRIVATE KEY-----",
        "-----BEGIN ",
    ]
)


@given(st.lists(FRAGMENTS, max_size=6), st.integers(min_value=0))
@example(["-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"], len("-----BEGIN RSA PRIVATE KEY-"))
def test_what_is_shown_of_a_text_in_progress_stays_so_whatever_follows(
    fragments: list[str], cut: int
) -> None:
    forget_cached_secrets()
    register_secret(PHRASE)
    whole = "".join(fragments)
    so_far = whole[: cut % (len(whole) + 1)]

    assert redact(whole).startswith(redact_so_far(so_far))


def test_only_what_may_become_a_secret_is_held_back() -> None:
    register_secret(PHRASE)

    assert redact_so_far("one two ") == "one two "
    assert redact_so_far("one two") == "one "
    assert redact_so_far("中文") == "中文"
    assert redact_so_far("a correct horse ") == "a "
    assert redact_so_far("a correct horse race ") == "a correct horse race "
    assert redact_so_far(f"a {PHRASE} b") == f"a {REDACTED} "
