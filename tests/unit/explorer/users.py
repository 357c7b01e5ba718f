"""A folder of users' files, and the processes that run what is in it."""

import contextlib
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
