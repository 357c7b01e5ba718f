"""Background jobs on tasksets, which continue after the requesting client has gone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from trinity.errors import PreconditionFailed, TrinityError
from trinity.runtime.presence import WaitRegistry

logger = logging.getLogger(__name__)

SHOWN_AFTER_SECONDS = 1.0
MAX_JOBS = 2
"""Concurrent jobs; each takes a connection, and some a process."""


@dataclass(slots=True)
class TasksetJob:
    """A job on a taskset."""

    num_rows: int = 0
    """Rows done so far."""
    error: Exception | None = None
    """Kept until a caller of `get_or_start` receives it."""


TasksetWork = Callable[[TasksetJob], Coroutine[Any, Any, None]]


class BackgroundJobs:
    """Runs each job once at a time; an error is raised to the next caller that asks for it.

    job = jobs.get_or_start(("default", "source"), work, name="taskset sums", reason="to read it")
    """

    def __init__(
        self, *, workers: asyncio.TaskGroup, on_over: Callable[[], None], waits: WaitRegistry
    ) -> None:
        self._workers = workers
        self._on_over = on_over
        self._waits = waits
        self._turns = asyncio.Semaphore(MAX_JOBS)
        self._jobs: dict[tuple[str, ...], TasksetJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def cancel_jobs(self) -> None:
        """Cancels all jobs; unfinished ones start over on the next request."""
        for task in self._tasks:
            task.cancel()

    def get_or_start(
        self, key: tuple[str, ...], work: TasksetWork, *, name: str, reason: str
    ) -> TasksetJob:
        """Returns the job, and starts it unless it is running.

        Raises: the error that the job has ended with since it was last asked for.
        """
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = TasksetJob()
            task = self._workers.create_task(self._run(key, job, work, name, reason), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if job.error is not None:
            del self._jobs[key]
            raise job.error
        return job

    async def _run(
        self, key: tuple[str, ...], job: TasksetJob, work: TasksetWork, name: str, reason: str
    ) -> None:
        """Runs the work and wakes waiters at its end; an error is stored with the job."""
        try:
            with self._waits.waiting_if_longer(SHOWN_AFTER_SECONDS, for_="reader", reason=reason):
                async with self._turns:
                    await work(job)
            del self._jobs[key]
        except TrinityError as error:
            job.error = error
        except Exception as error:  # edge of the worker: one taskset must not stop the process
            logger.exception("a taskset cannot be read", extra={"taskset": name})
            job.error = PreconditionFailed(f"{name}: {error}")
        self._on_over()
