"""Input and output types of group advantages: N samples of one group, or of many at once.

def centered(samples: Samples, *, scale: float = 1.0) -> Advantages:
    means_G = samples.group_means(samples.rewards)
    return Advantages(scale * (samples.rewards - means_G[samples.groups]))

Shapes: N samples, G groups.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

FloatVector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]
BoolVector = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples to be compared; every array has one entry per sample, [N].

    The samples of a group come from the runs of one task in one explore step. They are ordered by
    group, run and step, so that the last sample of a run precedes the next run's first.
    """

    rewards: FloatVector
    groups: IntVector
    """The group of each sample, 0 to G-1."""
    runs: IntVector
    """The run within the group."""
    steps: IntVector
    """The place within the run, from 0."""
    lots: FloatVector
    """Uniform in [0, 1), for functions that need randomness; the same sample always gets the
    same."""
    mean_logprobs: FloatVector
    """Mean log-probability of the sample's trained tokens by the rollout policy; NaN unless the
    function declares that it needs it (see `needs`)."""
    step_rewards: FloatVector
    """The environment's reward for this step alone; NaN if missing or not needed."""
    states: IntVector
    """Equal numbers are equal states of the environment; -1 is unknown."""

    @classmethod
    def of_groups(cls, *groups: Iterable[float]) -> "Samples":
        """Builds samples from the rewards of each group, with one step per run."""
        listed = [list(group) for group in groups]
        runs = [run for group in listed for run in range(len(group))]
        unknown_N = np.full(len(runs), np.nan)
        return cls(
            rewards=np.array([reward for group in listed for reward in group], dtype=np.float64),
            groups=np.repeat(np.arange(len(listed)), [len(group) for group in listed]),
            runs=np.array(runs, dtype=np.int64),
            steps=np.zeros(len(runs), dtype=np.int64),
            lots=np.random.default_rng(0).random(len(runs)),
            mean_logprobs=unknown_N,
            step_rewards=unknown_N,
            states=np.full(len(runs), -1, dtype=np.int64),
        )

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0

    @property
    def group_sizes(self) -> IntVector:
        """Number of samples of each group, [G]."""
        return np.bincount(self.groups, minlength=self.num_groups).astype(np.int64)

    def group_sums(self, values_N: FloatVector) -> FloatVector:
        """Returns the sum of these values over each group, [G]."""
        return sums_by(self.groups, values_N, self.num_groups)

    def group_means(self, values_N: FloatVector) -> FloatVector:
        """Returns the mean of these values over each group, [G]; exact where they are all equal."""
        first_G = np.zeros(self.num_groups)
        first_G[self.groups[::-1]] = values_N[::-1]
        sums_G = self.group_sums(values_N - first_G[self.groups])
        means_G: FloatVector = first_G + sums_G / np.maximum(self.group_sizes, 1)
        return means_G

    def group_baselines(self, values_N: FloatVector) -> FloatVector:
        """Returns the means, [G]; 0 for a group of one, so that a single sample keeps its value."""
        return np.where(self.group_sizes > 1, self.group_means(values_N), 0.0)

    def group_deviations(self, values_N: FloatVector, *, ddof: int = 1) -> FloatVector:
        """Returns the standard deviation over each group, [G]; 1 for a group of one."""
        differences_N = values_N - self.group_means(values_N)[self.groups]
        variances_G = self.group_sums(differences_N**2) / np.maximum(self.group_sizes - ddof, 1)
        return np.where(self.group_sizes > 1, np.sqrt(variances_G), 1.0)

    def group_maxima(self, values_N: FloatVector) -> FloatVector:
        """Returns the greatest of these values in each group, [G]; -inf for an empty group."""
        maxima_G = np.full(self.num_groups, -np.inf)
        np.maximum.at(maxima_G, self.groups, values_N)
        return maxima_G

    @property
    def is_last_step(self) -> BoolVector:
        """True for samples that end their run, [N]."""
        is_last_N = np.ones(len(self.groups), dtype=np.bool_)
        same_run = (self.groups[1:] == self.groups[:-1]) & (self.runs[1:] == self.runs[:-1])
        is_last_N[:-1] = ~same_run
        return is_last_N

    @property
    def run_numbers(self) -> IntVector:
        """The number of each sample's run among the runs of all groups, from 0, [N]."""
        is_last_N = self.is_last_step
        return np.cumsum(is_last_N) - is_last_N

    def chosen(self, which_N: BoolVector) -> "Samples":
        """Returns the selected samples; groups keep their numbers."""
        return replace(self, **{f.name: getattr(self, f.name)[which_N] for f in fields(self)})


def sums_by(numbers_N: IntVector, values_N: npt.NDArray[Any], length: int) -> FloatVector:
    """Returns the sum of the values with each of the numbers 0 to length-1, [length]."""
    sums = np.bincount(numbers_N, weights=values_N, minlength=length)
    return sums.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantage of each sample, and the samples that are not to be trained on."""

    values: FloatVector
    """[N]; values of samples that are left out are ignored but must be finite."""
    left_out: BoolVector | None = None
    """[N], true where a sample is not trained on; None trains on all samples."""
    reason: str = ""
    """The reason for leaving them out, for users."""
    copies_of: IntVector | None = None
    """[N] or None: a sample that is left out may be replaced by a copy of another (its index);
    -1 is no copy."""
    metrics: Mapping[str, FloatVector] = field(default_factory=dict)
    """Metrics of each group, [G]. Over the groups of a batch those named `..._count` are summed up
    and those named `..._ratio` averaged; of all others mean, max and min are reported."""


AdvantageFn = Callable[..., Advantages]
"""Takes `Samples`, then `advantage_fn_args` by keyword."""
