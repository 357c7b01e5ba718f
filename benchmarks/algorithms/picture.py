"""One picture: held-out accuracy at the end of every trial, with fresh and with old rollouts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.algorithms.judge import HARD_LAG, NUM_NOISES, TrialVerdict
from benchmarks.algorithms.outcome import TrialRun
from trinity.progress.curves import ACCENT, INK, STRONG

COLORS = {0: STRONG, HARD_LAG: ACCENT}
MARGIN = 0.05
SHIFT = 0.17
"""Of the two marks of a trial from its line."""


def draw(
    names: Sequence[str],
    found: Mapping[tuple[str, int], TrialVerdict],
    runs: Sequence[TrialRun],
    path: Path,
) -> None:
    """Write a PNG: ends on the left, the mean courses of all trials on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (ends, courses) = pyplot.subplots(
        1, 2, figsize=(12, 2 + 0.25 * len(names)), width_ratios=[2, 1]
    )
    start = next(iter(found.values())).start
    for lag, color in COLORS.items():
        _draw_ends(ends, names, found, lag, color)
        _draw_courses(courses, runs, lag, color)
    lowest = min(start, *(verdict.end for verdict in found.values()))
    _finish_ends(ends, names, start, lowest - MARGIN)
    courses.set(xlabel="train step", title="mean over the seeds, a line a trial")
    for axis in (ends, courses):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    num_seeds = max(verdict.num_seeds for verdict in found.values())
    title = f"The addition model from one warm start: seeds {num_seeds}, trials {len(names)}"
    figure.suptitle(title, color=INK)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_ends(
    axis: Any,
    names: Sequence[str],
    found: Mapping[tuple[str, int], TrialVerdict],
    lag: int,
    color: str,
) -> None:
    shown = [(row, found[name, lag]) for row, name in enumerate(names) if (name, lag) in found]
    axis.errorbar(
        [verdict.end for _, verdict in shown],
        [row + (SHIFT if lag else -SHIFT) for row, _ in shown],
        xerr=[NUM_NOISES * verdict.noise for _, verdict in shown],
        fmt="o",
        markersize=4,
        capsize=2,
        color=color,
        label=f"weights {lag} steps old, ± {NUM_NOISES:g} times the noise",
    )


def _finish_ends(axis: Any, names: Sequence[str], start: float, left: float) -> None:
    axis.axvline(start, color=INK, linestyle="--", linewidth=1, label=f"start, {start:.2f}")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set(xlabel="held-out accuracy at the end", xlim=(left, 1.02))


def _draw_courses(axis: Any, runs: Sequence[TrialRun], lag: int, color: str) -> None:
    found: dict[str, list[TrialRun]] = {}
    for run in runs:
        if run.lag == lag and not run.losses:
            found.setdefault(run.trial, []).append(run)
    for number, of_trial in enumerate(found.values()):
        steps = [0, *of_trial[0].accuracies]
        means = np.mean([[run.start, *run.accuracies.values()] for run in of_trial], axis=0)
        label = f"weights {lag} steps old" if number == 0 else None
        axis.plot(steps, means, color=color, linewidth=1, alpha=0.5, label=label)
