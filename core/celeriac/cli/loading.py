"""How a process that is to run for long gets its code."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import inside the block without searching for garbage.

    Imports make some hundred thousand objects and drop next to none, and to search them again and
    again took a fifth of the time. They stay out of every later search too, which otherwise stops
    a worker's threads for as long as there are objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
