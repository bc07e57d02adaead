"""What a signal means to `celeriac up` and the demo, and what they leave when they end."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from celeriac.cli import demo
from celeriac.cli.main import app
from celeriac.cli.screen import Screen
from celeriac.cli.up import Ending
from celeriac.demo.notifications import NotificationService
from celeriac.demo.verdict import Finding, Verdict
from celeriac.errors import CeleriacError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_end_of_a_terminal_is_an_end_unless_nohup_has_said_otherwise() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Ending()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ending = Ending()
    signal.raise_signal(signal.SIGHUP)
    assert ending.asked.is_set()


@pytest.mark.parametrize(
    ("is_right", "is_left"), [(True, False), (False, True), (None, False)], ids=str
)
def test_the_evidence_of_a_wrong_verdict_is_left_also_after_ctrl_c(
    is_right: bool | None, is_left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(data: Path, screen: Screen, ending: Ending, *_: object, **__: object) -> None:
        data.mkdir()
        (data / "evidence").touch()
        if is_right is not None:
            screen.show(Verdict([Finding("steps", "1", "2", "rows", is_right)], []), 1.0)
        ending.asked.set()  # what Ctrl-C does
        if is_right is None:
            raise CeleriacError("the demo was stopped")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_perform", perform)
    monkeypatch.setattr(demo, "PREFIXES", ("NONE_OF_OURS_",))

    ended = CliRunner().invoke(app, ["demo", "--keep"])

    assert ended.exit_code == (0 if is_right else 1), ended.output
    assert (tmp_path / ".celeriac-demo" / "evidence").exists() == is_left


def test_a_notification_service_that_does_not_answer_is_said_and_no_traceback(
    tmp_path: Path,
) -> None:
    with NotificationService(tmp_path) as service:  # which was never started
        for ask in (service.read_ledger, lambda: service.drop_answers(is_dropping=True)):
            with pytest.raises(CeleriacError, match="does not answer"):
                ask()
