"""Calls into torch that may block for ever, such as to a peer that is frozen or whose host is gone.

Its limits of time bound some of its waits: to connect to a store, and to ask it, is none of them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from trinity.errors import TransferFailed

T = TypeVar("T")
LATE_SECONDS = 1.0
"""What ends by itself in time is not ended from outside."""


def in_time(
    seconds: float, purpose: str, work: Callable[[], T], *, abort: Callable[[], None] | None = None
) -> T:
    """What `work` answers, from a thread that is left behind if it is late.

    Raises: TransferFailed, also for what else it raises.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except TransferFailed as error:
            answer.set_exception(error)
        except Exception as error:  # the edge of torch's collectives, which raise RuntimeErrors
            answer.set_exception(TransferFailed(f"could not {purpose}: {_first_line(error)}"))

    threading.Thread(target=run, name="transfer", daemon=True).start()
    try:
        return answer.result(seconds + LATE_SECONDS)
    except TimeoutError:
        if abort is not None:
            abort()
        raise TransferFailed(f"could not {purpose} in {seconds:g} s") from None


def _first_line(error: Exception) -> str:
    """What torch says goes on with a stack of its own."""
    return str(error).partition("\n")[0]
