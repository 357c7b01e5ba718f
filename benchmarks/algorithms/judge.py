"""Judges an algorithm by a handful of runs that differ in their seed alone.

It learns where its mean gain in held-out accuracy is more than twice the noise. The noise is the
standard deviation of the final accuracies over the seeds, or the sampling error of an accuracy that
is measured on the held-out problems, the larger of the two.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.algorithms.outcome import TrialRun
from examples.addition.problems import NUM_HELD_OUT

NUM_NOISES = 2.0
LAGS = (0, 1, 2, 4, 8)
HARD_LAG = 4
"""At which those that correct for it must learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """The judgement of a trial at one lag."""

    trial: str
    lag: int
    num_seeds: int
    start: float
    end: float
    """Mean over the seeds."""
    noise: float

    @property
    def gain(self) -> float:
        """The gain in held-out accuracy."""
        return self.end - self.start

    @property
    def learns(self) -> bool:
        """True if the gain is larger than the noise."""
        return self.gain > NUM_NOISES * self.noise

    @classmethod
    def of(cls, runs: Sequence[TrialRun]) -> "TrialVerdict":
        """Judges the runs of one trial at one lag."""
        first, ends = runs[0], np.array([run.end for run in runs])
        start, end = first.start, float(ends.mean())
        spread = float(ends.std(ddof=1)) if len(ends) > 1 else 0.0
        sampling = (max(start * (1 - start), end * (1 - end)) / NUM_HELD_OUT) ** 0.5
        return cls(
            trial=first.trial,
            lag=first.lag,
            num_seeds=len(runs),
            start=start,
            end=end,
            noise=max(spread, sampling),
        )


def verdicts(runs: Iterable[TrialRun]) -> dict[tuple[str, int], TrialVerdict]:
    """Returns the judgements by trial and lag."""
    found: dict[tuple[str, int], list[TrialRun]] = {}
    for run in runs:
        if not run.losses:
            found.setdefault((run.trial, run.lag), []).append(run)
    return {key: TrialVerdict.of(of_key) for key, of_key in found.items()}


@dataclass(frozen=True, slots=True, order=True)
class SafeLag:
    """The largest lag at which a trial learns on a task, with all smaller ones that were tried."""

    lag: int
    """-1 if it learns at none."""
    is_open: bool
    """False where it failed at the next larger lag; such a one is the worse of two equal lags."""
    task: str

    @classmethod
    def of(cls, task: str, learns: Mapping[int, bool]) -> "SafeLag":
        """Reads the verdicts of one trial on one task, by lag."""
        failed = min((lag for lag, does in learns.items() if not does), default=None)
        safe = [lag for lag in learns if failed is None or lag < failed]
        return cls(max(safe, default=-1), failed is None, task)

    def __str__(self) -> str:
        """Names the task that set a limit."""
        if self.is_open:
            return f"{self.lag} or more"
        return f"{'none' if self.lag < 0 else self.lag} ({self.task})"


def safe_lag(trial: str, found: Mapping[tuple[str, int], TrialVerdict]) -> str:
    """Returns the safe lag on the addition task; empty where only fresh rollouts were tried."""
    learns = {lag: found[trial, lag].learns for lag in LAGS if (trial, lag) in found}
    return str(SafeLag.of("addition", learns)) if max(learns, default=0) else ""
