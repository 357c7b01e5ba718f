"""Runs a task pipeline over the rows of a taskset, and stores the result."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.task_pipelines import insert_pipeline, insert_source_rows
from services.buffer.store.tasks import copy_rows
from services.buffer.task_pipeline import PipedRows, PipelineDied, PipelineLimits, PipelineProcess
from trinity.errors import PreconditionFailed
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

logger = logging.getLogger(__name__)
PART_BYTES = 512 * 1024
"""Bytes of source row numbers that are collected before they are stored."""
MAX_TRIES = 3
"""Tries of a process that is killed from outside; errors of an operator are not retried."""


@dataclass(frozen=True, slots=True)
class Piping:
    """A task pipeline with its input."""

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    read: Callable[[], AsyncGenerator[bytes]]
    """Yields all rows, from the first on each call: chunks of lines."""


async def copy_piped_rows(
    connection: AsyncConnection, tenant: str, taskset_id: str, piping: Piping
) -> None:
    """Stores the rows that the pipeline keeps, in order, and counts of the others.

    Raises: PreconditionFailed that says what is wrong with the pipeline or the rows.
    """
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            async with connection.begin_nested():
                await _copy(connection, tenant, taskset_id, piping)
            return
        except PipelineDied as error:
            if not tries_left:
                raise PreconditionFailed(f"{error}, {MAX_TRIES} times") from error
            logger.warning("a task pipeline is restarted", extra={"why": str(error)})


async def _copy(connection: AsyncConnection, tenant: str, taskset_id: str, piping: Piping) -> None:
    async with (
        aclosing(piping.read()) as rows,
        PipelineProcess(piping.pipeline, piping.limits) as process,
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
    connection: AsyncConnection, tenant: str, taskset_id: str, process: PipelineProcess
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


async def _noted(rows: AsyncIterator[PipedRows], numbers: bytearray) -> AsyncIterator[bytes]:
    """Yields the next lines and collects their numbers, until there are enough for a part."""
    async for chunk in rows:
        numbers += chunk.numbers
        yield chunk.lines
        if len(numbers) >= PART_BYTES:
            return
