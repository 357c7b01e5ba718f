"""Handle for the process that runs a task pipeline over the rows of a taskset."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from services.buffer.child_process import end_child, start_child
from services.buffer.domain.samples import storable
from services.buffer.store.task_pipelines import PipelineCounts
from trinity.errors import PreconditionFailed, Unavailable
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

MODULE = "trinity.task_operators.worker"
MAX_ANSWER_BYTES = 1024 * 1024
"""Limit of one line, without the rows after it; twice that is buffered while Postgres is slow."""
WORD_BYTES = 8
CALL, DONE, ROWS, SUMMARY, ERROR, AWAY = b"C", b"D", b"R", b"S", b"E", b"U"


class PipelineDied(Exception):
    """Raised when its process was killed from outside; a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """Time and memory limits of users' task operators."""

    call_seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PipedRows:
    """A chunk of rows that the pipeline keeps."""

    numbers: bytes
    """Their row numbers in the source, 8 bytes each."""
    lines: bytes


@dataclass(slots=True)
class PipelineProcess:
    """The process for one taskset; it holds rows on disk until their order is known.

    async with PipelineProcess(pipeline, limits) as process:
        feeding = group.create_task(process.feed(rows))
        async for row in process.rows(): ...
    """

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    counts: PipelineCounts | None = None
    """Set after all rows were yielded."""
    _process: Process | None = None
    _calls: str = ""
    """The user's operator that is being called, if any."""

    async def __aenter__(self) -> Self:
        argv = [sys.executable, "-m", MODULE, str(self.limits.memory_bytes)]
        self._process = await start_child(argv, limit=MAX_ANSWER_BYTES)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await end_child(self._process)

    async def feed(self, rows: AsyncIterator[bytes]) -> None:
        """Writes all rows to the process; if it has ended, `rows` reports why."""
        assert self._process is not None and self._process.stdin is not None
        stdin = self._process.stdin
        with contextlib.suppress(ConnectionError):
            stdin.write(self.pipeline.model_dump_json().encode() + b"\n")
            async for lines in rows:
                stdin.write(lines)
                await stdin.drain()
            await stdin.drain()
            stdin.close()

    async def rows(self) -> AsyncGenerator[PipedRows]:
        """Yields the rows that the pipeline keeps, in order, in chunks.

        Raises: PreconditionFailed for an error of an operator, Unavailable when a service that an
        operator needs does not answer, PipelineDied.
        """
        while (line := await self._line()).endswith(b"\n"):
            letter, text = line[:1], line[2:-1]
            if letter == ROWS:
                num_rows, num_bytes = map(int, text.split())
                numbers = await self._exactly(num_rows * WORD_BYTES)
                yield PipedRows(numbers, await self._exactly(num_bytes))
            elif letter == SUMMARY:
                self.counts = PipelineCounts(**json.loads(text))
            elif letter == ERROR:
                raise PreconditionFailed(f"task_pipeline: {storable(text.decode())}")
            elif letter == AWAY:
                raise Unavailable(f"task_pipeline: {storable(text.decode())}")
            else:
                self._calls = text.decode() if letter == CALL else ""
        if self.counts is None:
            raise self._died()

    async def _exactly(self, num_bytes: int) -> bytes:
        try:
            return await self._stdout.readexactly(num_bytes)
        except asyncio.IncompleteReadError as error:
            raise self._died() from error

    async def _line(self) -> bytes:
        """Returns the next line, empty at the end; calls of users' operators have a time limit."""
        seconds = self.limits.call_seconds if self._calls else None
        try:
            async with asyncio.timeout(seconds):
                return await self._stdout.readline()
        except TimeoutError as error:
            raise PreconditionFailed(
                f"task_pipeline: task operator {self._calls} did not answer within {seconds:g} s"
            ) from error

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process is not None and self._process.stdout is not None
        return self._process.stdout

    def _died(self) -> PipelineDied:
        called = f" while {self._calls} was called" if self._calls else ""
        return PipelineDied(f"task_pipeline: the process that runs it ended{called}")
