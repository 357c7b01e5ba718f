"""Awaits the results of asynchronous rewards where a reward is called without `await`."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from functools import cache
from typing import TypeVar

ValueT = TypeVar("ValueT")


def complete(result: ValueT | Awaitable[ValueT]) -> ValueT:
    """Returns a result, for which it waits if it has to be awaited.

    All of them are awaited on one loop, which a process keeps: clients may stay open on it.
    """
    if not inspect.isawaitable(result):
        return result

    async def awaited() -> ValueT:
        return await result

    return asyncio.run_coroutine_threadsafe(awaited(), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
