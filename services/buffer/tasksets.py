"""Loads tasksets into the database, each content once, in background jobs."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from services.buffer.background import BackgroundJobs, Job
from services.buffer.needed_types import NeededTaskset
from services.buffer.origins import Origin, origin_of_files, origin_of_stored
from services.buffer.piping import Piping, copy_piped_rows
from services.buffer.store.database import Database, notify, tasksets_topic
from services.buffer.store.stages import StageTaskset
from services.buffer.store.task_pipelines import counts_of, says_none_left
from services.buffer.store.tasks import Taskset, claim_source, copy_rows, find_taskset
from services.buffer.task_pipeline import PipelineLimits
from trinity.errors import PreconditionFailed
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

FORGOTTEN_SECONDS = 600.0
"""A client that has not asked for a taskset for this long has given up."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Stored tasksets, and the reasons why others are not ready."""

    stored: list[StageTaskset] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Commits:
    """Commits of datasets, with the time when they were chosen."""

    of: Mapping[str, str]
    noted_at: float = field(default_factory=time.monotonic)


class TasksetLibrary:
    """Finds tasksets by the identity of their content, and reads new ones."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: BackgroundJobs,
        roots: Sequence[str],
        limits: PipelineLimits,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._roots = roots
        self._limits = limits
        self._commits: dict[tuple[str, str, str], _Commits] = {}
        """Commits of hub datasets that are being read for an experiment's taskset. Without this, a
        commit made meanwhile would cause a second download."""

    async def resolve(
        self, tenant: str, experiment_id: str, needed: Sequence[NeededTaskset]
    ) -> Resolved:
        """Finds stored tasksets and starts to read the others.

        Raises: PreconditionFailed that names a taskset that cannot be read.
        """
        resolved = Resolved()
        for taskset in needed:
            found = await self._find(tenant, experiment_id, taskset)
            if isinstance(found, str):
                resolved.awaited.append(found)
                continue
            if found.num_rows == 0 and not taskset.is_queue:
                lack = await self._lack(tenant, taskset, found)
                raise PreconditionFailed(f"taskset {taskset.name}: {lack}")
            resolved.stored.append(
                StageTaskset(
                    name=taskset.name,
                    taskset_id=found.taskset_id,
                    kind=taskset.kind,
                    num_rows=found.num_rows,
                )
            )
        return resolved

    async def _find(self, tenant: str, experiment_id: str, needed: NeededTaskset) -> Taskset | str:
        """Returns the complete stored taskset, or the reason why it is not ready."""
        reading = (tenant, experiment_id, needed.name)
        if needed.path is not None:
            commits = self._commits_of(reading)
            origin = await origin_of_files(needed, needed.path, self._roots, experiment_id, commits)
        else:
            found = await self._submitted(tenant, needed)
            if isinstance(found, str) or needed.pipeline is None:
                return found
            origin = origin_of_stored(needed, found, self._database, tenant, experiment_id)
        async with self._database.transaction() as connection:
            stored = await find_taskset(connection, tenant, source=origin.content)
        self._commits.pop(reading, None)
        if stored is not None:
            return stored
        waits_for = self._begin(tenant, needed, origin)
        self._commits[reading] = _Commits(origin.commits)
        return waits_for

    def _commits_of(self, reading: tuple[str, str, str]) -> Mapping[str, str]:
        """Returns the commits chosen at the first request; drops those of expired requests."""
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        self._commits = {key: own for key, own in self._commits.items() if own.noted_at > oldest}
        known = self._commits.get(reading)
        return known.of if known else {}

    def _begin(self, tenant: str, needed: NeededTaskset, origin: Origin) -> str:
        async def work(job: Job) -> None:
            await self._read(job, tenant, origin, needed.pipeline)

        job = self._jobs.ask(
            (tenant, origin.content),
            work,
            name=f"taskset {needed.name}",
            reason=f"to read taskset {needed.name} ({origin.place})",
        )
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
        self, job: Job, tenant: str, origin: Origin, pipeline: ResolvedTaskPipeline | None
    ) -> None:
        """Reads the rows unless their content is stored; a failure leaves nothing behind."""
        async with self._database.transaction() as connection:
            claimed = await claim_source(connection, tenant, origin.content)
            if claimed is None:
                return

            def read() -> AsyncGenerator[bytes]:
                job.num_rows = 0
                return _counted(origin.read(), job)

            if pipeline is not None:
                piping = Piping(pipeline, self._limits, read)
                await copy_piped_rows(connection, tenant, claimed, piping)
            else:
                async with aclosing(read()) as rows:
                    await copy_rows(connection, tenant, claimed, rows)
            await notify(connection, tasksets_topic(tenant))

    async def _lack(self, tenant: str, needed: NeededTaskset, found: Taskset) -> str:
        """Returns why a taskset is empty."""
        async with self._database.transaction() as connection:
            counts = await counts_of(connection, tenant, found.taskset_id)
        if counts is not None and counts.num_read:
            return says_none_left(counts)
        return f"{needed.path or 'it'} has no rows"


async def _counted(rows: AsyncGenerator[bytes], job: Job) -> AsyncGenerator[bytes]:
    async with aclosing(rows):
        async for lines in rows:
            job.num_rows += lines.count(b"\n")
            yield lines
