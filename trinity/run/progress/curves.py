"""The plot of a run: loss, reward and held-out accuracy over the train steps of its stages."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinity.run.progress.view import (
    Evaluation,
    Metrics,
    RunView,
    StageProgressView,
    failed_runs_text,
)

SMOOTHING = 9
MAX_LABEL = 60
"""Maximum length of the label at the line of changed settings."""
INK = "#1f2937"
FAINT = "#93c5fd"
STRONG = "#1d4ed8"
ACCENT = "#b45309"
ACCENTS = (ACCENT, "#047857", "#7c3aed", "#be123c", "#0e7490")


def draw_curves(view: RunView, path: Path, title: str) -> None:
    """Writes a PNG with one panel per trained stage; no file without a trained stage."""
    stages = [stage for stage in view.stages.values() if stage.steps]
    if not stages:
        return
    # Imported here: matplotlib takes a second, and only the end of a run draws.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    widths = [2 if _series(stage.batches, "reward/mean")[1] else 1 for stage in stages]
    figure, axes = pyplot.subplots(
        1, len(stages), figsize=(4 + 3.2 * sum(widths), 4), width_ratios=widths, squeeze=False
    )
    for axis, stage in zip(axes[0], stages, strict=True):
        _draw_stage(axis, stage)
    figure.suptitle(title, color=INK)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def smooth(values: Sequence[float], window: int = SMOOTHING) -> list[float]:
    """Returns the trailing mean over at most `window` values."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Returns limits from 0 to 1, extended to values outside: rewards may be below 0."""
    return min(-0.02, 1.05 * min(values)), max(1.02, 1.05 * max(values))


def _series(values: dict[int, Metrics], name: str) -> tuple[list[int], list[float]]:
    steps = [step for step in sorted(values) if name in values[step]]
    return steps, [values[step][name] for step in steps]


def _draw_stage(axis: Any, stage: StageProgressView) -> None:
    steps, rewards = _series(stage.batches, "reward/mean")
    if rewards:
        _draw_rewards(axis, stage, steps, rewards)
    else:
        steps, losses = _series(stage.steps, "actor/loss")
        _draw_series(axis, steps, losses, "loss")
        axis.set_ylim(bottom=min(0, *losses) if losses else 0)
    _draw_changes(axis, stage)
    axis.set_title(stage.name, color=INK)
    axis.set_xlabel("train step")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylabel(_measured(stage) if rewards else "loss")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def change_lines(stage: StageProgressView) -> dict[int, str]:
    """Returns the texts of changed settings by their first step: the last parts of their keys."""
    names: dict[int, list[str]] = {}
    for change in stage.changes:
        name = change.key.rpartition(".")[2]
        names.setdefault(change.from_step, []).append(f"{name} {change.now}")
    texts = {step: ", ".join(dict.fromkeys(changed)) for step, changed in names.items()}
    return {
        step: text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 3]}..."
        for step, text in texts.items()
    }


def _draw_changes(axis: Any, stage: StageProgressView) -> None:
    """Draws a line before the first step of changed settings."""
    for step, text in change_lines(stage).items():
        at = step - 0.5
        axis.axvline(at, color=INK, linestyle=":", linewidth=1)
        where = {"xycoords": ("data", "axes fraction"), "rotation": 90, "fontsize": 7}
        axis.annotate(text.replace("$", r"\$"), (at, 0.02), color=INK, **where)


def _draw_rewards(
    axis: Any, stage: StageProgressView, steps: list[int], rewards: list[float]
) -> None:
    _draw_series(axis, steps, rewards, "reward of the batch")
    _draw_evaluations(axis, stage)
    means = (done.headline().mean for done in stage.evaluations)
    axis.set_ylim(*limits([*rewards, *(mean for mean in means if math.isfinite(mean))]))
    axis.legend(loc="lower right", frameon=False)


def _measured(stage: StageProgressView) -> str:
    names = ["reward", *(done.headline_name for done in stage.evaluations)]
    return ", ".join(dict.fromkeys(names))


def _draw_series(axis: Any, steps: list[int], values: list[float], label: str) -> None:
    axis.plot(steps, values, color=FAINT, linewidth=1)
    axis.plot(steps, smooth(values), color=STRONG, linewidth=2, label=f"{label} (smoothed)")


def _draw_evaluations(axis: Any, stage: StageProgressView) -> None:
    """Draws a line for each taskset, the headline's first."""
    by_taskset = stage.evaluations_by_taskset
    for number, (taskset, evaluations) in enumerate(by_taskset.items()):
        color = ACCENTS[number % len(ACCENTS)]
        _draw_taskset(axis, evaluations, color, taskset if len(by_taskset) > 1 else "held-out")


def _draw_taskset(axis: Any, evaluations: Sequence[Evaluation], color: str, name: str) -> None:
    versions = [done.version for done in evaluations]
    means = [done.headline().mean for done in evaluations]
    errors = [2 * done.headline().standard_error for done in evaluations]
    count, what = evaluations[-1].num_tasks, evaluations[-1].headline_name
    failed = failed_runs_text(evaluations[-1])
    label = f"{name} {what} ± 2 standard errors (n={count}{failed})".replace("$", r"\$")
    axis.errorbar(versions, means, yerr=errors, color=color, marker="o", capsize=3, label=label)
    for at in (0, -1):
        note = f"{means[at]:.2f}"
        axis.annotate(note, (versions[at], means[at]), xytext=(6, -16), textcoords="offset points")
