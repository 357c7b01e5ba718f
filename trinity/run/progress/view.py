"""The state of a run as its progress events tell it: stages, steps, evaluations."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from trinity.api.v1 import buffer_pb2
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan

Metrics = dict[str, float]

# The parts of a train step that do not overlap, and their titles.
TIME_PARTS = {
    "time/read_experience": "waiting for a batch",
    "time/train_step": "training",
    "time/sync_weight": "publishing weights",
    "time/save_checkpoint": "checkpoint",
}
WARNING_PREFIX = "warning/"
STEP_METRICS = ("actor/loss", "perf/total_num_tokens", *TIME_PARTS)
BATCH_METRICS = ("reward/mean",)
"""Shown in lines, screen, curves and summary; monitors show all others."""
RECENT_STEPS = 20
FIRST_METRICS = ("accuracy", "reward")


def shown_step_metrics(metrics: Mapping[str, float]) -> Metrics:
    """Returns a step's metrics that are shown, and its warnings."""
    warnings = {name: value for name, value in metrics.items() if name.startswith(WARNING_PREFIX)}
    return _kept(metrics, STEP_METRICS) | warnings


def _kept(metrics: Mapping[str, float], names: tuple[str, ...]) -> Metrics:
    return {name: metrics[name] for name in names if name in metrics}


class MeanWithError(BaseModel):
    """A mean with its standard error over n tasks."""

    model_config = ConfigDict(frozen=True)

    mean: float
    standard_error: float
    n: int
    of_runs: dict[str, float] = Field(default_factory=dict)
    """If a task has several runs: `std@4`, `best@2`, `worst@2`, `pass@2`, as means over tasks."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.standard_error:.3f}"


class FailedRuns(Protocol):
    """The failed runs of an evaluation."""

    @property
    def num_failed(self) -> int:
        """Number of runs that failed."""

    @property
    def num_runs(self) -> int:
        """Number of runs, those among them."""

    @property
    def failed_count_zero(self) -> bool:
        """True if they have 0 in every score; else they are in no figure."""


def failed_runs_text(done: FailedRuns) -> str:
    """Returns `, 3 of 8 runs failed and count 0` to write after n; empty if no run failed."""
    if not done.num_failed:
        return ""
    meaning = "count 0" if done.failed_count_zero else "are left out"
    return f", {done.num_failed:,} of {done.num_runs:,} runs failed and {meaning}"


NOTHING_MEASURED = MeanWithError(mean=float("nan"), standard_error=float("nan"), n=0)


class Evaluation(BaseModel):
    """One measured version."""

    model_config = ConfigDict(frozen=True)

    stage: str
    version: int
    taskset: str
    num_tasks: int = 0
    num_failed: int
    num_runs: int
    failed_count_zero: bool
    """True if failed runs have 0 in every score; else they are in no figure."""
    metrics: dict[str, MeanWithError]
    seconds: float

    def headline(self) -> MeanWithError:
        """Returns accuracy if it was measured, else the reward; NaN if every run failed."""
        return self.metrics.get(self.headline_name, NOTHING_MEASURED)

    @property
    def headline_name(self) -> str:
        """The name of the headline's metric."""
        return "accuracy" if "accuracy" in self.metrics else "reward"


def shown_order(names: Iterable[str]) -> list[str]:
    """Returns names of an evaluation's metrics: accuracy, reward, then the others in order."""
    given = set(names)
    first = [name for name in FIRST_METRICS if name in given]
    return [*first, *sorted(given.difference(first))]


@dataclass(slots=True, kw_only=True)
class StageProgressView:
    """One stage's progress so far; steps and batches by their number."""

    name: str
    headline_taskset: str = ""
    """The evaluation taskset by which versions are compared; empty if the plan is not known."""
    mode: str
    total_steps: int = 0
    """0 until the stage is opened, or when it is unbounded."""
    retrained_to: int = 0
    """Last step of the stored batches that are trained again; 0 if the stage makes its own."""
    steps: dict[int, Metrics] = field(default_factory=dict)
    batches: dict[int, Metrics] = field(default_factory=dict)
    batch_rows: dict[int, int] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    samples: list[buffer_pb2.Sample] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    changes: list[buffer_pb2.SettingChange] = field(default_factory=list)
    """Settings that were changed between two starts."""
    opened_millis: int = 0
    first_batch_millis: int = 0
    last_millis: int = 0
    step_millis: list[int] = field(default_factory=list)
    """The end time of each of the latest steps, for the time left."""

    @property
    def evaluations_by_taskset(self) -> dict[str, list[Evaluation]]:
        """Evaluations by their taskset, the headline's first, then as they were first measured."""
        found: dict[str, list[Evaluation]] = {}
        for done in self.evaluations:
            found.setdefault(done.taskset, []).append(done)
        return dict(sorted(found.items(), key=lambda entry: entry[0] != self.headline_taskset))

    @property
    def last_step(self) -> int:
        """Newest step trained, 0 before the first."""
        return max(self.steps, default=0)

    @property
    def new_warnings(self) -> list[str]:
        """Warnings of the newest step that the step before did not have."""
        now, before = (
            _warnings(self.steps, self.last_step),
            _warnings(self.steps, self.last_step - 1),
        )
        return sorted(now - before)

    @property
    def seconds(self) -> float:
        """Time from the stage's opening to its latest event, including stops of the run."""
        return max(0, self.last_millis - self.opened_millis) / 1000

    @property
    def num_tokens(self) -> int:
        """Tokens trained on, prompts included."""
        return int(sum(m.get("perf/total_num_tokens", 0.0) for m in self.steps.values()))

    @property
    def num_rows(self) -> int:
        """Rows trained on."""
        return sum(self.batch_rows.get(step, 0) for step in self.steps)


def _warnings(steps: dict[int, Metrics], step: int) -> set[str]:
    found = steps.get(step, {})
    return {name.removeprefix(WARNING_PREFIX) for name in found if name.startswith(WARNING_PREFIX)}


@dataclass(slots=True)
class RunView:
    """The whole run; `apply` takes the events in order."""

    stages: dict[str, StageProgressView]
    last_event: int = 0

    @classmethod
    def from_plan(cls, plan: ExperimentPlan) -> "RunView":
        """Returns an empty view of the plan's stages, in order."""
        return cls({stage.name: _empty(stage) for stage in plan.stages})

    def apply(self, event: buffer_pb2.ProgressEvent) -> None:
        """Applies one event."""
        self.last_event = event.number
        stage = self.stages.get(event.stage)
        if stage is None:
            return
        stage.last_millis = event.unix_millis
        match event.WhichOneof("event"):
            case "opened":
                total = event.opened.total_train_steps or stage.total_steps
                stage.total_steps = stage.retrained_to or total
                stage.opened_millis = stage.opened_millis or event.unix_millis
            case "batch":
                stage.first_batch_millis = stage.first_batch_millis or event.unix_millis
                stage.batches[event.batch.step] = _kept(event.batch.metrics, BATCH_METRICS)
                stage.batch_rows[event.batch.step] = event.batch.num_rows
            case "step":
                stage.steps[event.step.step] = shown_step_metrics(event.step.metrics)
                stage.step_millis = [*stage.step_millis[-RECENT_STEPS:], event.unix_millis]
            case "evaluation":
                stage.evaluations.append(evaluation_of(event.stage, event.evaluation))
            case "samples":
                stage.samples = list(event.samples.samples)
            case "notice":
                stage.notices.append(event.notice.text)
            case "changed":
                stage.changes.extend(event.changed.changes)

    @property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations, in the order in which they ended."""
        return [done for stage in self.stages.values() for done in stage.evaluations]

    @property
    def evaluations_by_taskset(self) -> dict[str, list[Evaluation]]:
        """The same by their taskset: that of the newest headline first."""
        found: dict[str, list[Evaluation]] = {}
        for stage in self.stages.values():
            for taskset, evaluations in stage.evaluations_by_taskset.items():
                found.setdefault(taskset, []).extend(evaluations)
        measured = [stage for stage in self.stages.values() if stage.evaluations]
        first = next(iter(measured[-1].evaluations_by_taskset)) if measured else ""
        return dict(sorted(found.items(), key=lambda entry: entry[0] != first))


def _empty(stage: StagePlan) -> StageProgressView:
    last = stage.stored_batches.last_step if stage.stored_batches else 0
    return StageProgressView(
        name=stage.name,
        headline_taskset=stage.headline_taskset,
        mode=stage.mode,
        total_steps=last or stage.total_train_steps or 0,
        retrained_to=last,
    )


def evaluation_of(stage: str, done: buffer_pb2.EvaluationDone) -> Evaluation:
    """Converts the event of an evaluation."""
    return Evaluation(
        stage=stage,
        version=done.version,
        taskset=done.taskset,
        num_tasks=done.num_tasks,
        num_failed=done.num_failed,
        num_runs=done.num_runs,
        failed_count_zero=done.failed_count_zero,
        metrics={
            m.name: MeanWithError(
                mean=m.mean,
                standard_error=m.standard_error,
                n=m.num_tasks,
                of_runs=dict(m.of_runs),
            )
            for m in done.metrics
        },
        seconds=done.duration_seconds,
    )


def change_text(change: buffer_pb2.SettingChange) -> str:
    """Describes a changed setting and the step from which it holds."""
    rounding = ", which may round differently" if change.only_rounds else ""
    return f"{change.key}: {change.before} -> {change.now} from step {change.from_step}{rounding}"
