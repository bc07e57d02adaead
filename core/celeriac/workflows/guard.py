"""Keeps out of a workflow's code what its log would not know of: asyncio, and calls of tools that
each replay would make again.

A workflow runs without an event loop, and sometimes in a thread that has one for other things:
there `asyncio.create_task` would start what no replay knows of. So while the code runs, the loop of
its thread is one that refuses everything.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast


class _Refusing:
    def __getattr__(self, name: str) -> NoReturn:
        raise TypeError(
            "a workflow runs without asyncio: it can await what ctx gives it, and nothing else. "
            "Use ctx.sleep, ctx.gather and ctx.first; do the rest in a tool, called by ctx.activity"
        )


_REFUSING: Any = _Refusing()


@contextmanager
def guarded() -> Iterator[None]:
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, _REFUSING))
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


def refuse_call(tool: str) -> None:
    """Raise `TypeError` if this is a workflow's code."""
    if cast(Any, asyncio._get_running_loop()) is _REFUSING:
        raise TypeError(
            f"a workflow has called the tool {tool} itself, and would again with each replay: "
            f"write `await ctx.activity({tool}, ...)`"
        )
