"""A folder of users' files, and the processes that run what is in it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.explorer.rollout.user_process_pool import UserProcessPool
from trinity.plugins import PLUGIN_DIRS_VARIABLE


@contextlib.contextmanager
def plugin_folder(folder: Path, **files: str) -> Iterator[None]:
    """Has these files in a plugin folder, by their names without `.py`."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGIN_DIRS_VARIABLE, str(folder))
        yield


@asynccontextmanager
async def user_processes(max_processes: int = 2) -> AsyncIterator[UserProcessPool]:
    """Processes that end with the block."""
    pool = UserProcessPool(max_processes=max_processes)
    try:
        yield pool
    finally:
        await pool.close()


class LoopLag:
    """Measures for how long the event loop was held up at most.

    async with LoopLag() as lag: ...
    lag.longest
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> "LoopLag":
        self._task = asyncio.create_task(self._measure())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _measure(self) -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.monotonic() - begun)
