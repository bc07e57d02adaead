"""Servers' URLs: what cannot be read is refused in words of ours, and no piece of it is told."""

import traceback

import pytest

from celeriac.errors import InvalidInput
from celeriac.settings import Settings, load_settings
from celeriac_tasks.broker_url import check_broker_url

URLS = [
    name
    for name, setting in Settings.model_fields.items()
    if name.endswith("_url") and "SecretStr" in str(setting.annotation)
]
SCHEMES = {"broker_url": "redis"}
UNREADABLE = [
    "://u:super/hunter2@127.0.0.1:1/0",
    "://u:super?hunter2@127.0.0.1:1/0",
    "://u:super#hunter2@127.0.0.1:1/0",
    "://u:123/hunter2@127.0.0.1:1/0",
    "://u:123#hunter2@127.0.0.1:1/0",
    "://u:a@b/hunter2@127.0.0.1:1/0",
    "://u:super hunter2@127.0.0.1:1/0",
    "://u:super\nhunter2@127.0.0.1:1/0",
    "://u:hunter2\u2100@127.0.0.1:1/0",
    "://u:hunter2@127.0.0.1:bad/0",
    "://u:hunter2@127.0.0.1:99999/0",
    "://u:hunter2@[::1/0",
    "hunter2",
]


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize("rest", UNREADABLE)
def test_a_url_that_cannot_be_read_is_refused_without_a_piece_of_its_password(
    name: str, rest: str
) -> None:
    url = SCHEMES.get(name, "postgresql") + rest

    with pytest.raises(
        InvalidInput, match=f"CELERIAC_{name.upper()}: .*(percent-en|begin)"
    ) as told:
        load_settings(**{name: url})

    trace = "".join(traceback.format_exception(told.value))
    assert not [piece for piece in ("super", "hunter2") if piece in trace]


@pytest.mark.parametrize("name", URLS)
def test_a_password_may_hold_anything_percent_encoded(name: str) -> None:
    url = f"{SCHEMES.get(name, 'postgresql')}://u:a%2Fb%23c%40d%3Fe%20f@[::1]:1/0"

    assert getattr(load_settings(**{name: url}), name).get_secret_value() == url


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@127.0.0.1:1/bad",
        "redis://:hunter2@127.0.0.1:1/0/1",
        "redis://127.0.0.1:1/0?password=hunter2",
        "redis://127.0.0.1:1/0?nonsense=hunter2",
        "redis://127.0.0.1:1/0?socket_timeout=hunter2",
        "rediss://127.0.0.1:1/0?ssl_cert_reqs=hunter2",
        "amqp://u:hunter2@127.0.0.1:1//?heartbeat=hunter2",
    ],
)
def test_a_broker_url_that_a_library_cannot_take_is_refused_without_a_piece_of_it(url: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be used") as told:
        check_broker_url(url)

    assert "hunter2" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://127.0.0.1",
        "redis://:pw@[::1]:1/15",
        "rediss://h/0?ssl_cert_reqs=required",
        "rediss://h/0?ssl_cert_reqs=none",
        "amqp://",
        "amqps://u:p@h/a%2Fb?heartbeat=5",
        "pyamqp://u:p@h:1//",
    ],
)
def test_a_broker_url_of_both_libraries_is_taken(url: str) -> None:
    check_broker_url(url)


def test_a_setting_is_refused_in_words_for_people() -> None:
    with pytest.raises(InvalidInput) as refused:
        load_settings(database_url="mysql://127.0.0.1/shop")

    assert "CELERIAC_DATABASE_URL: must begin with postgresql://" in str(refused.value)
