"""Periodic work: timeouts, straggler cutoff, retention, clean-up, queue metrics."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from services.buffer.domain.admission import RowLoad
from services.buffer.domain.stage import Stage
from services.buffer.ingest.stream import RunStream
from services.buffer.operations.explore_steps import cut_stragglers
from services.buffer.operations.feedback import drop_overdue_samples
from services.buffer.operations.retention import BatchedSegmentCache, retire_contents
from services.buffer.store.database import RETENTION_TOPIC, BufferDatabase
from services.buffer.store.media import delete_unused_media
from services.buffer.store.ready_rows import current_load
from services.buffer.store.reports import delete_old_blobs, delete_old_reports
from services.buffer.store.segments import (
    remove_retired,
    stages_with_old_segments,
)
from services.buffer.store.stages import list_readable
from services.buffer.store.tasksets import delete_taskset
from services.buffer.store.uploads import lock_abandoned
from trinity.config.plan.rollouts_ahead import credit_rows
from trinity.errors import PreconditionFailed, Unavailable
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.loops import LoopKind, describe_failure, of_stage
from trinity.runtime.notifications import Listener
from trinity.runtime.retry import WaitReporter
from trinity.runtime.sql import Connection
from trinity.runtime.telemetry import metrics, names
from trinity.runtime.telemetry.metrics import Observation
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)
FEEDBACK_TIMEOUTS, STRAGGLER_CUTOFF = "feedback timeouts", "straggler cutoff"
PAUSE_SECONDS = 600.0
STRAGGLER_SECONDS = 1.0
"""Interval of checks for explore steps that have enough."""
FEEDBACK_SECONDS = 5.0
"""Interval of checks for overdue samples."""
LOOK_SECONDS = 60.0
"""Interval without notifications; checkpoints and ends of stages notify."""
MEASURE_SECONDS = 1.0
Measure = Callable[[Stage, RowLoad], int]


async def run_maintenance(database: BufferDatabase) -> None:
    """Cleans up periodically, until cancelled."""
    while True:
        await clean_up_once(database)
        await asyncio.sleep(PAUSE_SECONDS)


async def clean_up_once(database: BufferDatabase) -> None:
    """Cleans up each kind independently, so that a failure of one does not stop the others."""
    clean_ups = (
        partial(_in_autocommit, delete_old_reports),
        partial(_in_autocommit, delete_old_blobs),
        delete_unused_tasksets,
        delete_unused_media,
    )
    for clean_up in clean_ups:
        try:
            await clean_up(database)
        except Unavailable as error:
            logger.warning("old data could not be cleaned up yet", extra={"why": str(error)})


async def _in_autocommit(
    clean_up: Callable[[Connection], Awaitable[None]], database: BufferDatabase
) -> None:
    async with database.autocommit() as connection:
        await clean_up(connection)


async def delete_unused_tasksets(database: BufferDatabase) -> None:
    """Deletes unreferenced tasksets, one per transaction, because each may have many rows."""
    while True:
        async with database.transaction() as connection:
            found = await lock_abandoned(connection)
            if found is None:
                return
            await delete_taskset(connection, found.tenant, found.taskset_id)
        extra = {"tenant": found.tenant, "taskset": found.name}
        logger.info("an unreferenced taskset is deleted", extra=extra)


async def run_feedback_timeouts(database: BufferDatabase, waits: WaitReporter) -> None:
    """Leaves out samples whose rewards are overdue, until cancelled."""

    def is_concerned(stage: Stage) -> bool:
        return bool(stage.plan.config.buffer.feedback_timeout)

    shown = StageFailures(FEEDBACK_TIMEOUTS, "overdue feedback is waited for", waits)
    while True:
        await _in_each_stage(database, is_concerned, drop_overdue_samples, shown)
        await asyncio.sleep(FEEDBACK_SECONDS)


async def run_straggler_cutoff(database: BufferDatabase, waits: WaitReporter) -> None:
    """Leaves behind stragglers that explore steps need not wait for, until cancelled."""

    def is_concerned(stage: Stage) -> bool:
        return stage.plan.needs_rollout and bool(stage.plan.num_droppable_tasks)

    shown = StageFailures(STRAGGLER_CUTOFF, "slow tasks are waited for", waits)
    while True:
        await _in_each_stage(database, is_concerned, cut_stragglers, shown)
        await asyncio.sleep(STRAGGLER_SECONDS)


@dataclass(slots=True)
class StageFailures:
    """Shows the stages for which one loop of the data path fails; their runs wait for it."""

    name: str
    otherwise: str
    """The log message for a failure."""
    waits: WaitReporter
    _shown: set[StageKey] = field(default_factory=set)

    def show(self, key: StageKey, error: Exception) -> None:
        """Shows a failure; one of the database is shown by the process itself."""
        about = {"stage": key.stage, "experiment": key.experiment_id}
        limited_log.warning(self.otherwise, about, why=describe_failure(error))
        if isinstance(error, Unavailable):
            return
        metrics.LOOP_FAILURES.add(1, {names.LOOP_NAME: self.name})
        reason = of_stage(self.name, key.experiment_id, key.stage, error)
        self.waits.set(
            f"{self.name} {key}",
            waits_for=LoopKind.DATA_PATH,
            reason=reason,
            experiment_id=key.experiment_id,
        )
        self._shown.add(key)

    def clear(self, keys: Iterable[StageKey]) -> None:
        """Shows that it works for these stages."""
        for key in self._shown.intersection(keys):
            self.waits.clear(f"{self.name} {key}")
            self._shown.discard(key)

    def keep(self, keys: Iterable[StageKey]) -> None:
        """Forgets all other stages: they have ended."""
        self.clear(self._shown.difference(keys))


async def _in_each_stage(
    database: BufferDatabase,
    concerns: Callable[[Stage], bool],
    act: Callable[[Connection, StageKey], Awaitable[object]],
    failures: StageFailures,
) -> None:
    """Acts on each open stage that `concerns` selects; a failure does not stop the others."""
    try:
        async with database.transaction() as connection:
            stages = [stage for stage in await list_readable(connection) if concerns(stage)]
    except Unavailable as error:
        limited_log.warning(failures.otherwise, why=str(error))
        return
    failures.keep(stage.key for stage in stages)
    for stage in stages:
        try:
            async with database.transaction() as connection:
                await act(connection, stage.key)
        except Exception as error:  # one stage must not stop all others
            failures.show(stage.key, error)
        else:
            failures.clear([stage.key])


async def run_retention(database: BufferDatabase, listener: Listener) -> None:
    """Removes contents after each checkpoint and stage, and periodically, until cancelled."""
    batched = BatchedSegmentCache()
    with listener.subscribe(RETENTION_TOPIC) as changes:
        while True:
            try:
                await retain_once(database, batched)
            except Unavailable as error:
                logger.warning("old contents stay for now", extra={"why": str(error)})
            await changes.wait(LOOK_SECONDS)


async def retain_once(database: BufferDatabase, batched: BatchedSegmentCache) -> None:
    """Retires unneeded contents of each stage independently, then drops retired segments."""
    async with database.transaction() as connection:
        keys = await stages_with_old_segments(connection)
    for key in keys:
        try:
            async with database.transaction() as connection:
                retired = await retire_contents(connection, key, batched)
            if retired.num_segments:
                extra = {"stage": key.stage, "rows": retired.num_rows, "bytes": retired.num_bytes}
                logger.info("old contents are retired", extra=extra)
        except (Unavailable, PreconditionFailed) as error:
            about = {"tenant": key.tenant, "experiment": key.experiment_id, "stage": key.stage}
            limited_log.warning("old contents of a stage stay for now", about, why=str(error))
    async with database.autocommit() as connection:
        await remove_retired(connection)


@dataclass(slots=True)
class QueueDepthMetrics:
    """The last measurements, without unavailable sources and ended stages."""

    database: BufferDatabase
    stream: RunStream
    _pending: int | None = None
    _loads: list[tuple[Stage, RowLoad]] = field(default_factory=list)
    _is_registered: bool = False

    async def run_metrics(self) -> None:
        """Measures periodically until cancelled, if metrics are on."""
        if not metrics.is_on():
            return
        if not self._is_registered:
            self._register()
        while True:
            await self.measure()
            await asyncio.sleep(MEASURE_SECONDS)

    def _register(self) -> None:
        self._is_registered = True
        metrics.STREAM_PENDING.register_callback(self._in_stream)
        metrics.CREDIT.register_callback(
            lambda: self._of_stages(lambda stage, load: credit_rows(stage.plan) - load.total)
        )
        metrics.OUTSTANDING.register_callback(
            lambda: self._of_stages(lambda _, load: load.num_outstanding)
        )
        metrics.READY.register_callback(lambda: self._of_stages(lambda _, load: load.num_ready))

    async def measure(self) -> None:
        """Measures stream and database independently: one may be unavailable."""
        try:
            self._pending = await self.stream.num_pending()
        except Unavailable:
            self._pending = None
        try:
            async with self.database.autocommit() as connection:
                stages = await list_readable(connection)
                self._loads = [(stage, await current_load(connection, stage)) for stage in stages]
        except Unavailable:
            self._loads = []

    def _in_stream(self) -> list[Observation]:
        return [] if self._pending is None else [(self._pending, {})]

    def _of_stages(self, measure: Measure) -> Iterator[Observation]:
        """Yields the sum of the stages of a name, of all experiments of a tenant."""
        sums: Counter[tuple[str, str]] = Counter()
        for stage, load in self._loads:
            sums[stage.key.tenant, stage.key.stage] += measure(stage, load)
        for (tenant, name), value in sums.items():
            yield value, {names.TENANT: tenant, names.STAGE: name}
