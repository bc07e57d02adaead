"""How a process that is to run for long gets its code."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import inside the block without searching for garbage.

    Imports make some hundred thousand objects and drop next to none: to search them again and again
    took a fifth of the time. Frozen, they stay out of every later search too, which would stop a
    worker's threads the longer the more there is to search.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
