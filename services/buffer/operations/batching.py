"""Composes the batch of a train step, or returns the reason why it has to wait."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from services.buffer import telemetry
from services.buffer.domain.batches import (
    BatchDecision,
    BatchEnd,
    BatchWait,
    ComposeNow,
    RefillTasks,
    VersionRequested,
    batch_metrics,
    decide_batch,
    decide_explore_step,
    decide_full_batch,
    decide_short_batch,
    pipeline_metrics,
)
from services.buffer.domain.stage import Stage, StageState
from services.buffer.domain.tasks import SamplesEvent, SampleText, data_sample
from services.buffer.operations.batch_sources import (
    ReplayAttempt,
    apply_selection,
    candidate_bounds,
    draw_data,
    expert_rows,
    filter_stale_rows,
    log_incomplete,
    note_long_prompts,
    record_batch,
    sampling_metrics,
    select_candidates,
)
from services.buffer.operations.evaluation import end_stage
from services.buffer.operations.explore_steps import explored_rows, requested_version
from services.buffer.operations.leasing import WAITS_FOR_CLIENTS
from services.buffer.operations.retrain import compose_stored
from services.buffer.operations.shortfall import (
    handle_shortfall,
    load_supply,
    wait_for_unfinished,
    wait_until_whole,
    why_not_begun,
)
from services.buffer.store.assignments import count_refills
from services.buffer.store.batches import BatchHead, BatchItem, load_tasks
from services.buffer.store.experiences import load_bodies
from services.buffer.store.pipeline import take_metrics
from services.buffer.store.ready_rows import (
    Place,
    ReadyRow,
    count_ready,
    first_unfinished,
    load_ready,
    ready_rows_by_id,
    rows_before,
)
from services.buffer.store.stages import update_stage
from services.buffer.workers.functions import FunctionFailed, FunctionProcessDied, FunctionRunner
from trinity.errors import PreconditionFailed
from trinity.runtime.members import WaitKind
from trinity.runtime.sql import Connection
from trinity.types import StageKey

logger = logging.getLogger(__name__)


NO_FIGURES: Mapping[str, float] = {}
INCOMPLETE: Mapping[str, float] = {"sample/is_incomplete": 1.0}
"""Metric of a batch that the trainer did not wait for any longer."""
NUM_SAMPLES = 3
MAX_TRIES = 3
"""Attempts at a batch whose priority function loses its process each time."""
SampleDecoder = Callable[[bytes], SampleText]


@dataclass(frozen=True, slots=True)
class BatchComposer:
    """Composes batches in the caller's transaction, which holds the stage's lock.

    In a stage with fixed order, a batch is a function of the rollouts alone: no row is taken while
    work that would precede it is still open. The open work is read before the rows, so that the
    composer may see too few rows but never a wrong order.

    A priority function is called under that lock; in ordered stages, once for each due explore
    step. If its process dies or hangs, it is called again in another transaction.
    """

    decode_sample: SampleDecoder
    priorities: FunctionRunner
    num_deaths: Counter[StageKey] = field(default_factory=Counter)
    """Consecutive deaths of the process that calls the priority function, by stage."""

    async def compose_batch(
        self, connection: Connection, stage: Stage, step: int, *, is_due: bool = False
    ) -> BatchHead | BatchWait | BatchEnd | VersionRequested:
        """Composes the batch of `step`, which does not exist yet; `stage` is locked.

        One that `is_due` is composed of the rollouts that are ready, without those that would
        precede them.
        """
        if is_due and stage.plan.experience_buffer.incomplete_after is None:
            raise PreconditionFailed(
                "incomplete batches are not trained: "
                "`max_read_timeout` of the experience buffer is not set"
            )
        if not stage.is_open:
            return BatchEnd("failed", stage.reason)
        if stage.plan.stored_batches is not None:
            return await compose_stored(connection, stage, step)
        if step != stage.recorded_step + 1:
            raise PreconditionFailed(
                f"step {step} has no batch, the next one to compose is {stage.recorded_step + 1}"
            )
        if wanted := requested_version(stage):
            return wanted
        if stage.plan.stored_rollouts is not None:
            return await self._compose_explored(connection, stage, step)
        if not stage.plan.needs_rollout:
            return await self._compose_data(connection, stage, step)
        if stage.plan.trains_explore_steps:
            return await self._compose_explore_step(connection, stage, step, is_due=is_due)
        if stage.plan.replay is not None:
            return await self._compose_by_priority(connection, stage, step, is_due=is_due)
        return await self._compose_rollouts(connection, stage, step, is_due=is_due)

    async def _compose_incomplete(
        self, connection: Connection, stage: Stage, step: int, before: Place | None = None
    ) -> BatchHead | None:
        """Composes a batch of the rows ready in any place, or of all rows ready before `before`.

        Returns None if no row is ready.
        """
        begun_ns = time.time_ns()
        stage = await filter_stale_rows(connection, stage, step, before, is_incomplete=True)
        if before is None:
            rows = (await load_ready(connection, stage, wanted=1, in_order=False)).rows
        else:
            rows = await rows_before(connection, stage.key, before)
        if not rows:
            return None
        head = await self._record(
            connection, stage, step, rows, up_to=None, figures=INCOMPLETE, are_new=True
        )
        await log_incomplete(connection, stage, step, len(rows))
        telemetry.record_batch_span(stage.key, step, rows, stage.incarnation, begun_ns)
        return head

    async def _compose_rollouts(
        self, connection: Connection, stage: Stage, step: int, *, is_due: bool
    ) -> BatchHead | BatchWait | BatchEnd:
        begun_ns = time.time_ns()
        if stage.plan.oldest_version(step):
            unfinished = await _first_unfinished(connection, stage)
            stage = await filter_stale_rows(connection, stage, step, unfinished)
        ready = await load_ready(connection, stage, wanted=stage.plan.num_rollout_rows)
        num_rows = ready.num_rows
        decision: BatchDecision | None = decide_full_batch(stage, step, num_rows)
        if decision is None and stage.takes_clients:
            waiting = BatchWait(WAITS_FOR_CLIENTS, waits_for=WaitKind.TASKS)
            decision = await wait_for_unfinished(connection, stage) or waiting
        elif decision is None:
            supply = await load_supply(connection, stage, step, num_rows)
            decision = decide_batch(stage, step, supply)
        match decision:
            case ComposeNow():
                rows = ready.rows or (await load_ready(connection, stage, wanted=1)).rows
                last = rows[-1].measured if stage.is_ordered and num_rows > len(rows) else None
                up_to = (last.explore_step, last.position) if last else None
                head = await self._record(
                    connection, stage, step, rows, up_to=up_to, figures={}, are_new=True
                )
                telemetry.record_batch_span(stage.key, step, rows, stage.incarnation, begun_ns)
                return head
            case _:
                answer = await handle_shortfall(connection, stage, step, decision, num_rows)
                if is_due and isinstance(answer, BatchWait):
                    return await self._compose_incomplete(connection, stage, step) or answer
                return answer

    async def _compose_explore_step(
        self, connection: Connection, stage: Stage, step: int, *, is_due: bool
    ) -> BatchHead | BatchWait | BatchEnd:
        """Takes all samples up to the end of explore step `step`, once no more can come of it.

        Samples of earlier steps were included again by a person, or arrived after the batch of
        their step was due.
        """
        if step > stage.total_train_steps:
            return _drained(stage)
        begun_ns = time.time_ns()
        unfinished = await first_unfinished(connection, stage.key)
        end = (step + 1, 0)
        if stage.explore_step < step or (unfinished and unfinished < end):
            incomplete = None
            if is_due:
                incomplete = await self._compose_incomplete(connection, stage, step, before=end)
            return incomplete or await wait_until_whole(connection, stage, step)
        stage = await filter_stale_rows(connection, stage, step, end)
        rows = await rows_before(connection, stage.key, end)
        runs = {
            (row.measured.explore_step, row.measured.position, row.measured.run) for row in rows
        }
        decision: BatchDecision = decide_explore_step(
            stage,
            step,
            num_runs=len(runs),
            refill_rounds=(await count_refills(connection, stage.key, step)).num_rounds,
            next_step_wait="" if stage.plan.has_dynamic_sync else why_not_begun(stage, step),
        )
        waits = isinstance(decision, BatchWait | RefillTasks)
        if (
            is_due
            and waits
            and (incomplete := await self._compose_incomplete(connection, stage, step, before=end))
        ):
            return incomplete
        if decision != ComposeNow():
            return await handle_shortfall(connection, stage, step, decision, len(runs))
        up_to = (step + 1, -1)
        head = await self._record(
            connection, stage, step, rows, up_to=up_to, figures={}, are_new=True
        )
        telemetry.record_batch_span(stage.key, step, rows, stage.incarnation, begun_ns)
        return head

    async def _compose_by_priority(
        self, connection: Connection, stage: Stage, step: int, *, is_due: bool
    ) -> BatchHead | BatchWait | BatchEnd:
        if step > stage.total_train_steps:
            return _drained(stage)
        begun_ns = time.time_ns()
        unfinished = None if is_due else await _first_unfinished(connection, stage)
        try:
            seen = await self._select(connection, stage, step, unfinished)
        except FunctionFailed as error:
            return await self._handle_priority_failure(connection, stage, error)
        self.num_deaths.pop(stage.key, None)
        if seen is not None and seen.is_enough:
            return await self._record_selection(connection, step, seen, begun_ns)
        stage = seen.stage if seen else stage
        num_rows = len(seen.selection.taken) if seen else await count_ready(connection, stage)
        supply = await load_supply(connection, stage, step, num_rows)
        decision = decide_short_batch(stage, step, supply)
        if isinstance(decision, ComposeNow) and seen is not None:
            return await self._record_selection(connection, step, seen, begun_ns)
        if is_due and seen is not None and num_rows:
            await log_incomplete(connection, stage, step, num_rows)
            return await self._record_selection(connection, step, seen, begun_ns, INCOMPLETE)
        return await handle_shortfall(connection, stage, step, decision, num_rows)

    async def _select(
        self, connection: Connection, stage: Stage, step: int, unfinished: Place | None
    ) -> ReplayAttempt | None:
        """Returns the first sufficient choice, or the last one; None if there is no choice yet.

        Raises: FunctionFailed.
        """
        seen: ReplayAttempt | None = None
        for before in candidate_bounds(stage, step):
            if before is not None and unfinished is not None and unfinished < before:
                break
            seen = await select_candidates(connection, stage, step, before, self.priorities)
            stage = seen.stage
            if seen.is_enough:
                break
        return seen

    async def _handle_priority_failure(
        self, connection: Connection, stage: Stage, error: FunctionFailed
    ) -> BatchWait | BatchEnd:
        """Retries after the process died, `MAX_TRIES` tries in all; otherwise fails the stage."""
        assert stage.plan.replay is not None
        name = f"`priority_fn: {stage.plan.replay.priority_fn}`"
        reason = f"{name} cannot be used: {error}"
        if isinstance(error, FunctionProcessDied):
            self.num_deaths[stage.key] += 1
            if self.num_deaths[stage.key] < MAX_TRIES:
                logger.warning("a batch is composed again", extra={"why": f"{name}: {error}"})
                return BatchWait(f"{name} is called again: {error}", look_again_seconds=0.0)
            reason = f"{reason}, {MAX_TRIES} times"
        self.num_deaths.pop(stage.key, None)
        await end_stage(connection, stage, StageState.FAILED, reason)
        return BatchEnd("failed", reason)

    async def _record_selection(
        self,
        connection: Connection,
        step: int,
        seen: ReplayAttempt,
        begun_ns: int,
        further: Mapping[str, float] = NO_FIGURES,
    ) -> BatchHead:
        stage, choice = seen.stage, seen.selection
        figures = {**await apply_selection(connection, stage, choice, step), **further}
        ids = [row.experience_id for row in choice.taken]
        rows = await ready_rows_by_id(connection, stage.key, ids)
        up_to = (seen.before[0], seen.before[1] - 1) if seen.before else None
        head = await self._record(connection, stage, step, rows, up_to=up_to, figures=figures)
        telemetry.record_batch_span(stage.key, step, rows, stage.incarnation, begun_ns)
        return head

    async def _record(
        self,
        connection: Connection,
        stage: Stage,
        step: int,
        rows: Sequence[ReadyRow],
        *,
        up_to: Place | None,
        figures: Mapping[str, float],
        are_new: bool = False,
    ) -> BatchHead:
        """Records a batch of these rows; `are_new` rows are marked as batched too."""
        measured = [row.measured for row in rows]
        metrics = batch_metrics(measured, step) | sampling_metrics(stage)
        await note_long_prompts(connection, stage, measured)
        metrics |= pipeline_metrics(await take_metrics(connection, stage.key, step, up_to)) | dict(
            figures
        )
        items = [
            BatchItem(experience_id=row.experience_id, advantage=row.advantage, weight=1.0)
            for row in rows
        ]
        items += await expert_rows(connection, stage, step)
        samples = await self._samples(connection, stage, rows) if step == 1 else None
        head = _head(stage, step, items, metrics)
        taken = [row.experience_id for row in rows] if are_new else []
        head = await record_batch(connection, stage, head, items, taken=taken, samples=samples)
        logger.debug(
            "a batch is composed",
            extra={"stage": stage.key.stage, "step": step, "rows": len(items)},
        )
        return head

    async def _samples(
        self, connection: Connection, stage: Stage, rows: Sequence[ReadyRow]
    ) -> SamplesEvent:
        ids = _of_different_groups(rows)
        bodies = await load_bodies(connection, stage.samples_key, ids)
        shown = [self.decode_sample(body) for body in bodies]
        return SamplesEvent(samples=shown, experience_ids=ids)

    async def _compose_explored(
        self, connection: Connection, stage: Stage, step: int
    ) -> BatchHead | BatchEnd:
        rows = await explored_rows(connection, stage) if step <= stage.total_train_steps else []
        if not rows:
            return _drained(stage)
        return await self._record(connection, stage, step, rows, up_to=None, figures={})

    async def _compose_data(
        self, connection: Connection, stage: Stage, step: int
    ) -> BatchHead | BatchEnd:
        if step > stage.total_train_steps:
            return _drained(stage)
        size = stage.plan.train_batch_size
        items = await draw_data(
            connection, stage, stage.plan.experience_buffer, step=step, count=size
        )
        await update_stage(connection, stage.key, num_drawn=step * size)
        samples = await _data_samples(connection, stage, items) if step == 1 else None
        head = _head(stage, step, items, {"num_rows": float(size)})
        return await record_batch(connection, stage, head, items, samples=samples)


async def _data_samples(
    connection: Connection, stage: Stage, items: Sequence[BatchItem]
) -> SamplesEvent:
    places = [
        (item.taskset_id, item.row_index)
        for item in items[:NUM_SAMPLES]
        if item.taskset_id is not None and item.row_index is not None
    ]
    texts = await load_tasks(connection, stage.key.tenant, places)
    form = stage.plan.experience_buffer.format
    schema = stage.plan.algorithm.row_schema
    shown = [data_sample(texts[place], form, schema) for place in places]
    return SamplesEvent(samples=shown, experience_ids=[])


async def _first_unfinished(connection: Connection, stage: Stage) -> Place | None:
    """Returns the place of the first group that may still give rows, if their order is fixed."""
    return await first_unfinished(connection, stage.key) if stage.is_ordered else None


def _drained(stage: Stage) -> BatchEnd:
    return BatchEnd("drained", f"all {stage.total_train_steps} train steps have their batch")


def _head(
    stage: Stage, step: int, items: Sequence[BatchItem], metrics: dict[str, float]
) -> BatchHead:
    plan = stage.plan
    is_masked = plan.masks_stale_tokens and plan.stored_rollouts is None
    return BatchHead(
        step=step,
        incarnation=stage.incarnation,
        num_rows=len(items),
        metrics=metrics,
        oldest_version=plan.oldest_version(step) if is_masked else 0,
    )


def _of_different_groups(rows: Sequence[ReadyRow]) -> list[str]:
    first: dict[tuple[int, int], str] = {}
    for row in rows:
        first.setdefault((row.measured.explore_step, row.measured.position), row.experience_id)
    return list(first.values())[:NUM_SAMPLES]
