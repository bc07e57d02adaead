"""Which words of a user let a model forget a memory, and which serve for nothing of the kind."""

# features: 000-18, 000-21
import pytest

from celeriac.memory.asking import asks_to_forget, asks_to_remember, latest_words
from celeriac.memory.origin import Said

SEAT = "Prefers aisle seats"


def forgets(said: str, quoted: str | None = None, key: str = "seat", value: str = SEAT) -> bool:
    return asks_to_forget([said], said if quoted is None else quoted, key, value)


@pytest.mark.parametrize(
    "said",
    [
        "Forget my seat preference.",
        "Please forget that I prefer aisle seats!",
        "Could you please forget which seat I like?",
        "I want you to stop remembering my seat",
        "Don't remember my seats any more.",
        "Delete what you remembered about my seat.",
        "Remove my seat from your memory.",
        "Lösch die Erinnerung an meinen seat",
        "Oublie mes aisle seats",
    ],
)
def test_a_sentence_that_asks_and_names_it_is_enough(said: str) -> None:
    assert forgets(said)


@pytest.mark.parametrize(
    "said",
    [
        "Remove the item from my cart.",
        "Remove the seat from my cart.",
        "Delete the aisle seats from my order.",
        "Clear the seat selection.",
        "I no longer need the aisle seat.",
        "Forget it.",
        "Forget that.",
        "Forget everything.",
        "Forget my meal preference.",
        "Don't forget my seat.",
        "Don’t ever forget my seat preference.",  # noqa: RUF001 - as a telephone writes it
        "Never forget the aisle seats.",
        "You must not delete my seat from your memory.",
        "I always forget my seat number.",
        "Did you forget my seat?",
        "I like the aisle. Forget the rest.",
        "Forget the weather. My seat is on the aisle.",
        "不要忘记靠过道的座位",
        "Vergiss den seat nicht",
        "%",
        "",
    ],
)
def test_any_other_sentence_is_not(said: str) -> None:
    assert not forgets(said)


def test_the_sentence_counts_and_not_what_is_cut_out_of_it() -> None:
    assert forgets("Book Kyoto. And forget the aisle seats, please.", "forget the aisle seats")
    assert not forgets("Don't forget that I prefer aisle seats.", "forget that I prefer aisle")
    assert not forgets("Remove the item. I prefer aisle seats.", "item. I prefer aisle")
    assert not forgets("Forget my seat.", "Forget my meal.")
    assert not forgets("Forget my seat.", " ")


def test_it_is_named_by_its_whole_key_or_by_half_of_what_it_says() -> None:
    assert forgets("Forget my answer style.", key="answer-style", value="Likes lists")
    assert not forgets("Forget my style.", key="answer-style", value="Likes lists")
    assert not forgets("Forget the number of my dog.", key="a", value="Works at night in Berlin")
    assert forgets("Forget that I live in Berlin.", key="k1", value="Lives in Berlin, Germany")
    assert not forgets("Forget Berlin.", key="k1", value="Lives in Berlin near three green parks")
    assert forgets("请忘记靠过道的座位。", key="k1", value="喜欢靠过道的座位")


def test_the_latest_words_are_those_since_somebody_else_spoke() -> None:
    before = Said("Forget my seat.", None)

    assert latest_words([before, Said("a", 0), Said("b", 4), Said("c", 5)]) == ["b", "c"]
    assert latest_words([before, Said("a", 0)]) == ["a"]
    assert latest_words([before]) == []


def test_a_pattern_of_ones_own_takes_the_place_of_ours() -> None:
    assert asks_to_forget(["Wis mijn seat."], "wis mijn seat", "seat", SEAT, r"(?i)\bwis\b")
    assert asks_to_remember("Onthou mijn stoel", r"(?i)\bonthou\b")
