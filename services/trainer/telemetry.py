"""The first rank's telemetry: one trace per train step, linked to the tasks it learned from."""

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from services.trainer.types import RunReward, TrainBatch
from trinity.errors import RunFailed
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.tracing import Span, SpanContextRef
from trinity.types import StageKey

logger = logging.getLogger(__name__)

MEDIAN_STEPS = 20
MIN_MEDIAN_STEPS = 5
SPIKE_FACTOR = 10.0
SMALLEST_SPIKE = 0.05
"""A divergence below this is no spike, however small the median."""
GRADIENT_NORMS = ("actor/grad_norm", "critic/grad_norm")
"""Norms of the models that were updated in the step."""
DIVERGENCES = ("actor/ppo_kl", "actor/kl")
"""Means per token, so that a value means the same in every run."""
UNTRAINED_ADVICE = (
    ". Prompts that are too long, responses that were cut off and rows that an operator masks are "
    "not trained: raise `model.max_prompt_tokens`, `model.max_response_tokens` or "
    "`model.max_model_len` in a new experiment, or go on without such steps by "
    "`buffer.trainer_input.experience_buffer.on_bad_row: skip`"
)


class StepWarning(StrEnum):
    """Each is a metric `warning/<name>`, 1 or a number of rows where it fired."""

    NON_FINITE_GRADIENT = "non_finite_gradient"
    ZERO_REWARD_VARIANCE = "zero_reward_variance"
    KL_SPIKE = "kl_spike"
    UNTRAINED_ROWS = "untrained_rows"


EXPLANATIONS = {
    StepWarning.NON_FINITE_GRADIENT: "the gradient is not finite: weights were not updated",
    StepWarning.ZERO_REWARD_VARIANCE: "the rewards of each group are all equal: no learning signal",
    StepWarning.KL_SPIKE: "the policy moved away far faster than in the steps before",
    StepWarning.UNTRAINED_ROWS: "rows have no token to train on: they are bad, too long or masked",
}


def has_trained_tokens(batch: TrainBatch, *, may_lack: bool) -> bool:
    """Returns true if the batch has tokens to train on.

    With `may_lack`, a step without such tokens is logged and skipped.
    Raises: RunFailed with the reason that the rows have no tokens to train on.
    """
    if batch.num_trained_tokens:
        return True
    reason = _untrained_reason(batch)
    if not may_lack:
        raise RunFailed(f"{reason}{UNTRAINED_ADVICE}")
    logger.warning("a step is left out: %s", reason, extra={"step": batch.step})
    return False


def _untrained_reason(batch: TrainBatch) -> str:
    num_cut = sum(row.is_truncated for row in batch.rows)
    cut = f"; {num_cut} of them are cut off before their answer begins" if num_cut else ""
    bad = f"; {batch.num_bad_rows} more cannot be trained on" if batch.num_bad_rows else ""
    return (
        f"train step {batch.step} has nothing to train on: no token of its {len(batch.rows)} rows "
        f"is trained{cut}{bad}"
    )


class AnomalyChecks:
    """Checks each step's metrics once, in order."""

    def __init__(self) -> None:
        self._history = {name: deque[float](maxlen=MEDIAN_STEPS) for name in DIVERGENCES}
        self._has_warned_of_rows = False

    def check_step(self, batch: TrainBatch, metrics: dict[str, float]) -> dict[str, float]:
        """Adds `warning/...` to the metrics, and drops those that are not finite numbers."""
        warnings = self._warnings(batch, metrics)
        for warning in warnings:
            extra = {"step": batch.step, "warning": warning, "value": _value(warning, batch)}
            logger.warning(EXPLANATIONS[warning], extra=extra)
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return finite | {f"warning/{warning}": _value(warning, batch) for warning in warnings}

    def _warnings(self, batch: TrainBatch, metrics: dict[str, float]) -> list[StepWarning]:
        found = []
        norms = [metrics[name] for name in GRADIENT_NORMS if name in metrics]
        if not all(math.isfinite(norm) for norm in norms):
            found.append(StepWarning.NON_FINITE_GRADIENT)
        if _has_equal_rewards(batch):
            found.append(StepWarning.ZERO_REWARD_VARIANCE)
        spikes = [self._is_spike(name, metrics[name]) for name in DIVERGENCES if name in metrics]
        if any(spikes):
            found.append(StepWarning.KL_SPIKE)
        if _num_untrained(batch) and not self._has_warned_of_rows:
            self._has_warned_of_rows = True
            found.append(StepWarning.UNTRAINED_ROWS)
        return found

    def _is_spike(self, name: str, value: float) -> bool:
        history = self._history[name]
        median = statistics.median(map(abs, history)) if len(history) >= MIN_MEDIAN_STEPS else None
        if math.isfinite(value):
            history.append(value)
        if median is None:
            return not math.isfinite(value)
        return not abs(value) <= max(SPIKE_FACTOR * median, SMALLEST_SPIKE)


def _value(warning: StepWarning, batch: TrainBatch) -> float:
    """Returns the number of rows that the warning is about; 1 if it is about the whole step."""
    is_of_rows = warning is StepWarning.UNTRAINED_ROWS
    return float(_num_untrained(batch)) if is_of_rows else 1.0


def _num_untrained(batch: TrainBatch) -> int:
    return len(batch.rows) - batch.num_trained_rows + batch.num_bad_rows


def _has_equal_rewards(batch: TrainBatch) -> bool:
    """True if there are groups of several runs, and all runs of each group got the same reward.

    Advantages do not show it: they need not be the reward less its group's mean.
    """
    groups: dict[str, list[RunReward]] = {}
    for row in batch.rows:
        if row.run_reward is not None:
            groups.setdefault(row.run_reward.assignment_id, []).append(row.run_reward)
    compared = [group for group in groups.values() if len({reward.run for reward in group}) > 1]
    return bool(compared) and all(
        len({reward.reward for reward in group}) == 1 for group in compared
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTelemetry:
    """Sends the spans and metrics of one trainer incarnation in a stage, from the first rank."""

    key: StageKey
    incarnation: int
    algorithm: str

    def begin_step_span(self, step: int) -> Span:
        """Begins the span of a train step, from the request for its batch to its report."""
        if not tracing.is_on():
            return tracing.NO_SPAN
        return tracing.span(
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
        stage = {names.STAGE: self.key.stage}
        seconds = time.perf_counter() - begun
        metrics.SYNC_SECONDS.record(seconds, {**stage, "trinity.sync": "publish"})
        metrics.PUBLISHED_VERSION.set(version, stage)

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
