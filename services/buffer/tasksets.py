"""Brings tasksets into the database, each content once, however long that takes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from services.buffer.background import BackgroundJobs, Job
from services.buffer.handlers.open_stage import NeededTaskset
from services.buffer.identity import identity, source_of
from services.buffer.reader import check_end, read_lines, start_reader, stop_reader
from services.buffer.row_source import RowSource
from services.buffer.store.database import Database, notify, tasksets_topic
from services.buffer.store.stages import StageTaskset
from services.buffer.store.tasks import Taskset, claim_source, copy_rows, find_taskset
from trinity.config.taskset_storage import without_password
from trinity.errors import PreconditionFailed


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tasksets that are stored, and what the others wait for."""

    stored: list[StageTaskset] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)


class TasksetLibrary:
    """Finds tasksets by the identity of their content and reads those that are new."""

    def __init__(self, *, database: Database, jobs: BackgroundJobs, roots: Sequence[str]) -> None:
        self._database = database
        self._jobs = jobs
        self._roots = roots

    async def resolve(
        self, tenant: str, experiment_id: str, needed: Sequence[NeededTaskset]
    ) -> Resolved:
        """Find what is stored and begin to read what is not.

        Raises: PreconditionFailed naming one that cannot be read.
        """
        resolved = Resolved()
        for one in needed:
            found = await self._find(tenant, experiment_id, one)
            if isinstance(found, str):
                resolved.awaited.append(found)
                continue
            if found.num_rows == 0 and not one.is_queue:
                raise PreconditionFailed(f"taskset {one.name}: {one.path or 'it'} has no rows")
            resolved.stored.append(
                StageTaskset(
                    name=one.name,
                    taskset_id=found.taskset_id,
                    kind=one.kind,
                    num_rows=found.num_rows,
                )
            )
        return resolved

    async def _find(self, tenant: str, experiment_id: str, needed: NeededTaskset) -> Taskset | str:
        """The taskset, stored and complete, or what it waits for."""
        if needed.path is None:
            return await self._submitted(tenant, needed)
        source = source_of(needed, needed.path, self._roots)
        content = await asyncio.to_thread(identity, needed.name, source, experiment_id)
        async with self._database.transaction() as connection:
            stored = await find_taskset(connection, tenant, source=content)
        if stored is not None:
            return stored

        async def work(job: Job) -> None:
            await self._read(job, tenant, needed.name, source, content)

        place = without_password(needed.path)
        reason = f"to read taskset {needed.name} ({place})"
        job = self._jobs.ask((tenant, content), work, name=f"taskset {needed.name}", reason=reason)
        return f"taskset {needed.name}: {job.num_rows:,} rows read so far"

    async def _submitted(self, tenant: str, needed: NeededTaskset) -> Taskset | str:
        async with self._database.transaction() as connection:
            found = await find_taskset(connection, tenant, name=needed.name)
        if found is None or not (found.is_complete or found.is_queue):
            kind = "queue" if needed.is_queue else "taskset"
            return f"{kind} {needed.name} is awaited from a client: submit it with SubmitTaskset"
        if found.is_queue != needed.is_queue:
            kind, storage = ("a queue", "queue") if found.is_queue else ("no queue", "client")
            raise PreconditionFailed(
                f"taskset {needed.name} is {kind}: give `storage_type: {storage}`"
            )
        return found

    async def _read(
        self, job: Job, tenant: str, name: str, source: RowSource, content: str
    ) -> None:
        """Read the rows unless their content is stored; a failure leaves nothing behind."""
        async with self._database.transaction() as connection:
            claimed = await claim_source(connection, tenant, content)
            if claimed is None:
                return
            child = await start_reader(source)
            try:
                rows = _counted(read_lines(child), job)
                await copy_rows(connection, tenant, claimed, rows)
                await check_end(child, name)
            finally:
                await stop_reader(child)
            await notify(connection, tasksets_topic(tenant))


async def _counted(rows: AsyncIterator[str], job: Job) -> AsyncIterator[str]:
    async for row in rows:
        job.num_rows += 1
        yield row
