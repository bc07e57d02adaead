"""Vectors of texts, by which memories are found that say the same in other words.

    Agent(..., memory=MemoryPolicy(embedder=StaticEmbedder()))

An embedder is the user's choice, and may be any object with a name and a method. Two come with
Celeriac: `celeriac.memory.static_embedder`, a small model from a package, and the one below, which
knows no meanings.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from celeriac.errors import EmbedderFailed, InvalidAgent
from celeriac.memory.words import words

MAX_DIMENSIONS = 16_000
"""As many as the type `vector` of pgvector takes."""
MAX_CHARACTERS = 4000
"""Of a text; a longer one is cut. As many as a memory has at most by default."""

DECIMAL_PLACES = 12
"""Of a number in a vector of length 1: more than a `real` keeps."""
MAX_NAME_CHARACTERS = 200

Vector = Sequence[float]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of one length; those of texts that mean alike point the same way.

    Called from several threads of a worker at once, with texts of one user at a time, while no
    transaction is open. It may reach a server, and then bounds its own time: the step waits for it.
    Whatever it raises, memories are found by their words alone.
    """

    @property
    def name(self) -> str:
        """The model, its version and how many numbers there are in a vector: a vector is compared
        only with those that were made under the same name."""
        ...

    def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        """One vector for each text, in their order."""
        ...


def checked_embedder(embedder: object) -> Embedder:
    """Raises `InvalidAgent` for what is none, or has no name to keep its vectors under."""
    if not isinstance(embedder, Embedder):
        raise InvalidAgent(f"embedder={embedder!r} has not a name and a method `embed`")
    name: object = embedder.name
    is_name = isinstance(name, str) and name.isprintable() and name.strip()
    if not is_name or len(str(name)) > MAX_NAME_CHARACTERS:
        raise InvalidAgent(
            f"the name of an embedder is a line of 1 to {MAX_NAME_CHARACTERS} characters, "
            f"and not {name!r}"
        )
    return embedder


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """The vectors of these texts, made one long; one of nothing but zeros stays as it is.

    One text that an embedder cannot take would leave all others without a vector, again and again:
    so each is cut, and halves of characters in it are replaced.

    Raises `EmbedderFailed` for what the embedder raises, and for what are no vectors.
    """
    try:
        taken = [text[:MAX_CHARACTERS].encode(errors="replace").decode() for text in texts]
        made = [[float(number) for number in vector] for vector in embedder.embed(taken)]
    except Exception as error:
        raise EmbedderFailed(f"embedder {embedder.name} failed: {error}") from error
    sizes = {len(vector) for vector in made}
    if len(made) != len(texts) or len(sizes) > 1 or not sizes <= set(range(1, MAX_DIMENSIONS + 1)):
        raise EmbedderFailed(
            f"embedder {embedder.name} made {len(made)} vectors of {sorted(sizes)} numbers from "
            f"{len(texts)} texts; there must be one for each, all of one length up to "
            f"{MAX_DIMENSIONS}"
        )
    return [_unit(embedder, vector) for vector in made]


def _unit(embedder: Embedder, vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise EmbedderFailed(f"embedder {embedder.name} made a vector that holds no numbers")
    # What is next to nothing becomes it: PostgreSQL takes no `real` below 1e-45 but 0.
    return [round(number / (length or 1.0), DECIMAL_PLACES) for number in vector]


class HashingEmbedder:
    """Vectors of which words a text holds, and of their parts; it knows no meanings.

    Nothing has to be installed or loaded, and the same text gives the same vector everywhere. It
    finds other forms of a word and misspelt ones, and nothing else that the full-text search would
    not find: for tests, and to try things out.
    """

    def __init__(self, dimensions: int = 256) -> None:
        self._dimensions = dimensions

    @property
    def name(self) -> str:
        return f"hashing-1-{self._dimensions}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self._dimensions
        for word in words(text):
            marked = f" {word} "
            for part in (marked, *(marked[at : at + 3] for at in range(len(marked) - 2))):
                digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
                number = int.from_bytes(digest, "big")
                vector[number // 2 % self._dimensions] += 1.0 if number % 2 else -1.0
        return vector
