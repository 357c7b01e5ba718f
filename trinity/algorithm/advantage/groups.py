"""Helpers of group advantages: ranks within groups, filtering of groups, checks of arguments."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from trinity.algorithm.advantage.samples import (
    Advantages,
    BoolVector,
    FloatVector,
    IntVector,
    Samples,
)
from trinity.errors import UserError


def ranks_within(groups_N: IntVector, values_N: FloatVector) -> IntVector:
    """Ranks values within their groups from 0, the least, [N]; ties keep their order."""
    order_N = np.lexsort((values_N, groups_N))
    ranks_N = np.empty(len(groups_N), dtype=np.int64)
    ranks_N[order_N] = index_within(groups_N[order_N])
    return ranks_N


def index_within(groups_N: IntVector) -> IntVector:
    """Returns each sample's place in its group, from 0, [N]; groups must be contiguous."""
    numbers_N = np.arange(len(groups_N), dtype=np.int64)
    begins_N = np.ones(len(groups_N), dtype=np.bool_)
    begins_N[1:] = groups_N[1:] != groups_N[:-1]
    starts_N: IntVector = np.maximum.accumulate(np.where(begins_N, numbers_N, 0))
    return numbers_N - starts_N


def filter_low_std_groups(
    advantages: Advantages,
    samples: Samples,
    threshold: float | None,
    *,
    compared: Samples | None = None,
    deviations_G: FloatVector | None = None,
) -> Advantages:
    """Leaves out groups whose rewards have a std of at most `threshold`, and groups of one.

    This is DAPO's dynamic sampling (https://arxiv.org/abs/2503.14476); None keeps all groups. The
    std is the unbiased one of the rewards, unless `deviations_G` is given. A group is of one if it
    has one entry in `compared`, which may hold its runs instead of its samples.
    """
    if threshold is None:
        return advantages
    counted = samples if compared is None else compared
    if deviations_G is None:
        deviations_G = counted.group_deviations(counted.rewards)
    is_flat_G = (deviations_G <= threshold) | (counted.group_sizes <= 1)
    return replace(
        advantages,
        left_out=is_flat_G[samples.groups],
        reason=f"the rewards of its group have a standard deviation of at most {threshold:g}",
    )


def overall_std(values_N: FloatVector) -> float:
    """Returns the standard deviation over all groups; 1 for a single value."""
    return float(np.std(values_N, ddof=1)) if len(values_N) > 1 else 1.0


def draw_copies(samples: Samples, left_out_N: BoolVector) -> IntVector:
    """Draws a random replacement for each sample of a group that is left out, [N].

    All samples of a group are replaced by samples of one other group; -1 if there is no other.
    """
    is_left_out_G = samples.group_sums(left_out_N.astype(np.float64)) > 0
    copies_N = np.full(len(samples.groups), -1, dtype=np.int64)
    donors_D = np.flatnonzero(~is_left_out_G & (samples.group_sizes > 0))
    if not len(donors_D):
        return copies_N
    starts_G = np.cumsum(samples.group_sizes) - samples.group_sizes
    first_lots_G = samples.lots[np.minimum(starts_G, len(copies_N) - 1)]
    donor_G = donors_D[(first_lots_G * len(donors_D)).astype(np.int64)]
    donor_N = donor_G[samples.groups]
    places_N = index_within(samples.groups) % samples.group_sizes[donor_N]
    return np.where(is_left_out_G[samples.groups], starts_G[donor_N] + places_N, copies_N)


def check_choice(function: str, name: str, value: str | None, choices: Iterable[str]) -> None:
    """Raises: UserError when the value is not one of the choices."""
    allowed = list(choices)
    if value not in allowed:
        raise UserError(
            f"{name} of advantage function {function} is {value!r}; in advantage_fn_args give one "
            f"of {', '.join(allowed)}"
        )
