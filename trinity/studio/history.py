"""The curves of a run, as its progress events tell them."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity.api.v1 import buffer_pb2
from trinity.run.progress.view import (
    TIME_PARTS,
    Evaluation,
    MeanWithError,
    evaluation_of,
    failed_runs_text,
    shown_order,
)
from trinity.studio.plain_text import cut_text

MAX_STEPS = 20_000
"""Steps of a stage that are kept; older ones are thinned out."""
MAX_NOTICES = 200
MAX_SAMPLES = 8
MAX_SAMPLE_CHARS = 4_000
STEP_SECONDS = "perf/time_per_step"
BATCH_NAMES = ("reward/", "response_length/", "prompt_length/", "staleness", "advantage/")
STEP_NAMES = ("actor/", "critic/", "perf/", "kl/", *TIME_PARTS)
"""Beginnings of the names of metrics that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """A sample to look at: untrusted text, cut to a length that a page can show."""

    prompt: str
    response: str
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """A line of the list of events."""

    unix_millis: int
    stage: str
    text: str
    """May quote users' data."""


@dataclass(slots=True, kw_only=True)
class StageHistory:
    """One stage: curves by the name of their metric, as step to value."""

    name: str
    total_steps: int = 0
    opened_millis: int = 0
    last_millis: int = 0
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    batches: dict[str, dict[int, float]] = field(default_factory=dict)
    step_millis: dict[int, int] = field(default_factory=dict)
    evaluations: dict[str, dict[int, Evaluation]] = field(default_factory=dict)
    """Taskset to version to result; each taskset has one curve."""
    samples: tuple[ShownSample, ...] = ()

    @property
    def last_step(self) -> int:
        """The newest step trained, 0 before the first."""
        return max(self.step_millis, default=0)

    def curve(self, name: str) -> dict[int, float]:
        """Returns the points of a metric of steps or batches."""
        return self.steps.get(name) or self.batches.get(name) or {}

    @property
    def scores(self) -> list[str]:
        """Names of the scores that were measured: accuracy, reward, then the others in order."""
        done = (found for versions in self.evaluations.values() for found in versions.values())
        return shown_order(name for found in done for name in found.metrics)

    def measured(self, taskset: str, score: str) -> dict[int, MeanWithError]:
        """Returns the versions whose score on a taskset is known, in order."""
        return {
            version: found
            for version, done in sorted(self.evaluations.get(taskset, {}).items())
            if (found := done.metrics.get(score)) is not None and math.isfinite(found.mean)
        }

    def recent(self, name: str, num_steps: int = 10) -> float | None:
        """Returns the mean over the newest points of a curve; None before the first."""
        points = self.curve(name)
        newest = [points[step] for step in sorted(points)[-num_steps:]]
        return sum(newest) / len(newest) if newest else None

    def time_shares(self) -> list[tuple[str, float]]:
        """Returns parts of the trainer's time in the newest steps, largest share first."""
        seconds = {label: self.recent(name) or 0.0 for name, label in TIME_PARTS.items()}
        total = sum(seconds.values())
        shares = [(label, value / total) for label, value in seconds.items() if value > 0]
        return sorted(shares, key=lambda share: -share[1])


@dataclass(slots=True)
class RunHistory:
    """All stages of a run; `apply` takes the events in order, and each once."""

    stages: dict[str, StageHistory] = field(default_factory=dict)
    events: deque[RunEvent] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    last_event: int = 0
    is_read: bool = False
    """True once all is here that was stored when the run was opened."""

    def apply(self, event: buffer_pb2.ProgressEvent) -> None:
        """Applies one event; ignores those that were applied before."""
        if event.number <= self.last_event:
            return
        self.last_event = event.number
        stage = self.stages.setdefault(event.stage, StageHistory(name=event.stage))
        stage.last_millis = event.unix_millis
        match event.WhichOneof("event"):
            case "opened":
                self._open(stage, event)
            case "batch":
                _add(stage.batches, event.batch.step, event.batch.metrics, BATCH_NAMES)
            case "step":
                stage.step_millis[event.step.step] = event.unix_millis
                _add(stage.steps, event.step.step, event.step.metrics, STEP_NAMES)
                _thin(stage)
            case "evaluation":
                self._evaluated(stage, event)
            case "samples":
                stage.samples = tuple(map(_shown, event.samples.samples[-MAX_SAMPLES:]))
            case "notice":
                self._record(event, event.notice.text)

    def _open(self, stage: StageHistory, event: buffer_pb2.ProgressEvent) -> None:
        stage.total_steps = event.opened.total_train_steps or stage.total_steps
        stage.opened_millis = stage.opened_millis or event.unix_millis
        tasks = f" with {event.opened.num_tasks:,} tasks" if event.opened.num_tasks else ""
        self._record(event, f"opened{tasks}")

    def _evaluated(self, stage: StageHistory, event: buffer_pb2.ProgressEvent) -> None:
        done = event.evaluation
        versions = stage.evaluations.setdefault(done.taskset, {})
        versions[done.version] = evaluation_of(stage.name, done)
        failed = failed_runs_text(done)
        self._record(event, f"version {done.version} evaluated on {done.taskset}{failed}")

    def _record(self, event: buffer_pb2.ProgressEvent, text: str) -> None:
        self.events.append(RunEvent(unix_millis=event.unix_millis, stage=event.stage, text=text))


def _add(
    curves: dict[str, dict[int, float]],
    step: int,
    metrics: Mapping[str, float],
    beginnings: tuple[str, ...],
) -> None:
    """Adds the points of one step; infinite values and NaN would break the scales."""
    for name, value in metrics.items():
        if name.startswith(beginnings) and math.isfinite(value):
            curves.setdefault(name, {})[step] = value


def _thin(stage: StageHistory) -> None:
    """Drops every second of the older steps when there are too many."""
    if len(stage.step_millis) <= MAX_STEPS:
        return
    dropped = set(sorted(stage.step_millis)[1 : MAX_STEPS // 2 : 2])
    for points in (*stage.steps.values(), *stage.batches.values()):
        for step in dropped & points.keys():
            del points[step]
    for step in dropped:
        del stage.step_millis[step]


def _shown(sample: buffer_pb2.Sample) -> ShownSample:
    return ShownSample(
        prompt=cut_text(sample.prompt, MAX_SAMPLE_CHARS),
        response=cut_text(sample.response, MAX_SAMPLE_CHARS),
        reward=sample.reward if sample.HasField("reward") else None,
    )
