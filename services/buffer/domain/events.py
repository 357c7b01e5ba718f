"""Entries of the progress log."""

from dataclasses import dataclass

from services.buffer.domain.evaluation import MetricSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpened:
    """A stage was opened."""

    total_train_steps: int
    total_explore_steps: int
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComposed:
    """A batch was composed."""

    step: int
    num_rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained:
    """A step was trained; `replayed` if an earlier incarnation had already trained it."""

    step: int
    incarnation: int
    metrics: dict[str, float]
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone:
    """An evaluation is complete."""

    version: int
    taskset: str
    num_tasks: int
    num_failed: int
    metrics: list[MetricSummary]
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample as text."""

    prompt: str
    response: str
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples to show to people."""

    samples: list[Sample]
    experience_ids: list[str]
    """The experiences that the samples come from; empty for training data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for people."""

    text: str


Event = StageOpened | BatchComposed | StepTrained | EvaluationDone | Samples | Notice
KINDS: dict[type[Event], str] = {
    StageOpened: "opened",
    BatchComposed: "batch",
    StepTrained: "step",
    EvaluationDone: "evaluation",
    Samples: "samples",
    Notice: "notice",
}
