"""Brings tasksets into the database, each content once, however long that takes."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from services.buffer.background import BackgroundJobs, Job
from services.buffer.handlers.open_stage import NeededTaskset
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
"""After which whoever waited for a taskset and asks no more has given up."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tasksets that are stored, and what the others wait for."""

    stored: list[StageTaskset] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Commits:
    """Of datasets, when they were told to whoever opens a stage."""

    of: Mapping[str, str]
    noted_at: float = field(default_factory=time.monotonic)


class TasksetLibrary:
    """Finds tasksets by the identity of their content and reads those that are new."""

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
        """Of datasets on the hub that are read for an experiment's taskset. Else a commit that is
        made meanwhile would have all of it fetched and stored once more."""

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
                lack = await self._lack(tenant, one, found)
                raise PreconditionFailed(f"taskset {one.name}: {lack}")
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
        """What the one who asks again was told before; whoever asks no more is forgotten."""
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        self._commits = {one: own for one, own in self._commits.items() if own.noted_at > oldest}
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
        """Read the rows unless their content is stored; a failure leaves nothing behind."""
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
        """Why a taskset is empty."""
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
