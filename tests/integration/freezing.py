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

from tests.chaos.patching import around, patch

VARIABLE = "FREEZE_AFTER"
MODULE = "tests.integration.freezing"


async def stopped(pid: int) -> None:
    """Wait until this child has stopped itself."""
    _, status = await asyncio.to_thread(os.waitpid, pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def _freeze(_: object, *, calls: "count[int]") -> None:
    if next(calls) == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main = importlib.import_module(f"{sys.argv.pop(1)}.__main__").main
    patch(os.environ[VARIABLE], partial(around, after=partial(_freeze, calls=count())))
    sys.exit(main())
