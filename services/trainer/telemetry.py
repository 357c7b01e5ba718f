"""The first rank's telemetry: one trace per train step, linked to the tasks it learned from."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from services.trainer.types import TrainBatch
from trinity.telemetry import metrics, names, tracing
from trinity.telemetry.tracing import Span, SpanContextRef
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTelemetry:
    """Spans and metrics of one life of the trainer in a stage; other ranks send none."""

    key: StageKey
    incarnation: int
    algorithm: str

    def begin_step_span(self, step: int) -> Span:
        """Begins the span of a train step, from the request for its batch to its report."""
        if not tracing.is_on():
            return tracing.NO_SPAN
        return tracing.begin(
            names.LOOP,
            own=self._place(step),
            attributes={
                names.RL_RUN: self.key.experiment_id,
                names.RL_ALGORITHM: self.algorithm,
                names.TENANT: self.key.tenant,
                names.STAGE: self.key.stage,
                names.INCARNATION: self.incarnation,
                names.STEP: step,
            },
        )

    def training(self, batch: TrainBatch) -> AbstractContextManager[Span]:
        """Returns the span of the optimizer's work, linked to the traces of the batch's tasks."""
        if not tracing.is_on():
            return tracing.NO_SPAN
        groups = dict.fromkeys(
            row.run_reward.assignment_id for row in batch.rows if row.run_reward is not None
        )
        linked = list(groups)[: tracing.MAX_LINKS]
        return tracing.span(
            names.TRAIN,
            links=[tracing.task_span(assignment_id) for assignment_id in linked],
            attributes={
                names.STEP: batch.step,
                names.NUM_ROWS: len(batch.rows),
                names.REPLAYED: batch.replayed,
                names.LINKS_LEFT_OUT: len(groups) - len(linked),
            },
        )

    @contextmanager
    def publishing(self, version: int, *, begins_trace: bool = False) -> Iterator[None]:
        """Records the publication of weights, in the trace of the step that made them.

        A version that this life trained no step for begins its trace.
        """
        begun = time.perf_counter()
        about = {names.VERSION: version, names.INCARNATION: self.incarnation}
        place = self._place(version)
        parent, own = (None, place) if begins_trace else (place, None)
        with tracing.span(names.SYNC, parent=parent, own=own, attributes=about):
            yield
        metrics.SYNC_SECONDS.record(
            time.perf_counter() - begun, {names.STAGE: self.key.stage, "trinity.sync": "publish"}
        )

    def saving(self, step: int) -> AbstractContextManager[Span]:
        """Returns the span of writing a checkpoint."""
        about = {names.STEP: step, names.INCARNATION: self.incarnation}
        return tracing.span(names.CHECKPOINT, parent=self._place(step), attributes=about)

    def trained(self, batch: TrainBatch, step_metrics: dict[str, float]) -> None:
        """Records a step's metrics as they are reported."""
        if not metrics.is_on():
            return
        about = {names.STAGE: self.key.stage}
        metrics.LOOP_SECONDS.record(step_metrics["time/step"], about)
        metrics.TRAIN_SECONDS.record(step_metrics["time/train_step"], about)
        metrics.BATCH_WAIT_SECONDS.record(step_metrics["time/read_experience"], about)
        metrics.TRAINED_TOKENS.add(step_metrics["perf/total_num_tokens"], about)
        metrics.TRAINED_STEP.set(batch.step, about)
        for row in batch.rows:
            if row.oldest_version is not None:
                metrics.STALENESS.record(batch.step - row.oldest_version, about)

    def _place(self, step: int) -> SpanContextRef:
        return tracing.step_span(self.key.experiment_id, self.key.stage, self.incarnation, step)
