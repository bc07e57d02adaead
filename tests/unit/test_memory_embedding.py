"""Embedders: what they must make, and what the two that come along are good for."""

import math
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from celeriac import MemoryPolicy
from celeriac.errors import EmbedderFailed, InvalidAgent
from celeriac.memory import HashingEmbedder, StaticEmbedder, static_embedder
from celeriac.memory.embedding import Embedder, unit_vectors


class Given:
    """An embedder that makes what it is told to."""

    name = "given"

    def __init__(self, *made: object) -> None:
        self._made = made

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if isinstance(self._made[0], Exception):
            raise self._made[0]
        return list(self._made[: len(texts) or None])  # type: ignore[arg-type]


def likeness(embedder: Embedder, one: str, other: str) -> float:
    first, second = unit_vectors(embedder, [one, other])
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["", " ", "a\0b", "two\nlines", "n" * 201, 3])
def test_a_name_under_which_no_vector_can_be_kept_is_refused(name: Any) -> None:
    embedder = Given([1.0])
    embedder.name = name

    with pytest.raises(InvalidAgent, match="the name of an embedder is a line"):
        MemoryPolicy(embedder=embedder)


def test_numbers_that_no_database_can_hold_are_none_of_a_vector() -> None:
    made = unit_vectors(Given([1.0, 1e-60], [1e-310, 0.0], [3e200, 4e200]), ["a", "b", "c"])

    assert made == [[1, 0], [1, 0], [0.6, 0.8]]


def test_vectors_are_made_one_long_and_zeros_stay() -> None:
    assert unit_vectors(Given([3, 4], [0, 0]), ["a", "b"]) == [[0.6, 0.8], [0, 0]]


@pytest.mark.parametrize(
    "made",
    [
        [[1.0]],
        [[1.0], [1.0, 2.0]],
        [[], []],
        [[math.nan], [1.0]],
        [[math.inf], [1.0]],
        [["x"], [1.0]],
        [RuntimeError("no answer")],
    ],
)
def test_what_are_no_vectors_is_refused_with_the_embedders_name(made: list[object]) -> None:
    with pytest.raises(EmbedderFailed, match="embedder given "):
        unit_vectors(Given(*made), ["a", "b"])


@pytest.mark.parametrize("embedder", [StaticEmbedder(), HashingEmbedder()])
def test_no_text_is_one_that_cannot_be_embedded(embedder: Embedder) -> None:
    odd = ["", "\x00", "half \ud83d of a smile", "x" * 1_000_000, "😀" * 5000]

    assert {len(vector) for vector in unit_vectors(embedder, odd)} == {256}


def test_the_model_of_the_package_tells_what_means_alike() -> None:
    model = StaticEmbedder()
    asks = "What do I like to eat?"

    assert likeness(model, asks, "Is vegetarian") > likeness(model, asks, "Prefers aisle seats")
    assert likeness(model, asks, "Is vegetarian") > likeness(model, asks, "Lives in Berlin")
    assert "wordllama" in model.name


def test_hashing_tells_what_is_written_alike_and_the_same_everywhere() -> None:
    hashing = HashingEmbedder(64)

    assert likeness(hashing, "aisle seats", "Aisle seat!") > likeness(hashing, "aisle", "window")
    (vector,) = unit_vectors(hashing, ["seat"])
    assert [at for at, number in enumerate(vector) if number] == [7, 27, 35, 54, 58]
    assert unit_vectors(hashing, [""]) == [[0.0] * 64]


def test_without_the_package_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(static_embedder, "version", missing)

    with pytest.raises(InvalidAgent, match=r"celeriac\[vectors\]"):
        StaticEmbedder()


def test_a_policy_takes_an_embedder_and_is_known_by_its_name() -> None:
    plain, hashed = MemoryPolicy(), MemoryPolicy(embedder=HashingEmbedder())

    assert "embedder" not in plain.to_json()
    assert hashed.to_json()["embedder"] == "hashing-1-256"
    assert plain.version != hashed.version
    with pytest.raises(InvalidAgent, match="name and a method"):
        MemoryPolicy(embedder=object())  # type: ignore[arg-type]  # what is refused


def test_an_agent_loads_no_model_before_it_embeds() -> None:
    StaticEmbedder()

    assert sys.modules.get("wordllama") is None or StaticEmbedder()._model is None
