"""A small model from a package, which needs no network: `pip install 'celeriac[vectors]'`.

The model is that of [WordLlama](https://pypi.org/project/wordllama/) (MIT license), whose wheel
carries its weights: 16 MB, one vector of 256 numbers for each token of its vocabulary. A text's
vector is the mean of its tokens' vectors, so word order says nothing; it takes a fraction of a
millisecond on one core. It knows English best, and some of other languages.
"""

import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from celeriac.errors import InvalidAgent

DIMENSIONS = 256


class StaticEmbedder:
    """Raises `InvalidAgent` where the package is missing. The model is loaded at the first use."""

    def __init__(self) -> None:
        try:
            self._version = version("wordllama")
        except PackageNotFoundError:
            raise InvalidAgent(
                "StaticEmbedder needs the package wordllama: install 'celeriac[vectors]' wherever "
                "this agent is loaded"
            ) from None
        self._lock = threading.Lock()
        self._model: Any = None

    @property
    def name(self) -> str:
        return f"wordllama-{self._version}-l2_supercat-{DIMENSIONS}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        made: list[list[float]] = self._loaded().embed(list(texts)).tolist()
        return made

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                # Takes a second, and most processes that know the agent embed nothing.
                import wordllama  # type: ignore[import-untyped]  # it has no types

                # It looks for its own tokenizer in a cache, or downloads it. The wheel has both
                # files, laid out as in that cache.
                folder = Path(wordllama.__file__).parent
                self._model = wordllama.WordLlama.load(
                    cache_dir=folder, dim=DIMENSIONS, disable_download=True
                )
            return self._model
