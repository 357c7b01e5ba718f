"""Sources of the rows of a taskset, and the identity of their content."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.buffer.identity import identity, source_of
from services.buffer.needed_types import NeededTaskset
from services.buffer.reader import reading
from services.buffer.row_source import RowSource
from services.buffer.store.catalogue import rows_of
from services.buffer.store.database import Database
from services.buffer.store.tasks import Taskset
from trinity.config.taskset_storage import without_password
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

PIPED = "task pipeline"
ROWS_AT_ONCE = 1_000
"""Rows of a submitted taskset that are read together; fewer if they are large."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A source of rows that are not stored yet."""

    content: str
    """Identity of the rows: a text that differs whenever they may differ."""
    place: str
    """Description for people."""
    read: Callable[[], AsyncGenerator[bytes]]
    """Yields all rows from the first: chunks of lines."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """Commits of the hub datasets that are read, by name."""


async def origin_of_files(
    needed: NeededTaskset,
    place: str,
    roots: Sequence[str],
    experiment_id: str,
    commits: Mapping[str, str],
) -> Origin:
    """Returns the origin of files, tables or hub datasets, at their `commits` or the newest ones.

    Raises: PreconditionFailed that names the taskset when its data are missing or unreadable.
    """
    further = needed.pipeline.further_paths if needed.pipeline else ()
    sources = [
        await asyncio.to_thread(source_of, needed, path, roots, commits.get(path))
        for path in (place, *further)
    ]
    contents = [
        await asyncio.to_thread(identity, needed.name, source, experiment_id) for source in sources
    ]
    content = contents[0]
    if needed.pipeline is not None:
        content = _piped(content, contents[1:], needed.pipeline, experiment_id)
    return Origin(
        content,
        without_password(place),
        lambda: _read(needed.name, sources),
        {source.place: source.revision for source in sources if source.revision is not None},
    )


def origin_of_stored(
    needed: NeededTaskset, taskset: Taskset, database: Database, tenant: str, experiment_id: str
) -> Origin:
    """Returns the origin of submitted tasks that go through a pipeline."""
    assert needed.pipeline is not None
    content = _piped(f"taskset {taskset.taskset_id}|", [], needed.pipeline, experiment_id)
    place = f"submitted as {needed.name}"
    return Origin(content, place, lambda: _stored(database, tenant, taskset.taskset_id))


def _piped(
    content: str, further: Sequence[str], pipeline: ResolvedTaskPipeline, experiment_id: str
) -> str:
    """Returns the identity after a pipeline, per experiment if it has users' operators.

    Those may change at any time: each experiment runs them once and keeps the result.
    """
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
    """Yields stored rows, not in one transaction, because the consumer may be slow."""
    first = 0
    while rows := await _some_stored(database, tenant, taskset_id, first):
        # JSON from a client may contain line ends between its tokens.
        yield "".join([row.replace("\n", " ") + "\n" for row in rows]).encode()
        first += len(rows)


async def _some_stored(
    database: Database, tenant: str, taskset_id: str, first: int
) -> Sequence[str]:
    async with database.autocommit() as connection:
        return await rows_of(connection, tenant, taskset_id, first=first, count=ROWS_AT_ONCE)
