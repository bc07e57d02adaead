"""What a workflow's error says of an exception."""

from celeriac.workflows.failure import MAX_MESSAGE_CHARACTERS, report


def test_a_secret_is_hidden_before_the_message_is_cut() -> None:
    url = "postgresql://shop:correct-horse-battery@db/shop"
    told = report(ValueError("x" * (MAX_MESSAGE_CHARACTERS - 45) + " " + url))

    assert "correct" not in str(told["message"])
    assert len(str(told["message"])) <= MAX_MESSAGE_CHARACTERS
