"""Progress as plain lines, for logs and pipes: changes, at most every few seconds for steps."""

import re
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from trinity.api.v1 import buffer_pb2
from trinity.run.progress import figures
from trinity.run.progress.view import (
    WARNING_PREFIX,
    Evaluation,
    RunView,
    StageProgressView,
    change_text,
    failed_runs_text,
    shown_order,
)

MIN_SECONDS_BETWEEN_STEP_LINES = 5.0
_NUMBER = re.compile(r"\d+(\.\d+)?")

# Texts of the trainer's warnings.
WARNINGS = {
    "zero_reward_variance": "all runs of each task got the same reward, there is nothing to learn",
    "non_finite_gradient": "the gradient is not finite, the step was skipped",
    "untrained_rows": "{count} rows have no token to train on, they are bad, too long or masked",
    "kl_spike": "the policy moved much further in this step than in those before",
}


class LineSink(Protocol):
    """A receiver of lines for the user."""

    def print_line(self, text: str) -> None:
        """Shows one line."""


class RepeatedNotices:
    """Shows a notice once, and how many came that differ from it in numbers alone.

    A workflow that always raises would else give a line for each of its tasks.
    """

    def __init__(self) -> None:
        self._more: dict[str, int] = {}

    def shown(self, stage: str, text: str) -> list[str]:
        """Returns the lines for a notice; empty if a similar one was shown."""
        line = f"[{stage}] {text}"
        kind = _NUMBER.sub("#", line)
        if kind in self._more:
            self._more[kind] += 1
            return []
        self._more[kind] = 0
        return [line]

    def counts(self) -> list[str]:
        """Returns a line for each kind that came more than once, and forgets them."""
        more, self._more = self._more, {}
        return [f"{count} more like: {kind}" for kind, count in more.items() if count]


class LineReporter:
    """Writes one line for each notable event; step lines are rate-limited."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._notices = RepeatedNotices()
        self._next_step_line = 0.0

    def print_line(self, text: str) -> None:
        """Writes a line of the launcher's own."""
        self._write(text)

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        """Reports an event that `view` has already applied."""
        stage = view.stages.get(event.stage)
        if stage is None:
            return
        if event.WhichOneof("event") == "opened":
            self._write(f"[{stage.name}] {_extent(stage, event.opened)}")
        self._write_all(event_lines(stage, event, self._notices))
        if event.WhichOneof("event") == "step":
            self._step(stage, event.step)

    def refresh(self, view: RunView) -> None:
        """Has no effect, as lines are not redrawn."""

    def close(self) -> None:
        """Says what notices came again."""
        self._write_all(self._notices.counts())

    def _write_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._write(line)

    def _step(self, stage: StageProgressView, step: buffer_pb2.StepTrained) -> None:
        now = time.monotonic()
        if now < self._next_step_line and step.step != stage.total_steps:
            return
        self._next_step_line = now + MIN_SECONDS_BETWEEN_STEP_LINES
        self._write(step_line(stage, step.replayed))


def event_lines(
    stage: StageProgressView, event: buffer_pb2.ProgressEvent, notices: RepeatedNotices
) -> list[str]:
    """Returns the lines for an event that every reporter shows; `stage` has applied it."""
    match event.WhichOneof("event"):
        case "samples":
            return sample_lines(stage)
        case "step":
            return [*notices.counts(), *warning_lines(stage)]
        case "evaluation":
            return [evaluation_line(stage.evaluations[-1])]
        case "notice":
            return notices.shown(stage.name, event.notice.text)
        case "changed":
            changes = event.changed.changes
            return [f"[{stage.name}] changed {change_text(change)}" for change in changes]
        case _:
            return []


def step_line(stage: StageProgressView, replayed: bool) -> str:
    """Formats the stage's state in one line."""
    parts = [f"[{stage.name}] step {stage.last_step}/{stage.total_steps or '?'}"]
    if replayed:
        parts.append("replayed from its recorded batch")
    if (reward := figures.reward(stage)) is not None:
        parts.append(f"reward {reward:.3f}")
    if (loss := figures.loss(stage)) is not None:
        parts.append(f"loss {loss:.4f}")
    if (speed := figures.tokens_per_second(stage)) is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    if shares := figures.time_shares(stage):
        parts.append(" ".join(f"{name} {share:.0%}" for name, share in shares[:3]))
    if left := figures.seconds_left(stage):
        parts.append(f"{figures.format_clock(left)} left")
    return "  ".join(parts)


def warning_lines(stage: StageProgressView) -> list[str]:
    """Returns a line for each warning of the newest step that the step before did not have."""
    return [
        f"[{stage.name}] warning at step {stage.last_step}: {_warning_text(stage, name)}"
        for name in stage.new_warnings
    ]


def _warning_text(stage: StageProgressView, name: str) -> str:
    count = stage.steps[stage.last_step][f"{WARNING_PREFIX}{name}"]
    return WARNINGS.get(name, name).format(count=round(count))


def evaluation_line(done: Evaluation) -> str:
    """Formats an evaluation in one line."""
    shown = "  ".join(f"{name} {done.metrics[name]}" for name in shown_order(done.metrics))
    return (
        f"[{done.stage}] evaluation of version {done.version} on {done.taskset}: {shown}"
        f"  (n={done.num_tasks}{failed_runs_text(done)})"
    )


def sample_lines(stage: StageProgressView) -> list[str]:
    """Returns decoded samples with their rewards; empty if they were deleted."""
    if not stage.samples:
        return []
    lines = [f"[{stage.name}] samples before training:"]
    for sample in stage.samples:
        reward = f"reward {sample.reward:g}" if sample.HasField("reward") else "training data"
        lines.append(f"  {sample.prompt!r} -> {sample.response!r}  ({reward})")
    return lines


def _extent(stage: StageProgressView, opened: buffer_pb2.StageOpened) -> str:
    """Describes the amount of work of a stage."""
    if stage.mode == "bench":
        return "nothing is trained, evaluations alone"
    if stage.mode == "explore":
        return f"{opened.num_tasks} tasks, {opened.total_explore_steps} explore steps"
    return f"{opened.num_tasks} tasks, {stage.total_steps or 'unbounded'} steps"
