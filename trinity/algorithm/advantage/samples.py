"""What a group advantage gets and gives: N samples of any number of groups at once.

def centered(samples: Samples, *, scale: float = 1.0) -> Advantages:
    means_G = samples.group_means(samples.rewards)
    return Advantages(scale * (samples.rewards - means_G[samples.groups]))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatVector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]
BoolVector = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples to be compared; every array has one entry a sample, [N].

    The samples of a group come from the runs of one task in one explore step. They are in order of
    group, run and step, so that the last sample of a run is the one before the next run's first.
    """

    rewards: FloatVector
    groups: IntVector
    """Which group, 0 to G-1."""
    runs: IntVector
    """Which of the group's runs."""
    steps: IntVector
    """Place within the run, from 0."""
    mean_logprobs: FloatVector
    """Mean log-probability of the sample's trained tokens, of the policy that made them."""
    step_rewards: FloatVector
    """What the environment gave for this step alone; NaN where it gave none."""
    states: IntVector
    """Equal numbers are equal states of the environment; -1 is unknown."""
    seed: int
    """For functions that draw lots: the same samples always get the same one."""

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.groups[-1]) + 1 if len(self.groups) else 0


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantage of each sample, and which of them shall not be trained on."""

    values: FloatVector
    """[N]; those of samples that are left out count for nothing but must be finite."""
    left_out: BoolVector | None = None
    """[N], true where a sample shall not be trained on; None leaves out none."""
    reason: str = ""
    """Why those are left out, for people."""
    copies_of: IntVector | None = None
    """[N] or None: a sample that is left out may be replaced by a copy of another (its index);
    -1 is no copy."""
    metrics: Mapping[str, float] = field(default_factory=dict)


AdvantageFn = Callable[..., Advantages]
"""Takes `Samples`, then `advantage_fn_args` by keyword."""
