"""A train step between the optimizer's and its report."""

from dataclasses import dataclass

from services.trainer.batch_metrics import batch_metrics
from services.trainer.learner import StepOutcome
from services.trainer.rows import TrainBatch
from services.trainer.weights import Exported
from trinity.config.plan import StagePlan
from trinity.telemetry.tracing import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step whose weights and report are still to go out."""

    batch: TrainBatch
    outcome: StepOutcome
    span: Span
    """The whole step's, which ends with its report."""
    weights: Exported | None
    waited_seconds: float
    """For the batch."""
    train_seconds: float
    busy_seconds: float
    """From the batch until the next step could begin but for what is still to go out."""

    def figures(
        self, plan: StagePlan, *, publish_seconds: float, is_beside: bool
    ) -> dict[str, float]:
        """What is reported of the step."""
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
        figures["time/step"] = step_seconds
        figures["perf/throughput"] = figures["perf/total_num_tokens"] / step_seconds
        return figures
