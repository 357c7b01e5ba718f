"""The work after a train step: done before the next step, or in the background beside it."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class FollowUp:
    """Does one step's work at a time, in order; with `beside`, in a thread of its own.

    At most one step's work is open beside the next step. Code that waits for something else calls
    `check` meanwhile, so that an error surfaces at once and not an hour later.

        follow_up.begin(lambda: publish_and_report(step))   # raises the previous step's error
        follow_up.wait()
    """

    def __init__(self, *, beside: bool) -> None:
        self._executor = ThreadPoolExecutor(1, "follow-up") if beside else None
        self._open: Future[None] | None = None

    @property
    def is_beside(self) -> bool:
        """True if the work runs while the next step is trained."""
        return self._executor is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Starts the work once the previous work is done.

        Raises: what the previous work raised, or this work where it is not done beside.
        """
        self.wait()
        if self._executor is None:
            work()
        else:
            self._open = self._executor.submit(work)

    def check(self) -> None:
        """Raises: what the open work has raised, if it is done."""
        if self._open is not None and self._open.done():
            self.wait()

    def wait(self) -> None:
        """Waits until no work is open.

        Raises: what it raised.
        """
        work, self._open = self._open, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Accepts no more work; what is open ends by itself, or with its channel."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
