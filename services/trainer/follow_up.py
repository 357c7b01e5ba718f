"""What follows a train step: done before the next one, or beside it where rollouts run ahead."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class FollowUp:
    """Does one step's work at a time, in order; with `beside`, in a thread of its own.

    Beside the next step no more than one step's work is open, and whoever waits for something else
    looks in with `check`, so that an error is not found out about an hour later.

        follow_up.begin(lambda: publish_and_report(step))   # raises what the step before's raised
        follow_up.wait()
    """

    def __init__(self, *, beside: bool) -> None:
        self._executor = ThreadPoolExecutor(1, "follow-up") if beside else None
        self._open: Future[None] | None = None

    @property
    def is_beside(self) -> bool:
        """Whether work goes on while the next step is trained."""
        return self._executor is not None

    def begin(self, work: Callable[[], None]) -> None:
        """Do it once the work before is done.

        Raises: what the work before raised, or this one where it is not done beside.
        """
        self.wait()
        if self._executor is None:
            work()
        else:
            self._open = self._executor.submit(work)

    def check(self) -> None:
        """Raises: what the open work has raised."""
        if self._open is not None and self._open.done():
            self.wait()

    def wait(self) -> None:
        """Until nothing is open.

        Raises: what it raised.
        """
        work, self._open = self._open, None
        if work is not None:
            work.result()

    def close(self) -> None:
        """Begin nothing more; what is open ends by itself, or with its channel."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
