"""Finds tasksets and their features by content identity, and reads new ones."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from services.buffer.domain.tasks import NeededTaskset
from services.buffer.store.database import BufferDatabase, notify, tasksets_topic
from services.buffer.store.media import (
    media_used_by,
    store_media,
    taskset_user,
    use_stored_media,
)
from services.buffer.store.selection import known_features, read_features, store_features
from services.buffer.store.stages import StageTaskset
from services.buffer.store.tasksets import (
    Taskset,
    claim_source,
    copy_rows,
    counts_of,
    empty_pipeline_error,
    find_taskset,
    insert_pipeline,
    load_row_bodies,
    skipped_counts,
)
from services.buffer.store.uploads import insert_submitted
from services.buffer.tasksets.allowed_files import AllowedFiles
from services.buffer.tasksets.background_jobs import BackgroundJobs, TasksetJob
from services.buffer.tasksets.row_sources import SQLITE, RowSource, newest_revision
from services.buffer.tasksets.task_pipeline import (
    KeepMedia,
    PipelineLimits,
    TaskPipelineRun,
    copy_kept_rows,
    read_rows,
)
from services.buffer.tenants import TenantGrants, TenantPolicy, WorkerIsolation
from trinity.config.data_files import find_data_files
from trinity.config.model_code_policy import check_hub_code
from trinity.config.plan.task_storage import HUB_NAME, without_password
from trinity.config.training_rows import RowCheck, SkippedRows
from trinity.errors import PreconditionFailed, UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.types import BlobRef
from trinity.user_code.hubs.place import HubPlace, hub_python

PIPED = "task pipeline"
CHECKED = "checked rows"
ROWS_AT_ONCE = 1_000
"""Rows of a submitted taskset that are read together; fewer if they are large."""
FORGOTTEN_SECONDS = 600.0
"""A client that has not asked for a taskset for this long has given up."""


def row_source_of(
    needed: NeededTaskset, place: str, grants: TenantGrants, commit: str | None = None
) -> RowSource:
    """Returns the source for the reader; a hub dataset without `commit` gets the newest one.

    Raises: PreconditionFailed that names the taskset when there is no such dataset, or when the
    tenant may not have it read.
    """
    kind: Literal["file", "hub", "sql", "environment"] = "file"
    revision, python = None, ""
    try:
        if (environment := HubPlace.parse(place)) is not None:
            check_hub_code(environment.hub, "buffer")
            kind, python = "environment", str(hub_python(environment.hub))
        elif needed.table is not None:
            kind = "sql"
            if not place.startswith(SQLITE):
                grants.check_database(place)
        elif _is_dataset(place, grants.roots):
            grants.check_dataset(place)
            kind, revision = "hub", commit or newest_revision(place)
    except UserError as error:
        raise PreconditionFailed(f"taskset {needed.name}: {error}") from error
    return RowSource(
        kind=kind,
        place=place,
        revision=revision,
        python=python,
        split=needed.split,
        subset_name=needed.subset_name,
        table=needed.table,
        roots=tuple(grants.roots),
        check=needed.row_check,
        image_key=needed.image_key,
    )


def _is_dataset(place: str, roots: Sequence[str]) -> bool:
    """True for a name on the hub; outside of the roots it is not told whether a file is there."""
    return HUB_NAME.fullmatch(place) is not None and not AllowedFiles(roots).has(Path(place))


def content_identity(name: str, source: RowSource, experiment_id: str) -> str:
    """Returns a text that differs whenever the content may differ.

    Files are identified by sizes and modification times, datasets on the hub by their commit.
    Changes of a table or a hub's environment cannot be detected: each experiment reads them once
    and keeps that copy.

    Raises: PreconditionFailed that names the taskset when its data are missing or unreadable.
    """
    try:
        match source.kind:
            case "sql":
                return f"{without_password(source.place)}|{source.table}|{experiment_id}"
            case "environment":
                return f"{source.place}|{experiment_id}"
            case "hub":
                assert source.revision is not None
                stamp = source.revision
            case _:
                stamp = _stamp(source)
    except (UserError, OSError) as error:
        raise PreconditionFailed(f"taskset {name}: {error}") from error
    if source.image_key is not None:
        stamp = f"{stamp}+{source.image_key}"
    return f"{source.place}|{source.split}|{source.subset_name or ''}|{stamp}"


def _stamp(source: RowSource) -> str:
    tree = AllowedFiles(source.roots)
    files = find_data_files(source.place, source.split, source.subset_name, tree)
    found = [(file, tree.status(file)) for file in files]
    stamps = [f"{file}:{status.st_size}:{status.st_mtime_ns}" for file, status in found]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A source of rows that are not stored yet."""

    identity: str
    """Identity of the rows: a text that differs whenever they may differ."""
    description: str
    """Description for people."""
    read_lines: Callable[[], AsyncGenerator[bytes]]
    """Yields all rows from the first: chunks of lines."""
    commits: Mapping[str, str] = field(default_factory=dict)
    """Commits of the hub datasets that are read, by name."""
    skipped: list[SkippedRows] = field(default_factory=list)
    """Rows that the readers left out, once all are read."""
    media: set[bytes] = field(default_factory=set)
    """Hashes of the images of the rows, which are stored as they are read."""


async def source_of_files(
    needed: NeededTaskset,
    place: str,
    grants: TenantGrants,
    experiment_id: str,
    commits: Mapping[str, str],
    database: BufferDatabase,
    tenant: str,
) -> DatasetSource:
    """Returns the source of files, tables or hub datasets, at their `commits` or the newest ones.

    Raises: PreconditionFailed that names the taskset when its data are missing or unreadable.
    """
    further = needed.pipeline.further_paths if needed.pipeline else ()
    sources = [
        await asyncio.to_thread(row_source_of, needed, path, grants, commits.get(path))
        for path in (place, *further)
    ]
    contents = [
        await asyncio.to_thread(content_identity, needed.name, source, experiment_id)
        for source in sources
    ]
    content = contents[0]
    if needed.pipeline is not None:
        content = _pipeline_identity(content, contents[1:], needed.pipeline, experiment_id)
    elif needed.row_check is not None:
        content = _checked_identity(content, needed.row_check)
    skipped: list[SkippedRows] = []
    media: set[bytes] = set()

    async def keep(ref: BlobRef, image: bytes) -> None:
        async with database.transaction() as connection:
            await store_media(connection, tenant, ref, image)
        media.add(ref.sha256)

    return DatasetSource(
        content,
        without_password(place),
        lambda: _read(needed.name, sources, skipped, keep),
        {source.place: source.revision for source in sources if source.revision is not None},
        skipped,
        media,
    )


def _checked_identity(content: str, check: RowCheck) -> str:
    """Returns the identity of rows that are checked in this way."""
    place, _, stamp = content.rpartition("|")
    checked = hashlib.sha256(f"{stamp}\n{check.model_dump_json()}".encode()).hexdigest()
    return f"{place}|{CHECKED}|{checked}"


def source_of_submitted(
    needed: NeededTaskset,
    taskset: Taskset,
    database: BufferDatabase,
    tenant: str,
    experiment_id: str,
) -> DatasetSource:
    """Returns the source of submitted tasks that go through a pipeline."""
    assert needed.pipeline is not None
    content = _pipeline_identity(
        f"taskset {taskset.taskset_id}|", [], needed.pipeline, experiment_id
    )
    media: set[bytes] = set()
    read = partial(_stored, database, tenant, taskset.taskset_id, media)
    return DatasetSource(content, f"submitted as {needed.name}", read, media=media)


def _pipeline_identity(
    content: str, further: Sequence[str], pipeline: ResolvedTaskPipeline, experiment_id: str
) -> str:
    """Returns the identity after a pipeline, per experiment if it has users' operators.

    Those may change at any time: each experiment runs them once and keeps the result.
    """
    parts = [content, *further, pipeline.model_dump_json()]
    if not pipeline.is_deterministic:
        parts.append(experiment_id)
    stamp = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{content.rpartition('|')[0]}|{PIPED}|{stamp}"


async def _read(
    name: str, sources: Sequence[RowSource], skipped: list[SkippedRows], keep: KeepMedia
) -> AsyncGenerator[bytes]:
    skipped.clear()
    for source in sources:
        async with aclosing(read_rows(name, source, skipped, keep)) as rows:
            async for lines in rows:
                yield lines


async def _stored(
    database: BufferDatabase, tenant: str, taskset_id: str, media: set[bytes]
) -> AsyncGenerator[bytes]:
    """Yields stored rows, not in one transaction, because the consumer may be slow."""
    async with database.autocommit() as connection:
        media |= await media_used_by(connection, tenant, taskset_user(taskset_id))
    first = 0
    while rows := await _some_stored(database, tenant, taskset_id, first):
        # JSON from a client may contain line ends between its tokens.
        yield "".join([row.replace("\n", " ") + "\n" for row in rows]).encode()
        first += len(rows)


async def _some_stored(
    database: BufferDatabase, tenant: str, taskset_id: str, first: int
) -> Sequence[str]:
    async with database.autocommit() as connection:
        return await load_row_bodies(
            connection, tenant, taskset_id, first=first, count=ROWS_AT_ONCE
        )


@dataclass(frozen=True, slots=True)
class ResolvedTasksets:
    """Stored tasksets, and the reasons why others are not ready."""

    stored: list[StageTaskset] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Commits:
    """Commits of datasets, with the time when they were chosen."""

    by_dataset: Mapping[str, str]
    noted_at: float = field(default_factory=time.monotonic)


class TasksetLibrary:
    """Finds tasksets by the identity of their content, and reads new ones."""

    def __init__(
        self,
        *,
        database: BufferDatabase,
        jobs: BackgroundJobs,
        policy: TenantPolicy,
        limits: PipelineLimits,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._policy = policy
        self._limits = limits
        self._commits: dict[tuple[str, str, str], _Commits] = {}
        """Commits of hub datasets that are being read for an experiment's taskset. Without this, a
        commit made meanwhile would cause a second download."""

    async def resolve(
        self, tenant: str, experiment_id: str, needed: Sequence[NeededTaskset]
    ) -> ResolvedTasksets:
        """Finds stored tasksets and starts to read the others.

        Raises: PreconditionFailed that names a taskset that cannot be read.
        """
        resolved = ResolvedTasksets()
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
        try:
            if needed.pipeline is not None:
                self._policy.check_pipeline(tenant, needed.pipeline)
        except UserError as error:
            raise PreconditionFailed(f"taskset {needed.name}: {error}") from error
        if needed.path is not None:
            commits = self._commits_of(reading)
            dataset = await source_of_files(
                needed,
                needed.path,
                self._policy.grants(tenant),
                experiment_id,
                commits,
                self._database,
                tenant,
            )
        else:
            found = await self._submitted(tenant, needed)
            if isinstance(found, str) or needed.pipeline is None:
                return found
            dataset = source_of_submitted(needed, found, self._database, tenant, experiment_id)
        async with self._database.transaction() as connection:
            stored = await find_taskset(connection, tenant, source=dataset.identity)
        self._commits.pop(reading, None)
        if stored is not None:
            return stored
        waits_for = self._begin(tenant, needed, dataset)
        self._commits[reading] = _Commits(dataset.commits)
        return waits_for

    def _commits_of(self, reading: tuple[str, str, str]) -> Mapping[str, str]:
        """Returns the commits chosen at the first request; drops those of expired requests."""
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        self._commits = {key: own for key, own in self._commits.items() if own.noted_at > oldest}
        known = self._commits.get(reading)
        return known.by_dataset if known else {}

    def _begin(self, tenant: str, needed: NeededTaskset, dataset: DatasetSource) -> str:
        async def work(job: TasksetJob) -> None:
            await self._read(job, tenant, dataset, needed.pipeline)

        job = self._jobs.get_or_start(
            (tenant, dataset.identity),
            work,
            name=f"taskset {needed.name}",
            reason=f"to read taskset {needed.name} ({dataset.description})",
        )
        return f"taskset {needed.name}: {job.num_rows:,} rows read so far"

    async def _submitted(self, tenant: str, needed: NeededTaskset) -> Taskset | str:
        async with self._database.transaction() as connection:
            if needed.is_of_clients:
                await insert_submitted(connection, tenant, needed.name, is_queue=True)
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
        self,
        job: TasksetJob,
        tenant: str,
        dataset: DatasetSource,
        pipeline: ResolvedTaskPipeline | None,
    ) -> None:
        """Reads the rows unless their content is stored; a failure stores no rows."""
        async with self._database.transaction() as connection:
            claimed = await claim_source(connection, tenant, dataset.identity)
            if claimed is None:
                return

            def read() -> AsyncGenerator[bytes]:
                job.num_rows = 0
                return _counted(dataset.read_lines(), job)

            if pipeline is not None:
                run = TaskPipelineRun(
                    pipeline, self._limits, read, self._isolation(tenant, pipeline)
                )
                await copy_kept_rows(connection, tenant, claimed, run)
            else:
                async with aclosing(read()) as rows:
                    num_rows = await copy_rows(connection, tenant, claimed, rows)
                if dataset.skipped:
                    counts = skipped_counts(num_rows, dataset.skipped)
                    await insert_pipeline(connection, tenant, claimed, counts)
            await use_stored_media(connection, tenant, taskset_user(claimed), dataset.media)
            await notify(connection, tasksets_topic(tenant))

    def _isolation(self, tenant: str, pipeline: ResolvedTaskPipeline) -> WorkerIsolation:
        """Returns the isolation of a pipeline: without functions of a tenant's it has a network."""
        own = self._policy.isolation_of(tenant)
        is_ours = not any(operator.is_own for operator in pipeline.operators)
        return replace(own, has_network=True) if is_ours else own

    async def _lack(self, tenant: str, needed: NeededTaskset, found: Taskset) -> str:
        """Returns why a taskset is empty."""
        async with self._database.transaction() as connection:
            counts = await counts_of(connection, tenant, found.taskset_id)
        if counts is not None and counts.num_read:
            return empty_pipeline_error(counts)
        return f"{needed.path or 'it'} has no rows"


async def _counted(rows: AsyncGenerator[bytes], job: TasksetJob) -> AsyncGenerator[bytes]:
    async with aclosing(rows):
        async for lines in rows:
            job.num_rows += lines.count(b"\n")
            yield lines


class FeatureLibrary:
    """Finds stored features, and starts to read missing ones."""

    def __init__(self, *, database: BufferDatabase, jobs: BackgroundJobs) -> None:
        self._database = database
        self._jobs = jobs

    async def awaited(
        self, tenant: str, needed: Sequence[NeededTaskset], stored: Sequence[StageTaskset]
    ) -> list[str]:
        """Returns which columns of these tasksets are still being read.

        Raises: PreconditionFailed that names the first row without a number in such a column.
        """
        by_name = {taskset.name: taskset for taskset in stored}
        waits = []
        for taskset in needed:
            if taskset.feature_keys and taskset.name in by_name:
                waits += await self._awaited(tenant, by_name[taskset.name], taskset.feature_keys)
        return waits

    async def _awaited(self, tenant: str, taskset: StageTaskset, names: Sequence[str]) -> list[str]:
        async with self._database.transaction() as connection:
            known = await known_features(connection, tenant, taskset.taskset_id, names)
        missing = [name for name in names if name not in known]
        for name in missing:
            self._begin(tenant, taskset, name)
        return [f"column {name} of taskset {taskset.name} is being read" for name in missing]

    def _begin(self, tenant: str, taskset: StageTaskset, name: str) -> None:
        async def work(_: TasksetJob) -> None:
            async with self._database.transaction() as connection:
                try:
                    numbers = await read_features(
                        connection, tenant, taskset.taskset_id, taskset.num_rows, name
                    )
                except PreconditionFailed as error:
                    raise PreconditionFailed(f"taskset {taskset.name}, {error}") from error
                await store_features(connection, tenant, taskset.taskset_id, name, numbers)
                await notify(connection, tasksets_topic(tenant))

        self._jobs.get_or_start(
            (tenant, taskset.taskset_id, name),
            work,
            name=f"taskset {taskset.name}",
            reason=f"to read column {name} of taskset {taskset.name}",
        )
