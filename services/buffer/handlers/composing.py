"""Composes the batch of a train step, once."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer import telemetry
from services.buffer.domain.batch_metrics import batch_metrics
from services.buffer.domain.composition import (
    Decision,
    End,
    Take,
    VersionWanted,
    Wait,
    decide,
    decide_at_once,
    decide_short,
)
from services.buffer.domain.events import Sample, Samples
from services.buffer.domain.figures import batch_figures
from services.buffer.domain.samples import data_sample
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import StageState
from services.buffer.handlers.driving import wanted_version
from services.buffer.handlers.ending import end_stage
from services.buffer.handlers.explored import explored_rows
from services.buffer.handlers.recording import record_batch
from services.buffer.handlers.replaying import Look, bounds, look, settle_choice
from services.buffer.handlers.retraining import compose_stored
from services.buffer.handlers.sampling import (
    draw_data,
    expert_rows,
    leave_out_stale,
    sampling_figures,
)
from services.buffer.handlers.shortage import go_without, supply_of
from services.buffer.priorities import Priorities, PriorityDied, PriorityFailed
from services.buffer.store.batches import BatchHead, BatchItem, load_tasks
from services.buffer.store.contents import load_bodies
from services.buffer.store.ready_rows import Place, ReadyRow, count_ready, load_ready, rows_of
from services.buffer.store.scopes import take_figures
from services.buffer.store.stages import update_stage
from services.buffer.store.unfinished import first_unfinished
from trinity.errors import PreconditionFailed
from trinity.telemetry import tracing
from trinity.types import StageKey

logger = logging.getLogger(__name__)

NUM_SAMPLES = 3
MAX_TRIES = 3
"""Attempts at a batch whose priority function loses its process each time."""
SampleDecoder = Callable[[bytes], Sample]


@dataclass(frozen=True, slots=True)
class Composer:
    """Composes batches in the caller's transaction, which holds the stage's lock, and commits it.

    In a stage with fixed order, a batch is a function of the rollouts alone: no row is taken while
    work that would precede it is still open. The open work is read before the rows, so that the
    composer may see too few rows but never a wrong order.

    A priority function is called under that lock; in ordered stages, once for each due explore
    step. If its process dies or hangs, it is called again in another transaction.
    """

    decode_sample: SampleDecoder
    priorities: Priorities
    num_deaths: Counter[StageKey] = field(default_factory=Counter)
    """Consecutive deaths of the process that calls the priority function, by stage."""

    async def compose(
        self, connection: AsyncConnection, stage: Stage, step: int
    ) -> BatchHead | Wait | End | VersionWanted:
        """Composes the batch of `step`, which does not exist yet; `stage` is locked."""
        if not stage.is_open:
            return End("failed", stage.reason)
        if stage.plan.stored_batches is not None:
            return await compose_stored(connection, stage, step)
        if step != stage.recorded_step + 1:
            raise PreconditionFailed(
                f"step {step} has no batch, the next one to compose is {stage.recorded_step + 1}"
            )
        if wanted := wanted_version(stage):
            return wanted
        if stage.plan.stored_rollouts is not None:
            return await self._compose_explored(connection, stage, step)
        if not stage.plan.needs_rollout:
            return await self._compose_data(connection, stage, step)
        if stage.plan.replay is not None:
            return await self._compose_by_priority(connection, stage, step)
        return await self._compose_rollouts(connection, stage, step)

    async def _compose_rollouts(
        self, connection: AsyncConnection, stage: Stage, step: int
    ) -> BatchHead | Wait | End:
        begun_ns = tracing.now_ns()
        if stage.plan.oldest_version(step):
            unfinished = await _first_unfinished(connection, stage)
            stage = await leave_out_stale(connection, stage, step, unfinished)
        ready = await load_ready(connection, stage, wanted=stage.plan.num_rollout_rows)
        num_rows = ready.num_rows
        decision: Decision | None = decide_at_once(stage, step, num_rows)
        if decision is None:
            supply = await supply_of(connection, stage, step, num_rows)
            decision = decide(stage, step, supply)
        match decision:
            case Take():
                rows = ready.rows or (await load_ready(connection, stage, wanted=1)).rows
                last = rows[-1].measured if stage.is_ordered and num_rows > len(rows) else None
                up_to = (last.explore_step, last.position) if last else None
                head = await self._take(
                    connection, stage, step, rows, up_to=up_to, figures={}, are_new=True
                )
                telemetry.composed(stage.key, step, rows, stage.incarnation, begun_ns)
                return head
            case _:
                return await go_without(connection, stage, step, decision, num_rows)

    async def _compose_by_priority(
        self, connection: AsyncConnection, stage: Stage, step: int
    ) -> BatchHead | Wait | End:
        if step > stage.total_train_steps:
            return End("drained", f"all {stage.total_train_steps} train steps have their batch")
        begun_ns = tracing.now_ns()
        unfinished = await _first_unfinished(connection, stage)
        try:
            seen = await self._look(connection, stage, step, unfinished)
        except PriorityFailed as error:
            return await self._without_priorities(connection, stage, error)
        self.num_deaths.pop(stage.key, None)
        if seen is not None and seen.is_enough:
            return await self._take_chosen(connection, step, seen, begun_ns)
        stage = seen.stage if seen else stage
        num_rows = len(seen.choice.taken) if seen else await count_ready(connection, stage)
        supply = await supply_of(connection, stage, step, num_rows)
        decision = decide_short(stage, step, supply)
        if isinstance(decision, Take) and seen is not None:
            return await self._take_chosen(connection, step, seen, begun_ns)
        return await go_without(connection, stage, step, decision, num_rows)

    async def _look(
        self, connection: AsyncConnection, stage: Stage, step: int, unfinished: Place | None
    ) -> Look | None:
        """Returns the first sufficient choice, or the last one; None if nothing can be chosen yet.

        Raises: PriorityFailed.
        """
        seen: Look | None = None
        for before in bounds(stage, step):
            if before is not None and unfinished is not None and unfinished < before:
                break
            seen = await look(connection, stage, step, before, self.priorities)
            stage = seen.stage
            if seen.is_enough:
                break
        return seen

    async def _without_priorities(
        self, connection: AsyncConnection, stage: Stage, error: PriorityFailed
    ) -> Wait | End:
        """Retries after the process died, `MAX_TRIES` tries in all; otherwise fails the stage."""
        assert stage.plan.replay is not None
        name = f"`priority_fn: {stage.plan.replay.priority_fn}`"
        reason = f"{name} cannot be used: {error}"
        if isinstance(error, PriorityDied):
            self.num_deaths[stage.key] += 1
            if self.num_deaths[stage.key] < MAX_TRIES:
                logger.warning("a batch is composed again", extra={"why": f"{name}: {error}"})
                return Wait(f"{name} is called again: {error}", look_again_seconds=0.0)
            reason = f"{reason}, {MAX_TRIES} times"
        self.num_deaths.pop(stage.key, None)
        await end_stage(connection, stage, StageState.FAILED, reason)
        return End("failed", reason)

    async def _take_chosen(
        self, connection: AsyncConnection, step: int, seen: Look, begun_ns: int
    ) -> BatchHead:
        stage, choice = seen.stage, seen.choice
        figures = await settle_choice(connection, stage, choice, step)
        ids = [row.experience_id for row in choice.taken]
        rows = await rows_of(connection, stage.key, ids)
        up_to = (seen.before[0], seen.before[1] - 1) if seen.before else None
        head = await self._take(connection, stage, step, rows, up_to=up_to, figures=figures)
        telemetry.composed(stage.key, step, rows, stage.incarnation, begun_ns)
        return head

    async def _take(
        self,
        connection: AsyncConnection,
        stage: Stage,
        step: int,
        rows: Sequence[ReadyRow],
        *,
        up_to: Place | None,
        figures: dict[str, float],
        are_new: bool = False,
    ) -> BatchHead:
        """Records a batch of these rows; `are_new` rows are marked as batched too."""
        metrics = batch_metrics([row.measured for row in rows], step) | sampling_figures(stage)
        metrics |= batch_figures(await take_figures(connection, stage.key, step, up_to)) | figures
        items = [
            BatchItem(experience_id=row.experience_id, advantage=row.advantage, weight=1.0)
            for row in rows
        ]
        items += await expert_rows(connection, stage, step)
        samples = None
        if step == 1:
            ids = _of_different_groups(rows)
            bodies = await load_bodies(connection, stage.samples_key, ids)
            shown = [self.decode_sample(body) for body in bodies]
            samples = Samples(samples=shown, experience_ids=ids)
        head = _head(stage, step, items, metrics)
        taken = [row.experience_id for row in rows] if are_new else []
        await record_batch(connection, stage, head, items, taken=taken, samples=samples)
        return head

    async def _compose_explored(
        self, connection: AsyncConnection, stage: Stage, step: int
    ) -> BatchHead | End:
        rows = await explored_rows(connection, stage) if step <= stage.total_train_steps else []
        if not rows:
            return End("drained", f"all {stage.total_train_steps} train steps have their batch")
        return await self._take(connection, stage, step, rows, up_to=None, figures={})

    async def _compose_data(
        self, connection: AsyncConnection, stage: Stage, step: int
    ) -> BatchHead | End:
        if step > stage.total_train_steps:
            return End("drained", f"all {stage.total_train_steps} train steps have their batch")
        buffer = stage.plan.experience_buffer
        size = stage.plan.train_batch_size
        items = await draw_data(connection, stage, buffer, step=step, count=size)
        await update_stage(connection, stage.key, num_drawn=step * size)
        samples = None
        if step == 1:
            places = [
                (item.taskset_id, item.row_index)
                for item in items[:NUM_SAMPLES]
                if item.taskset_id is not None and item.row_index is not None
            ]
            texts = await load_tasks(connection, stage.key.tenant, places)
            shown = [data_sample(texts[place], buffer.format) for place in places]
            samples = Samples(samples=shown, experience_ids=[])
        head = _head(stage, step, items, {"num_rows": float(size)})
        await record_batch(connection, stage, head, items, samples=samples)
        return head


async def _first_unfinished(connection: AsyncConnection, stage: Stage) -> Place | None:
    """Returns the place of the first group that may still give rows, if their order is fixed."""
    return await first_unfinished(connection, stage.key) if stage.is_ordered else None


def _head(
    stage: Stage, step: int, items: Sequence[BatchItem], metrics: dict[str, float]
) -> BatchHead:
    return BatchHead(step=step, incarnation=stage.incarnation, num_rows=len(items), metrics=metrics)


def _of_different_groups(rows: Sequence[ReadyRow]) -> list[str]:
    first: dict[tuple[int, int], str] = {}
    for row in rows:
        first.setdefault((row.measured.explore_step, row.measured.position), row.experience_id)
    return list(first.values())[:NUM_SAMPLES]
