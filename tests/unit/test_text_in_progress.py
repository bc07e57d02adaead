"""What a reader is shown of a text in progress, whatever becomes of pieces and attempts."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from celeriac.ids import RunId
from celeriac.reports import Event
from celeriac.sse import Frame
from celeriac.states import RunStatus
from celeriac_api.streaming.text_in_progress import Shown, TextInProgress
from celeriac_storage.reading import Position
from celeriac_tasks.text_stream import Attempt, Piece
from tests.streaming.subscriber import Screen

NOT_BEGUN = Position(RunStatus.QUEUED, 0, 0, 1)


def event(type_: str, epoch: int, step: int, text: str | None = None) -> Event:
    told = {"epoch": epoch, "step": step} | ({} if text is None else {"text": text})
    return Event(RunId("r"), 1, type_, datetime.now(UTC), told)


def piece(epoch: int, step: int, index: int, text: str = "x") -> Piece:
    return Piece(Attempt(epoch, step), index, text)


def is_drawn(data: st.DataObject) -> bool:
    drawn: bool = data.draw(st.booleans())
    return drawn


def names(frames: list[Frame]) -> list[str]:
    return [frame.event for frame in frames]


def test_pieces_of_an_earlier_claim_are_shown_to_nobody() -> None:
    text = TextInProgress(NOT_BEGUN)

    assert text.add(piece(2, 0, 0))
    assert not text.add(piece(1, 0, 0))
    assert not text.add(piece(1, 7, 0))
    assert text.attempt == Attempt(2, 0)


def test_pieces_from_before_the_reader_came_count_only_if_their_attempt_goes_on() -> None:
    running = Position(RunStatus.RUNNING, 3, 2, 9)
    paused = Position(RunStatus.PAUSED, 3, 2, 9)

    shown = [
        (position.status, each)
        for position in (running, paused)
        for each in (piece(1, 3, 0), piece(2, 2, 0), piece(2, 3, 0), piece(3, 3, 0))
        if TextInProgress(position).add(each)
    ]

    assert shown == [
        (RunStatus.RUNNING, piece(2, 3, 0)),
        (RunStatus.RUNNING, piece(3, 3, 0)),
        (RunStatus.PAUSED, piece(3, 3, 0)),
    ]


def test_a_lost_piece_ends_the_text_until_the_next_attempt() -> None:
    text, shown = TextInProgress(NOT_BEGUN), Shown()
    text.add(piece(1, 0, 0))
    assert names(shown.news(text)) == ["text.delta"]

    text.add(piece(1, 0, 2))
    text.add(piece(1, 0, 3))

    assert names(shown.news(text)) == ["superseded"]
    text.add(piece(2, 0, 0))
    assert names(shown.news(text)) == ["text.delta"]


def test_an_answer_ends_its_attempt_without_a_word_and_late_pieces_of_it_are_left_out() -> None:
    text, shown = TextInProgress(NOT_BEGUN), Shown()
    text.add(piece(1, 0, 0))
    shown.news(text)
    answered = event("model.answered", 1, 0, "x")

    text.note(answered)

    assert shown.before(answered) == []
    assert not text.add(piece(1, 0, 1))
    assert shown.news(text) == []


def test_the_next_steps_text_may_come_before_the_answer_of_this_one() -> None:
    text, shown = TextInProgress(NOT_BEGUN), Shown()
    text.add(piece(1, 0, 0))
    shown.news(text)
    text.add(piece(1, 2, 0))

    assert names(shown.news(text)) == ["text.delta"]
    assert shown.before(event("model.answered", 1, 0, "x")) == []


# Each attempt: does it end in an answer, and how many pieces has it.
ATTEMPTS = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=5)


@given(ATTEMPTS, st.data())
def test_a_reader_is_left_with_the_answers_alone_however_pieces_come(
    attempts: list[tuple[bool, int]], data: st.DataObject
) -> None:
    text, shown, screen = TextInProgress(NOT_BEGUN), Shown(), Screen()
    step, answers, old = 0, [], list[Piece]()
    for epoch, (is_answered, count) in enumerate(attempts, 1):
        pieces = [piece(epoch, step, index, f"{epoch}.{index} ") for index in range(count)]
        # In order, but some come twice, get lost, or come from workers that lost their claim.
        for each in pieces:
            for _ in range(data.draw(st.integers(0, 2))):
                text.add(each)
            if old and is_drawn(data):
                text.add(data.draw(st.sampled_from(old)))
            if is_drawn(data):
                screen.show(shown.news(text))
                whole = "".join(piece.text for piece in pieces)
                assert whole.startswith(screen.partial)
        old += pieces
        ending = event("run.recovered", epoch, step)
        if is_answered:
            ending = event("model.answered", epoch, step, f"answer {epoch}")
            answers.append(f"answer {epoch}")
            step += 1
        text.note(ending)
        frames = shown.before(ending)
        if is_answered:
            frames.append(Frame(f'{{"data": {{"text": "answer {epoch}"}}}}', "model.answered"))
        screen.show(frames)
        assert screen.partial == ""

    screen.show(shown.news(text))
    assert (screen.final, screen.partial, screen.twice) == (answers, "", [])
