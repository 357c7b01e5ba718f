"""Work on tasksets that goes on when whoever asked for it has gone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from trinity.errors import PreconditionFailed, TrinityError
from trinity.waits import Waits

logger = logging.getLogger(__name__)

SHOWN_AFTER_SECONDS = 1.0
MAX_JOBS = 2
"""At once; each takes a connection, and some a process."""


@dataclass(slots=True)
class Job:
    """Something that is being done to a taskset."""

    num_rows: int = 0
    """Rows done so far."""
    error: Exception | None = None
    """Kept until it is told to somebody."""


Work = Callable[[Job], Coroutine[Any, Any, None]]


class BackgroundJobs:
    """Each job once at a time, whoever asks for it; what came of it is told to whoever asks next.

    job = jobs.ask(("default", "source"), work, name="taskset sums", reason="to read it")
    """

    def __init__(
        self, *, workers: asyncio.TaskGroup, on_over: Callable[[], None], waits: Waits
    ) -> None:
        self._workers = workers
        self._on_over = on_over
        self._waits = waits
        self._turns = asyncio.Semaphore(MAX_JOBS)
        self._jobs: dict[tuple[str, ...], Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop; what is not done whole is done again some other time."""
        for task in self._tasks:
            task.cancel()

    def ask(self, key: tuple[str, ...], work: Work, *, name: str, reason: str) -> Job:
        """The job, begun if it does not go on.

        Raises: what the job ended with since it was last asked for.
        """
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job()
            task = self._workers.create_task(self._run(key, job, work, name, reason), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if job.error is not None:
            del self._jobs[key]
            raise job.error
        return job

    async def _run(
        self, key: tuple[str, ...], job: Job, work: Work, name: str, reason: str
    ) -> None:
        """Work, and tell who waits when it is over; an error belongs to the taskset."""
        try:
            with self._waits.if_longer(SHOWN_AFTER_SECONDS, for_="reader", reason=reason):
                async with self._turns:
                    await work(job)
            del self._jobs[key]
        except TrinityError as error:
            job.error = error
        except Exception as error:  # a worker's edge: one taskset must not stop the process
            logger.exception("a taskset cannot be read", extra={"taskset": name})
            job.error = PreconditionFailed(f"{name}: {error}")
        self._on_over()
