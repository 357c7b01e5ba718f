"""Validated results of advantage functions, which may be written by users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trinity.algorithm.advantage.order import ranks_within
from trinity.algorithm.advantage.samples import Advantages, IntVector, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result lists with one entry per sample, and the groups that the function failed on."""

    values: Sequence[float]
    is_left_out: Sequence[bool]
    reason: str
    copies_of: Sequence[int]
    """Index of the sample that each entry copies; -1 if it is no copy."""
    ordinals: Sequence[int]
    """Number of the copy among copies of the same sample, from 1."""
    metrics: Mapping[str, Sequence[float]]
    failures: Mapping[int, str]
    """Reasons by group number."""

    @classmethod
    def of(cls, samples: Samples, advantages: Advantages) -> "Answer":
        """Checks and converts the arrays.

        Raises: ValueError when the arrays do not belong to these samples.
        """
        size = len(samples.rewards)
        if advantages.values.shape != (size,):
            shape = advantages.values.shape
            raise ValueError(f"it gave an array of shape {shape} for {size} rewards")
        left_out_N = advantages.left_out
        if left_out_N is None:
            left_out_N = np.zeros(size, dtype=np.bool_)
        copies_N = advantages.copies_of
        if copies_N is None:
            copies_N = np.full(size, -1, dtype=np.int64)
        _check_copies(left_out_N, copies_N, size)
        return cls(
            values=advantages.values.tolist(),
            is_left_out=left_out_N.tolist(),
            reason=advantages.reason or "the advantage function leaves it out",
            copies_of=copies_N.tolist(),
            ordinals=_ordinals(copies_N).tolist(),
            metrics={name: _listed(values, samples) for name, values in advantages.metrics.items()},
            failures=_not_finite(samples, advantages),
        )

    def metrics_of(self, number: int) -> dict[str, float]:
        """Returns the metrics of one group."""
        return {name: values[number] for name, values in self.metrics.items()}


def _check_copies(left_out_N: np.ndarray, copies_N: IntVector, size: int) -> None:
    if left_out_N.shape != (size,) or copies_N.shape != (size,):
        raise ValueError(f"its left_out and copies_of must have {size} entries, one a reward")
    is_copied_N = copies_N >= 0
    if (copies_N >= size).any() or (is_copied_N & ~left_out_N).any():
        raise ValueError(
            "its copies_of names samples that are not there, or is set in places not left out"
        )
    if left_out_N[copies_N[is_copied_N]].any():
        raise ValueError("its copies_of names samples that are left out themselves")


def _ordinals(copies_N: IntVector) -> IntVector:
    """Returns 1 for the first copy of a sample, 2 for the second, in order, [N]."""
    return ranks_within(copies_N, np.arange(len(copies_N), dtype=np.float64)) + 1


def _listed(figures: np.ndarray, samples: Samples) -> list[float]:
    if figures.shape != (samples.num_groups,):
        raise ValueError(f"its metrics must have {samples.num_groups} entries, one a group")
    listed: list[float] = figures.tolist()
    return listed


def _not_finite(samples: Samples, advantages: Advantages) -> dict[int, str]:
    groups = samples.groups[~np.isfinite(advantages.values)]
    return dict.fromkeys(set(groups.tolist()), "it gave values that are not finite numbers")
