"""The Celery side: the step task and everything one step needs. `step.take_step` is the main
flow, `install` brings it into an existing Celery application.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac_tasks.hosting import install

__all__ = ["install"]


def __getattr__(name: str) -> object:
    # At its first use: every module in this package would wait for it otherwise.
    if name == "install":
        from celeriac_tasks.hosting import install

        return install
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
