"""Compares runs instead of samples: a run's advantage goes to all of its samples."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trinity.algorithm.advantage.groups import index_within
from trinity.algorithm.advantage.samples import (
    Advantages,
    BoolVector,
    FloatVector,
    IntVector,
    Samples,
    sums_by,
)
from trinity.algorithm.units import Unit, check_unit


def compare_units(
    samples: Samples, unit: Unit, compare: Callable[[Samples], Advantages]
) -> Advantages:
    """Compares the samples, or with `run` one entry for each run, and spreads the result.

    A run's reward and mean log-probability are the means over its samples. All samples of a run
    get its advantage, and are left out together.
    """
    check_unit(unit)
    is_last_N = samples.is_last_step
    if unit == "sample" or is_last_N.all():
        return compare(samples)
    number_N = samples.run_numbers
    runs = replace(
        samples.chosen(is_last_N),
        rewards=_run_means(samples.rewards, is_last_N, number_N),
        mean_logprobs=_run_means(samples.mean_logprobs, is_last_N, number_N),
    )
    return _spread(compare(runs), number_N)


def _run_means(values_N: FloatVector, is_last_N: BoolVector, number_N: IntVector) -> FloatVector:
    """Returns the mean of each run, [R]; exact where its values are all equal."""
    last_R = values_N[is_last_N]
    differences_R = sums_by(number_N, values_N - last_R[number_N], len(last_R))
    means_R: FloatVector = last_R + differences_R / np.bincount(number_N)
    return means_R


def _spread(advantages: Advantages, number_N: IntVector) -> Advantages:
    """Gives each sample what its run got; a copied run is copied sample by sample, in order."""
    left_out_R, copies_R = advantages.left_out, advantages.copies_of
    copies_N = None
    if copies_R is not None:
        sizes_R = np.bincount(number_N)
        starts_R = np.cumsum(sizes_R) - sizes_R
        donor_N = copies_R[number_N]
        own_N = starts_R[donor_N] + index_within(number_N) % sizes_R[donor_N]
        copies_N = np.where(donor_N < 0, -1, own_N)
    return replace(
        advantages,
        values=advantages.values[number_N],
        left_out=None if left_out_R is None else left_out_R[number_N],
        copies_of=copies_N,
    )
