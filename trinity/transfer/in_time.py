"""Time limits for calls into torch that may block without end, e.g. if a peer is frozen or gone.

torch's own timeouts cover only some of its waits: connecting to a store and querying it are not
among them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from trinity.errors import TransferFailed

T = TypeVar("T")
LATE_SECONDS = 1.0
"""Grace period, so that a call with a timeout of its own can end by itself."""


def in_time(
    seconds: float, purpose: str, work: Callable[[], T], *, abort: Callable[[], None] | None = None
) -> T:
    """Returns the result of `work`, from a thread that is abandoned if it is late.

    Raises: TransferFailed, also for other errors of `work`.
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
    """Drops the stack trace that torch appends to its messages."""
    return str(error).partition("\n")[0]
