"""Metrics for display, computed from a stage's view."""

from itertools import pairwise
from statistics import median

from trinity.run.progress.view import TIME_PARTS, Evaluation, StageProgressView

SMOOTHED_STEPS = 10
OUTAGE_FACTOR = 20
"""A gap between two steps of so many times the usual one is an outage, not a step's time."""


def recent_mean(values: dict[int, dict[str, float]], name: str) -> float | None:
    """Returns the mean of a metric over the latest steps that have it."""
    steps = sorted(values)[-SMOOTHED_STEPS:]
    found = [values[step][name] for step in steps if name in values[step]]
    return sum(found) / len(found) if found else None


def reward(stage: StageProgressView) -> float | None:
    """Returns the mean reward of the latest batches; None in a stage without rollout."""
    return recent_mean(stage.batches, "reward/mean")


def loss(stage: StageProgressView) -> float | None:
    """Returns the mean loss of the latest steps."""
    return recent_mean(stage.steps, "actor/loss")


def last_evaluation(stage: StageProgressView) -> Evaluation | None:
    """Returns the newest evaluation of the stage's headline taskset."""
    by_taskset = stage.evaluations_by_taskset
    return by_taskset[next(iter(by_taskset))][-1] if by_taskset else None


def seconds_per_step(stage: StageProgressView) -> float | None:
    """Returns the seconds between the ends of the latest steps; outages are left out."""
    times = stage.step_millis
    gaps = [after - before for before, after in pairwise(times)]
    if not gaps:
        return None
    usual = [gap for gap in gaps if gap <= OUTAGE_FACTOR * median(gaps)] or gaps
    return sum(usual) / len(usual) / 1000


def seconds_left(stage: StageProgressView) -> float | None:
    """Returns the seconds until the stage's last step at the present pace."""
    pace = seconds_per_step(stage)
    if pace is None or not stage.total_steps:
        return None
    return max(0, stage.total_steps - stage.last_step) * pace


def tokens_per_second(stage: StageProgressView) -> float | None:
    """Returns tokens trained on per second, over the latest steps, waiting included."""
    pace = seconds_per_step(stage)
    tokens = recent_mean(stage.steps, "perf/total_num_tokens")
    return tokens / pace if pace and tokens is not None else None


def time_shares(stage: StageProgressView) -> list[tuple[str, float]]:
    """Returns the trainer's time: parts and their share of the latest steps, largest first."""
    recent = [stage.steps[step] for step in sorted(stage.steps)[-SMOOTHED_STEPS:]]
    sums = {
        label: sum(metrics.get(name, 0.0) for metrics in recent)
        for name, label in TIME_PARTS.items()
    }
    total = sum(sums.values())
    shares = [(label, seconds / total) for label, seconds in sums.items() if seconds > 0]
    return sorted(shares, key=lambda part: -part[1])


def format_clock(seconds: float) -> str:
    """Formats seconds as m:ss or h:mm:ss."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"
