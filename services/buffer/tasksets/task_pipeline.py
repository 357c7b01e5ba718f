"""Handles for the processes that read a taskset's rows, and that run a task pipeline over them."""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from services.buffer.domain.tasks import sanitize_text
from services.buffer.store.tasksets import (
    PipelineCounts,
    copy_rows,
    insert_pipeline,
    insert_source_rows,
)
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tenants import SHARES_ALL, WorkerIsolation
from services.buffer.workers.process import reader_environment
from trinity.config.training_rows import SkippedRows
from trinity.data.images import IMAGE
from trinity.errors import PreconditionFailed, Unavailable, UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.runtime.process.box import Box
from trinity.runtime.process.child_process import OWN_IDENTITY, Identity
from trinity.runtime.process.worker import (
    WROTE_TO_CHANNEL,
    Message,
    NotAnAnswer,
    Worker,
    WorkerFailed,
)
from trinity.runtime.sql import Connection
from trinity.types import BlobRef

KeepMedia = Callable[[BlobRef, bytes], Awaitable[None]]
"""Stores an image of a row."""
READER_MODULE = "services.buffer.tasksets.read_rows"
logger = logging.getLogger(__name__)
MODULE = "trinity.operators.tasks.worker"
MAX_ANSWER_BYTES = 1024 * 1024
"""Limit of one line, without the rows after it; twice that is buffered while Postgres is slow."""
MAX_ROWS_BYTES = 1024**3
"""Bytes of rows that come together: 4 MiB, or a single row."""
WORD_BYTES = 8
PART_BYTES = 512 * 1024
"""Bytes of source row numbers that are collected before they are stored."""
IMAGE_SIGNS = ("data:image", "sha256")
"""A submitted row without one of them has no images."""
ROW_SECONDS = 60.0
"""Time limit for the images of one submitted row."""
MAX_TRIES = 3
"""Tries of a process that is killed from outside; errors of an operator are not retried."""


async def read_rows(
    name: str, source: RowSource, skipped: list[SkippedRows], keep: KeepMedia | None = None
) -> AsyncGenerator[bytes]:
    """Yields the rows of a source in chunks of whole lines, from a process that reads them.

    Adds the rows that it left out to `skipped`; files that it left out are logged. `keep` gets the
    images of rows before these.

    Raises: PreconditionFailed with the reader's error about the data.
    """
    worker = await Worker.start(
        READER_MODULE, env=reader_environment(), max_line_bytes=MAX_ANSWER_BYTES
    )
    try:
        worker.ask({"source": source.to_json()})
        while True:
            match await worker.read():
                case {"media": dict(ref), "num_bytes": num_bytes}:
                    assert keep is not None, "rows without images"
                    await keep(_ref(ref, num_bytes), await worker.read_payload(num_bytes))
                case {"num_bytes": num_bytes}:
                    yield await worker.read_payload(num_bytes)
                case {"unread": detail}:
                    extra = {"taskset": name, "detail": detail}
                    logger.warning(
                        "files next to the shards of a taskset are not read", extra=extra
                    )
                case {"skipped": counts}:
                    if counts["count"]:
                        skipped.append(SkippedRows(**counts))
                    return
                case {"error": error}:
                    raise PreconditionFailed(f"taskset {name}: {error}")
    except WorkerFailed as error:
        raise PreconditionFailed(f"taskset {name}: its reader failed: {error}") from error
    finally:
        await worker.kill()


def _ref(ref: dict[str, str], size: int) -> BlobRef:
    sha256 = bytes.fromhex(ref["sha256"])
    return BlobRef(name=IMAGE, sha256=sha256, size=size, media_type=ref["media_type"])


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A submitted row with hashes for its images."""

    body: str
    reason: str = ""
    """Set for a row that is refused."""
    images: Sequence[tuple[BlobRef, bytes]] = ()


class SubmittedImages:
    """Takes images out of submitted rows, in a child process: one row at a time.

    images = SubmittedImages()
    taken = await images.taken('{"image": "data:image/png;base64,..."}')
    await images.kill()
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._worker: Worker | None = None

    async def taken(self, row: str) -> TakenRow:
        """Returns a row without its images.

        Raises: Unavailable when the process ends or is too slow.
        """
        if not any(sign in row for sign in IMAGE_SIGNS):
            return TakenRow(row)
        async with self._lock:
            if self._worker is None:
                self._worker = await Worker.start(
                    READER_MODULE, env=reader_environment(), max_line_bytes=MAX_ANSWER_BYTES
                )
            try:
                async with asyncio.timeout(ROW_SECONDS):
                    return await _taken(self._worker, row)
            except BaseException as error:
                # An abandoned answer must not be taken for the answer to a later request.
                await self.kill()
                if isinstance(error, WorkerFailed | TimeoutError):
                    raise Unavailable(f"the images of a row cannot be read: {error}") from error
                raise

    async def kill(self) -> None:
        """Kills the process, if there is one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()


async def _taken(worker: Worker, row: str) -> TakenRow:
    worker.ask({"row": row})
    images: list[tuple[BlobRef, bytes]] = []
    while True:
        match await worker.read():
            case {"media": dict(ref), "num_bytes": num_bytes}:
                content = await worker.read_payload(num_bytes)
                images.append((_ref(ref, num_bytes), content))
            case {"num_bytes": num_bytes}:
                return TakenRow((await worker.read_payload(num_bytes)).decode(), "", images)
            case {"refused": reason}:
                return TakenRow(row, str(reason))


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
    _worker: Worker | None = None
    _folder: "tempfile.TemporaryDirectory[str] | None" = None
    """The folder for its rows: its box has little memory for files."""
    _calls: str = ""
    """The user's operator that is being called, if any."""

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="trinity-rows-")
        try:
            self._worker = await Worker.start(
                MODULE,
                str(self.limits.memory_bytes),
                env=self.isolation.environment() | {"TMPDIR": self._folder.name},
                identity=await self._identity(self._folder.name),
                max_line_bytes=MAX_ANSWER_BYTES,
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
        if self._worker is not None:
            await self._worker.kill()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.cleanup)

    async def feed(self, rows: AsyncIterator[bytes]) -> None:
        """Writes all rows to the process; if it has ended, `rows` reports why."""
        assert self._worker is not None and self._worker.process.stdin is not None
        stdin = self._worker.process.stdin
        self._worker.ask({"pipeline": self.pipeline.model_dump_json()})
        with contextlib.suppress(ConnectionError):
            async for lines in rows:
                stdin.write(lines)
                await stdin.drain()
            await stdin.drain()
            stdin.close()

    async def rows(self) -> AsyncGenerator[KeptRows]:
        """Yields the rows that the pipeline keeps, in order, in chunks.

        Raises: PreconditionFailed for an error of an operator, Unavailable when a service that an
        operator needs does not answer, WorkerFailed.
        """
        assert self._worker is not None
        while self.counts is None:
            match await self._answer(self._worker):
                case {"calls": str(name)}:
                    self._calls = name
                case {"rows": int(num_rows), "num_bytes": int(num_bytes)} if (
                    0 <= num_rows <= num_bytes <= MAX_ROWS_BYTES
                ):
                    numbers = await self._worker.read_payload(num_rows * WORD_BYTES)
                    yield KeptRows(numbers, await self._worker.read_payload(num_bytes))
                case {
                    "counts": {"num_read": int(read), "left_out": dict(out), "ordered_by": dict(by)}
                }:
                    self.counts = PipelineCounts(num_read=read, left_out=out, ordered_by=by)
                case {"error": str(text)}:
                    raise PreconditionFailed(f"task_pipeline: {sanitize_text(text)}")
                case {"unavailable": str(text)}:
                    raise Unavailable(f"task_pipeline: {sanitize_text(text)}")
                case _:
                    raise PreconditionFailed(f"task_pipeline: {WROTE_TO_CHANNEL}")

    async def _answer(self, worker: Worker) -> Message:
        """Returns the next answer; calls of users' operators have a time limit."""
        seconds = self.limits.call_seconds if self._calls else None
        try:
            async with asyncio.timeout(seconds):
                return await worker.read()
        except TimeoutError as error:
            raise PreconditionFailed(
                f"task_pipeline: task operator {self._calls} did not answer within {seconds:g} s"
            ) from error
        except NotAnAnswer as error:
            raise PreconditionFailed(f"task_pipeline: {error}") from error
        except WorkerFailed as error:
            called = f" while {self._calls} was called" if self._calls else ""
            raise WorkerFailed(f"the process that runs it ended{called}") from error


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
        except WorkerFailed as error:
            if not tries_left:
                raise PreconditionFailed(f"task_pipeline: {error}, {MAX_TRIES} times") from error
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
