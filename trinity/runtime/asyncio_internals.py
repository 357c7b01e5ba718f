"""Operations of asyncio that have no public name.

This file alone uses its insides: `tasks._unregister_task` and a process's `_transport`. They hold
for Python 3.11 to 3.14; tests/unit/runtime/test_library_internals.py fails with another version.
"""

import asyncio
from asyncio.subprocess import Process
from typing import Any


def abandon_task(task: asyncio.Task[Any]) -> None:
    """Makes the closing event loop ignore a task that does not end when it is cancelled.

    `asyncio.run` would never stop waiting for it, and there is no public way to remove a task.
    """
    asyncio.tasks._unregister_task(task)


def close_pipes(process: Process) -> None:
    """Closes this end of a process's pipes, which `Process.wait` would wait for.

    A descendant that was moved to another process group may hold the other end.
    """
    process._transport.close()  # type: ignore[attr-defined]  # typeshed leaves it out
