"""Which words of a user let a model forget a memory, and which serve for nothing of the kind."""

# features: 000-18, 000-21
import pytest

from celeriac.memory.asking import (
    asks_to_forget,
    asks_to_forget_all,
    asks_to_remember,
    latest_words,
)
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


@pytest.mark.parametrize(
    "said",
    [
        "Forget everything you know about me.",
        "Please forget everything you know about me. Thank you!",
        "I'd like you to forget everything you've stored about me, please.",
        "Could you forget all about me?",
        "Delete all my memories.",
        "Erase everything you remember about me right now",
        "Vergiss bitte alles, was du über mich weißt.",
        "Oublie tout ce que tu sais de moi, merci.",
        "Olvida todo lo que sabes sobre mí",
        "请忘记关于我的一切。",
        "私について覚えていることを全部忘れてください。",
    ],
)
def test_words_that_ask_to_forget_all_and_nothing_else_are_enough(said: str) -> None:
    assert asks_to_forget_all([said], said)


@pytest.mark.parametrize(
    "said",
    [
        "Forget it.",
        "Forget everything.",
        "Forget everything I said.",
        "Forget everything you know about my seat.",
        "Forget everything you know about me and trains.",
        "Forget everything you know about me but my name.",
        "Forget everything you know about me from last week.",
        "Forget everything Bob told you about me.",
        "Never forget everything you know about me.",
        "Don't forget everything you know about me.",
        "I forget everything about me.",
        "Forget everything you know about me?",
        "Did you forget everything you know about me?",
        "If I ask, forget everything you know about me.",
        "Delete everything in my cart.",
        "Remove all my files.",
        "'Forget everything you know about me.'",
        '"Forget everything you know about me."',
        "> Forget everything you know about me.",
        "「私について覚えていることを全部忘れてください」",
        "Hi!\n> Forget everything you know about me.",
        "\u2039Forget everything you know about me.\u203a",
        "\u201aForget everything you know about me.\u2018",
        "\uff02Forget everything you know about me.\uff02",
        "\u275dForget everything you know about me.\u275e",
        "[Forget everything you know about me]",
        "~~Forget everything you know about me~~",
        "What does this mean: forget everything you know about me",
        "Sum this up.\n\nForget everything you know about me.",
        "Forget everything you know about me.\n\nBook Kyoto.",
        "不要忘记关于我的一切",
        "%",
        "",
    ],
)
def test_words_that_say_anything_beside_it_do_not_have_all_forgotten(said: str) -> None:
    assert not asks_to_forget_all([said], said)
    assert not asks_to_forget_all([said], "forget everything you know about me")


def test_all_that_the_user_said_last_asks_for_it_and_the_model_quotes_it() -> None:
    asks = "Forget everything you know about me."

    assert asks_to_forget_all([asks, asks], asks)
    assert not asks_to_forget_all([asks, "No. Book Kyoto."], asks)
    assert not asks_to_forget_all(["Sum up what comes now.", asks], asks)
    assert not asks_to_forget_all([asks], "forget my seat")
    assert not asks_to_forget_all([asks], " ")
    assert not asks_to_forget_all([], asks)
    assert not asks_to_forget_all([asks], asks, r"(?!)"), "a policy's own pattern counts here, too"


def test_the_latest_words_are_those_since_somebody_else_spoke() -> None:
    before = Said("Forget my seat.", None)

    assert latest_words([before, Said("a", 0), Said("b", 4), Said("c", 5)]) == ["b", "c"]
    assert latest_words([before, Said("a", 0)]) == ["a"]
    assert latest_words([before]) == []


def test_a_pattern_of_ones_own_takes_the_place_of_ours() -> None:
    assert asks_to_forget(["Wis mijn seat."], "wis mijn seat", "seat", SEAT, r"(?i)\bwis\b")
    assert asks_to_remember("Onthou mijn stoel", r"(?i)\bonthou\b")
