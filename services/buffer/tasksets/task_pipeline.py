"""Handles for the processes that read a taskset's rows, and that run a task pipeline over them."""

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from services.buffer.domain.tasks import sanitize_text
from services.buffer.store.tasksets import (
    PipelineCounts,
    copy_rows,
    insert_pipeline,
    insert_source_rows,
)
from services.buffer.tasksets.read_rows import UNREAD_MARK
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tenants import SHARES_ALL, WorkerIsolation
from services.buffer.workers.process import reader_environment
from trinity.config.training_rows import SkippedRows
from trinity.errors import PreconditionFailed, Unavailable, UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.runtime.process.box import Box
from trinity.runtime.process.child_process import (
    OWN_IDENTITY,
    Identity,
    end_child,
    module_command,
    start_child,
)
from trinity.runtime.sql import Connection
from trinity.user_code.worker_process import WROTE_TO_CHANNEL

READER_MODULE = "services.buffer.tasksets.read_rows"
CHUNK_BYTES = 256 * 1024
KEPT_BYTES = 64 * 1024
"""Bytes of its standard error that are kept; the last line is the error."""
logger = logging.getLogger(__name__)
MODULE = "trinity.operators.tasks.worker"
MAX_ANSWER_BYTES = 1024 * 1024
"""Limit of one line, without the rows after it; twice that is buffered while Postgres is slow."""
MAX_ROWS_BYTES = 1024**3
"""Bytes of rows that come together: 4 MiB, or a single row."""
WORD_BYTES = 8
ValueT = TypeVar("ValueT")
CALL, DONE, ROWS, SUMMARY, ERROR, AWAY = b"C", b"D", b"R", b"S", b"E", b"U"
PART_BYTES = 512 * 1024
"""Bytes of source row numbers that are collected before they are stored."""
MAX_TRIES = 3
"""Tries of a process that is killed from outside; errors of an operator are not retried."""


@dataclass(frozen=True, slots=True)
class TasksetRowReader:
    """A running reader process."""

    child: Process
    rows: asyncio.StreamReader
    stderr: asyncio.Task[bytes]

    async def read_lines(self) -> AsyncIterator[bytes]:
        """Yields the rows as they arrive: chunks of whole lines with their ends."""
        parts: list[bytes] = []
        while chunk := await self.rows.read(CHUNK_BYTES):
            end = chunk.rfind(b"\n") + 1
            if end:
                yield b"".join([*parts, chunk[:end]])
                parts = []
            parts.append(chunk[end:])

    async def wait_for_exit(self, name: str) -> SkippedRows | None:
        """Waits for the exit of the reader; returns the rows that it left out, if any.

        Files that it left out are logged.

        Raises: PreconditionFailed with the reader's error about the data.
        """
        errors = (await self.stderr).decode(errors="replace").strip()
        for line in errors.splitlines():
            if line.startswith(UNREAD_MARK):
                extra = {"taskset": name, "detail": line.removeprefix(UNREAD_MARK)}
                logger.warning("files next to the shards of a taskset are not read", extra=extra)
        if await self.child.wait() == 0:
            return SkippedRows.from_lines(errors)
        reason = (
            errors.splitlines()[-1] if errors else f"the reader ended with {self.child.returncode}"
        )
        raise PreconditionFailed(f"taskset {name}: {reason}")


@asynccontextmanager
async def open_taskset_row_reader(source: RowSource) -> AsyncIterator[TasksetRowReader]:
    """Runs a reader of these rows, which ends with the block.

    Its standard error is drained all the time, because a full pipe would block it.
    """
    argv = module_command(READER_MODULE)
    child = await start_child(argv, limit=CHUNK_BYTES, env=reader_environment(), stderr=PIPE)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    errors = asyncio.create_task(_last_of(child.stderr))
    try:
        child.stdin.write(source.to_json().encode())
        child.stdin.close()
        yield TasksetRowReader(child, child.stdout, errors)
    finally:
        errors.cancel()
        await end_child(child)
        await asyncio.gather(errors, return_exceptions=True)


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(CHUNK_BYTES):
        kept = (kept + chunk)[-KEPT_BYTES:]
    return kept


class TaskPipelineProcessDied(Exception):
    """Raised when its process was killed from outside; a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """Time and memory limits of users' task operators."""

    call_seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A chunk of rows that the pipeline keeps."""

    numbers: bytes
    """Their row numbers in the source, 8 bytes each."""
    lines: bytes


@dataclass(slots=True)
class TaskPipelineProcess:
    """The process for one taskset; it holds rows on disk until their order is known.

    async with TaskPipelineProcess(pipeline, limits) as process:
        feeding = group.create_task(process.feed(rows))
        async for row in process.rows(): ...
    """

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    isolation: WorkerIsolation = SHARES_ALL
    counts: PipelineCounts | None = None
    """Set after all rows were yielded."""
    _process: Process | None = None
    _folder: "tempfile.TemporaryDirectory[str] | None" = None
    """The folder for its rows: its box has little memory for files."""
    _calls: str = ""
    """The user's operator that is being called, if any."""

    async def __aenter__(self) -> Self:
        argv = module_command(MODULE, str(self.limits.memory_bytes))
        self._folder = tempfile.TemporaryDirectory(prefix="trinity-rows-")
        try:
            identity = await self._identity(self._folder.name)
            self._process = await start_child(
                argv,
                limit=MAX_ANSWER_BYTES,
                env=self.isolation.environment() | {"TMPDIR": self._folder.name},
                identity=identity,
            )
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    async def _identity(self, folder: str) -> Identity | Box:
        if not any(operator.is_own for operator in self.pipeline.operators):
            return OWN_IDENTITY
        try:
            identity = await self.isolation.identity(self.limits.memory_bytes, folder)
        except UserError as error:
            raise PreconditionFailed(f"task_pipeline: {error}") from error
        os.chown(folder, *identity.owner)
        return identity

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            await end_child(self._process)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.cleanup)

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

    async def rows(self) -> AsyncGenerator[KeptRows]:
        """Yields the rows that the pipeline keeps, in order, in chunks.

        Raises: PreconditionFailed for an error of an operator, Unavailable when a service that an
        operator needs does not answer, TaskPipelineProcessDied.
        """
        while (line := await self._line()).endswith(b"\n"):
            letter, text = line[:1], line[2:-1]
            if letter == ROWS:
                num_rows, num_bytes = _of_worker(partial(_two_numbers, text))
                numbers = await self._exactly(num_rows * WORD_BYTES)
                yield KeptRows(numbers, await self._exactly(num_bytes))
            elif letter == SUMMARY:
                self.counts = _of_worker(partial(_counts, text))
            elif letter == ERROR:
                raise PreconditionFailed(f"task_pipeline: {sanitize_text(text.decode())}")
            elif letter == AWAY:
                raise Unavailable(f"task_pipeline: {sanitize_text(text.decode())}")
            elif letter in (CALL, DONE):
                self._calls = text.decode() if letter == CALL else ""
            else:
                raise PreconditionFailed(f"task_pipeline: {WROTE_TO_CHANNEL}")
        if self.counts is None:
            raise self._died()

    async def _exactly(self, num_bytes: int) -> bytes:
        if not 0 <= num_bytes <= MAX_ROWS_BYTES:
            raise PreconditionFailed(f"task_pipeline: {WROTE_TO_CHANNEL}")
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

    def _died(self) -> TaskPipelineProcessDied:
        called = f" while {self._calls} was called" if self._calls else ""
        return TaskPipelineProcessDied(f"task_pipeline: the process that runs it ended{called}")


def _of_worker(read: Callable[[], ValueT]) -> ValueT:
    """Parses a line of the worker.

    Raises: PreconditionFailed if its worker does not write such lines.
    """
    try:
        return read()
    except (TypeError, ValueError) as error:
        raise PreconditionFailed(f"task_pipeline: {WROTE_TO_CHANNEL}") from error


def _two_numbers(text: bytes) -> tuple[int, int]:
    first, second = map(int, text.split())
    return first, second


def _counts(text: bytes) -> PipelineCounts:
    return PipelineCounts(**json.loads(text))


@dataclass(frozen=True, slots=True)
class TaskPipelineRun:
    """A task pipeline with its input."""

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    read_lines: Callable[[], AsyncGenerator[bytes]]
    """Yields all rows, from the first on each call: chunks of lines."""
    isolation: WorkerIsolation = SHARES_ALL


async def copy_kept_rows(
    connection: Connection, tenant: str, taskset_id: str, run: TaskPipelineRun
) -> None:
    """Stores the rows that the pipeline keeps, in order, and counts of the others.

    Raises: PreconditionFailed for an error of the pipeline or in the rows.
    """
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            async with connection.savepoint():
                await _copy(connection, tenant, taskset_id, run)
            return
        except TaskPipelineProcessDied as error:
            if not tries_left:
                raise PreconditionFailed(f"{error}, {MAX_TRIES} times") from error
            logger.warning("a task pipeline is restarted", extra={"why": str(error)})


async def _copy(connection: Connection, tenant: str, taskset_id: str, run: TaskPipelineRun) -> None:
    async with (
        aclosing(run.read_lines()) as rows,
        TaskPipelineProcess(run.pipeline, run.limits, run.isolation) as process,
    ):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(process.feed(rows))
                await _store(connection, tenant, taskset_id, process)
        except ExceptionGroup as errors:
            # The error of the source comes first: if there are two, it caused the other.
            raise errors.exceptions[0] from errors
        assert process.counts is not None
        counts = process.counts
    await insert_pipeline(connection, tenant, taskset_id, counts)


async def _store(
    connection: Connection, tenant: str, taskset_id: str, process: TaskPipelineProcess
) -> None:
    """Stores rows and their source numbers alternately, so that few of them are in memory."""
    num_rows = 0
    async with aclosing(process.rows()) as rows:
        while True:
            first, numbers = num_rows, bytearray()
            lines = _noted(rows, numbers)
            num_rows = await copy_rows(connection, tenant, taskset_id, lines, first=first)
            if not numbers:
                return
            part = bytes(numbers)
            await insert_source_rows(connection, tenant, taskset_id, first=first, rows=part)


async def _noted(rows: AsyncIterator[KeptRows], numbers: bytearray) -> AsyncIterator[bytes]:
    """Yields the next lines and collects their numbers, until there are enough for a part."""
    async for chunk in rows:
        numbers += chunk.numbers
        yield chunk.lines
        if len(numbers) >= PART_BYTES:
            return
