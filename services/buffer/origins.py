"""Where the rows of a taskset come from, and by what the same rows are known again."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.buffer.handlers.open_stage import NeededTaskset
from services.buffer.identity import identity, source_of
from services.buffer.reader import reading
from services.buffer.row_source import RowSource
from services.buffer.store.catalogue import rows_of
from services.buffer.store.database import Database
from services.buffer.store.tasks import Taskset
from trinity.config.taskset_storage import without_password
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

PIPED = "task pipeline"
ROWS_AT_ONCE = 1_000
"""Of a taskset that a client brought; fewer where they are large."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows that are not stored yet."""

    content: str
    """Another text when the rows may be others."""
    place: str
    """For people."""
    read: Callable[[], AsyncGenerator[bytes]]
    """All of them, from the first one on: lines, some at a time."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """Of the datasets on the hub among what is read."""


async def origin_of_files(
    needed: NeededTaskset,
    place: str,
    roots: Sequence[str],
    experiment_id: str,
    commits: Mapping[str, str],
) -> Origin:
    """Files, tables and datasets on the hub: those in `commits` as of there, others as of now.

    Raises: PreconditionFailed naming the taskset when there is no such data, or none to be read.
    """
    further = needed.pipeline.further_paths if needed.pipeline else ()
    sources = [
        await asyncio.to_thread(source_of, needed, path, roots, commits.get(path))
        for path in (place, *further)
    ]
    contents = [
        await asyncio.to_thread(identity, needed.name, one, experiment_id) for one in sources
    ]
    content = contents[0]
    if needed.pipeline is not None:
        content = _piped(content, contents[1:], needed.pipeline, experiment_id)
    return Origin(
        content,
        without_password(place),
        lambda: _read(needed.name, sources),
        {one.place: one.revision for one in sources if one.revision is not None},
    )


def origin_of_stored(
    needed: NeededTaskset, taskset: Taskset, database: Database, tenant: str, experiment_id: str
) -> Origin:
    """Tasks that a client has submitted, to be taken through a pipeline."""
    assert needed.pipeline is not None
    content = _piped(f"taskset {taskset.taskset_id}|", [], needed.pipeline, experiment_id)
    place = f"submitted as {needed.name}"
    return Origin(content, place, lambda: _stored(database, tenant, taskset.taskset_id))


def _piped(
    content: str, further: Sequence[str], pipeline: ResolvedTaskPipeline, experiment_id: str
) -> str:
    """What others may change at any time, each experiment does once, and keeps what came of it."""
    parts = [content, *further, pipeline.model_dump_json()]
    if not pipeline.is_ours:
        parts.append(experiment_id)
    stamp = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{content.rpartition('|')[0]}|{PIPED}|{stamp}"


async def _read(name: str, sources: Sequence[RowSource]) -> AsyncGenerator[bytes]:
    for source in sources:
        async with reading(source) as reader:
            async for lines in reader.lines():
                yield lines
            await reader.check_end(name)


async def _stored(database: Database, tenant: str, taskset_id: str) -> AsyncGenerator[bytes]:
    """Not in one transaction: whoever takes the rows may let it wait for as long as it likes."""
    first = 0
    while rows := await _some_stored(database, tenant, taskset_id, first):
        # Between its tokens a client may have written line ends.
        yield "".join([row.replace("\n", " ") + "\n" for row in rows]).encode()
        first += len(rows)


async def _some_stored(
    database: Database, tenant: str, taskset_id: str, first: int
) -> Sequence[str]:
    async with database.autocommit() as connection:
        return await rows_of(connection, tenant, taskset_id, first=first, count=ROWS_AT_ONCE)
