"""Stores what a task pipeline makes of the rows of a taskset."""

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
"""Of numbers in the source, before they are stored."""
MAX_TRIES = 3
"""Of a process that somebody ends; what an operator does wrong, it does again."""


@dataclass(frozen=True, slots=True)
class Piping:
    """What goes through a task pipeline."""

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    read: Callable[[], AsyncGenerator[bytes]]
    """All rows, from the first one on each time: lines, some at a time."""


async def copy_piped_rows(
    connection: AsyncConnection, tenant: str, taskset_id: str, piping: Piping
) -> None:
    """Store the rows that stay, in their order, and what became of the others.

    Raises: PreconditionFailed naming what is wrong with the pipeline or with the rows.
    """
    for left in reversed(range(MAX_TRIES)):
        try:
            async with connection.begin_nested():
                await _copy(connection, tenant, taskset_id, piping)
            return
        except PipelineDied as error:
            if not left:
                raise PreconditionFailed(f"{error}, {MAX_TRIES} times") from error
            logger.warning("a task pipeline begins again", extra={"why": str(error)})


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
            # The source's error comes first: where there are both, the pipeline ended by it.
            raise errors.exceptions[0] from errors
        assert process.counts is not None
        counts = process.counts
    await insert_pipeline(connection, tenant, taskset_id, counts)


async def _store(
    connection: AsyncConnection, tenant: str, taskset_id: str, process: PipelineProcess
) -> None:
    """Rows and their numbers in the source in turn, so that there are never many of them here."""
    num_rows = 0
    async with aclosing(process.rows()) as rows:
        while True:
            first, numbers = num_rows, bytearray()
            some = _noted(rows, numbers)
            num_rows = await copy_rows(connection, tenant, taskset_id, some, first=first)
            if not numbers:
                return
            part = bytes(numbers)
            await insert_source_rows(connection, tenant, taskset_id, first=first, rows=part)


async def _noted(rows: AsyncIterator[PipedRows], numbers: bytearray) -> AsyncIterator[bytes]:
    """The next lines, until there are numbers enough for a part."""
    async for some in rows:
        numbers += some.numbers
        yield some.lines
        if len(numbers) >= PART_BYTES:
            return
