"""A service that stops itself in the middle of a transaction.

FREEZE_AFTER=module:function python -m tests.integration.freezing services.buffer
"""

import asyncio
import importlib
import os
import signal
import sys
from functools import partial
from itertools import count

import psutil

from tests.chaos.patching import around, patch

VARIABLE = "FREEZE_AFTER"
MODULE = "tests.integration.freezing"
POLL_SECONDS = 0.02


async def stopped(pid: int) -> None:
    """Wait until a process has stopped itself."""
    process = psutil.Process(pid)
    while process.status() != psutil.STATUS_STOPPED:
        assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE, "it has ended"
        await asyncio.sleep(POLL_SECONDS)


def _freeze(_: object, *, calls: "count[int]") -> None:
    if next(calls) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main = importlib.import_module(f"{sys.argv.pop(1)}.__main__").main
    patch(os.environ[VARIABLE], partial(around, after=partial(_freeze, calls=count())))
    sys.exit(main())
