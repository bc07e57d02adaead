"""A log stays within bounds while its service goes on writing."""

import os
from pathlib import Path

import pytest

from celeriac.stack.log import KEPT, LARGEST_BYTES, last_words, open_log, rotate


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "service.log"


def test_a_log_that_grew_too_large_is_put_aside_and_the_oldest_forgotten(log: Path) -> None:
    writer = open_log(log)
    for number in range(KEPT + 2):
        os.write(writer, f"{number}\n".encode())
        os.truncate(log, LARGEST_BYTES)  # grown in no time, and taking no space
        rotate(log)
    os.write(writer, b"and on\n")
    os.close(writer)

    assert log.read_text() == "and on\n"
    kept = {path.name: path.read_bytes()[:2] for path in log.parent.iterdir() if path != log}
    assert kept == {f"service.log.{number}": b"%d\n" % (KEPT + 2 - number) for number in (1, 2, 3)}


def test_a_small_log_and_a_missing_one_are_left_alone(log: Path) -> None:
    rotate(log)
    log.write_text("a line\n")
    rotate(log)

    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_last_words_are_those_since_a_position_in_one_line(log: Path) -> None:
    log.write_text("an old one\n")
    since = log.stat().st_size
    with log.open("a") as out:
        out.write("one\n\n two\nthree\nfour\n")

    assert last_words(log, since) == "two / three / four"
    assert last_words(log, log.stat().st_size) == ""
    assert last_words(log.with_name("none")) == ""
