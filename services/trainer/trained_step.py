"""A train step after its optimizer step and before its report."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.trainer.batch_metrics import batch_metrics
from services.trainer.rows import TrainBatch
from services.trainer.step_types import StepOutcome
from services.trainer.weights import Exported
from trinity.config.plan import StagePlan
from trinity.telemetry.tracing import Span

PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step whose weights and report are not sent yet."""

    batch: TrainBatch
    outcome: StepOutcome
    span: Span
    """The span of the whole step, which ends with its report."""
    weights: Exported | None
    waited_seconds: float
    """Time that it waited for the batch."""
    train_seconds: float
    busy_seconds: float
    """Time from the batch until the next step could begin, apart from sending weights and
    report."""
    save_seconds: float | None = None
    """Time of a checkpoint that was written after the previous step."""

    def figures(
        self, plan: StagePlan, *, publish_seconds: float, is_beside: bool
    ) -> dict[str, float]:
        """Returns the metrics to report for the step."""
        figures = self.outcome.metrics | batch_metrics(
            self.batch,
            max_prompt_tokens=plan.max_prompt_tokens,
            max_response_tokens=plan.max_response_tokens,
        )
        step_seconds = self.waited_seconds + self.busy_seconds
        if not is_beside:
            step_seconds += publish_seconds
        figures["time/read_experience"] = self.waited_seconds
        figures["time/train_step"] = self.train_seconds
        figures["time/sync_weight"] = publish_seconds
        if self.save_seconds is not None:
            figures["time/save_checkpoint"] = self.save_seconds
        figures["time/step"] = figures["perf/time_per_step"] = step_seconds
        num_tokens = figures["perf/total_num_tokens"]
        figures["perf/throughput"] = num_tokens / step_seconds
        return figures | _per_token(figures, num_tokens)


def _per_token(figures: Mapping[str, float], num_tokens: float) -> dict[str, float]:
    """Returns the milliseconds of the parts per token of the batch."""
    return {
        f"timing_per_token_ms/{part}": 1000 * figures[f"time/{part}"] / num_tokens
        for part in PER_TOKEN
        if f"time/{part}" in figures and num_tokens
    }
