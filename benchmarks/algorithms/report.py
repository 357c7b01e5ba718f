"""Tables, the summary and the picture of the runs, and areas under held-out curves.

In its own task a trial learns where its area is above the start by more than the interval over
the seeds, which is Student's at 95 %. Trials whose curves are the same in all bits are one line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.algorithms import judge
from benchmarks.algorithms.judge import HARD_LAG, NUM_NOISES, TrialVerdict, safe_lag, verdicts
from benchmarks.algorithms.outcome import NUM_ROWS, TrialRun
from benchmarks.algorithms.results import Results
from benchmarks.algorithms.tasks import BenchTask
from benchmarks.algorithms.trials import NO_AIM, Trial, all_trials
from benchmarks.table import PerformanceClaim, print_claims
from trinity.run.progress.curves import ACCENT, INK, STRONG

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""The 97.5 % quantile, by the number of seeds."""
COLORS = {0: STRONG, HARD_LAG: ACCENT}
MARGIN = 0.05
SHIFT = 0.17
"""Distance of the two marks of a trial from its line."""
Verdicts = Mapping[tuple[str, int], TrialVerdict]
TABLE_LAGS = (0, HARD_LAG)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveArea:
    """The area of a trial at one lag, or of several whose curves are the same."""

    trials: tuple[str, ...]
    lag: int
    areas: tuple[float, ...]
    """By seed."""
    start: float

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.areas))

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None for a single seed, which has none."""
        if len(self.areas) < min(STUDENT):
            return None
        spread = float(np.std(self.areas, ddof=1))
        return STUDENT[len(self.areas)] * spread / float(np.sqrt(len(self.areas)))

    @property
    def learns(self) -> bool | None:
        """None where one seed cannot tell."""
        width = self.half_width
        return None if width is None else self.mean - width > self.start


def areas_of(runs: Sequence[TrialRun]) -> list[CurveArea]:
    """Returns the areas in the runs' order; a trial joins the first that has the same curves."""
    by_key: dict[tuple[str, int], list[TrialRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_key.setdefault((run.trial, run.lag), []).append(run)
    names: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], list[TrialRun]] = {}
    for (trial, lag), of_key in by_key.items():
        curves = (lag, *((run.seed, run.curve) for run in of_key))
        names.setdefault(curves, []).append(trial)
        first.setdefault(curves, of_key)
    return [
        CurveArea(
            trials=tuple(names[curves]),
            lag=of_key[0].lag,
            areas=tuple(round(run.area, 6) for run in of_key),
            start=of_key[0].start,
        )
        for curves, of_key in first.items()
    ]


def report_areas(task: BenchTask, results: Results, summary: Path) -> None:
    """Prints the table and writes the summary."""
    runs = list(results.runs.values())
    if not runs:
        return
    found = areas_of(runs)
    table = Table("trials", "lag", "seeds", f"area ({task.name})", "learns")
    for area in sorted(found, key=lambda area: (area.lag, -area.mean)):
        width = "" if area.half_width is None else f" ± {area.half_width:.3f}"
        word = {None: "one seed", True: "yes", False: "NO"}[area.learns]
        figure = f"{area.mean:.3f}{width}"
        names = " = ".join(area.trials)
        table.add_row(names, str(area.lag), str(len(area.areas)), figure, word)
    Console(width=110).print(table)
    record = {
        "task": task.what,
        "figure": "share of right answers to held-out problems, sampled as in training",
        "rule": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "rows_of_a_step": task.num_rows,
        "updates_of_a_batch": task.num_passes,
        "steps": runs[0].num_steps,
        "start": runs[0].start,
        "processor_seconds": round(sum(run.seconds for run in runs)),
        "areas": [as_json(area) for area in found],
    }
    summary.write_text(json.dumps(record, indent=1) + "\n")


def as_json(area: CurveArea) -> Mapping[str, object]:
    return {**asdict(area), "mean": area.mean, "half_width": area.half_width, "learns": area.learns}


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


def report(results: Results, summary: Path, picture: Path) -> None:
    """Print the table, write the summary and the picture."""
    runs = list(results.runs.values())
    if not runs:
        return
    found = verdicts(runs)
    trials = [
        trial for trial in all_trials().values() if any(trial.name == key[0] for key in found)
    ]
    losses = _losses(runs)
    _print_table(trials, found)
    claims = _claims(trials, found, losses)
    print_claims(claims)
    record = {
        "rule": " ".join((judge.__doc__ or "").split("\n\n")[1].split()),
        "rows_of_a_step": NUM_ROWS,
        "steps": runs[0].num_steps,
        "start": runs[0].start,
        "trials": {trial.name: _of_trial(trial, found, runs) for trial in trials},
        "losses_on_held_out_data": losses,
        "claims": [claim.as_json() for claim in claims],
    }
    summary.write_text(json.dumps(record, indent=2) + "\n")
    draw([trial.name for trial in trials], found, runs, picture)


def _print_table(trials: Sequence[Trial], found: Verdicts) -> None:
    table = Table("trial", *(f"lag {lag}" for lag in TABLE_LAGS), "learns", "safe lag")
    for trial in trials:
        of_trial = [found.get((trial.name, lag)) for lag in TABLE_LAGS]
        words = [
            "" if verdict is None else "yes" if verdict.learns else "NO" for verdict in of_trial
        ]
        figures = [
            "" if verdict is None else f"{verdict.end:.3f} ± {verdict.noise:.3f}"
            for verdict in of_trial
        ]
        table.add_row(trial.name, *figures, "  ".join(words), safe_lag(trial.name, found))
    Console(width=110).print(table)
    for name, reason in NO_AIM.items():
        print(f"{name} has no aim: {reason}")


def _of_trial(trial: Trial, found: Verdicts, runs: Sequence[TrialRun]) -> Mapping[str, object]:
    return {
        "algorithm": dict(trial.algorithm),
        "trainer": dict(trial.trainer),
        "corrects_for_lag": trial.is_corrected,
        "safe_lag": safe_lag(trial.name, found),
        "lags": {
            lag: {
                "ends": [run.end for run in runs if (run.trial, run.lag) == (name, lag)],
                "end": verdict.end,
                "gain": verdict.gain,
                "noise": verdict.noise,
                "learns": verdict.learns,
            }
            for (name, lag), verdict in sorted(found.items())
            if name == trial.name
        },
    }


def _losses(runs: Sequence[TrialRun]) -> dict[str, list[dict[int, float]]]:
    """Returns the losses on data by trial, one course a seed."""
    losses: dict[str, list[dict[int, float]]] = {}
    for run in runs:
        if run.losses:
            losses.setdefault(run.trial, []).append(run.losses)
    return losses


def _claims(
    trials: Sequence[Trial], found: Verdicts, losses: Mapping[str, Sequence[Mapping[int, float]]]
) -> list[PerformanceClaim]:
    aimed = [trial for trial in trials if trial.name not in NO_AIM]
    fresh = [found[t.name, 0] for t in aimed if (t.name, 0) in found]
    old = [found[t.name, HARD_LAG] for t in aimed if t.is_corrected and (t.name, HARD_LAG) in found]
    courses = [course for of_trial in losses.values() for course in of_trial]
    num_falling = sum(course[max(course)] < course[0] for course in courses)
    claims = [
        _all("that learn on policy", [verdict.learns for verdict in fresh]),
        _all(
            f"with a correction that learn at lag {HARD_LAG}", [verdict.learns for verdict in old]
        ),
        PerformanceClaim("runs on data whose held-out loss falls", num_falling, len(courses), ">="),
    ]
    return [claim for claim in claims if claim.limit]


def _all(name: str, held: Sequence[bool]) -> PerformanceClaim:
    return PerformanceClaim(f"trials {name}", sum(held), len(held), ">=")
