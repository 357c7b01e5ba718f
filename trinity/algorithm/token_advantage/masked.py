"""Statistics over the tokens in a mask and over groups of rows; other values are ignored."""

from dataclasses import dataclass

import numpy as np

from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    IntVector,
)

EPSILON = 1e-8
"""Added to counts and variances, as in verl, to avoid division by 0."""


def masked(values_BT: FloatMatrix | BoolMatrix, mask_BT: BoolMatrix) -> FloatMatrix:
    """Returns the values, 0 where the mask is false."""
    return np.where(mask_BT, values_BT, 0.0)


def broadcast_rows(values_B: FloatVector, mask_BT: BoolMatrix) -> FloatMatrix:
    """Repeats each row's value at all its tokens, 0 where the mask is false."""
    return np.where(mask_BT, values_B[:, None], 0.0)


def masked_mean(values_BT: FloatMatrix | BoolMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the mean over all tokens; for booleans, the share of true ones; 0 for no tokens."""
    return float(masked(values_BT, mask_BT).sum() / (mask_BT.sum() + EPSILON))


def row_means(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> FloatVector:
    """Returns the mean over each row's tokens; 0 for no tokens."""
    means_B: FloatVector = masked(values_BT, mask_BT).sum(-1) / (mask_BT.sum(-1) + EPSILON)
    return means_B


def whitened(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> FloatMatrix:
    """(x - mean) / sqrt(variance + 1e-8) over the mask, variance unbiased; 0 elsewhere."""
    num_tokens = int(mask_BT.sum())
    centered_BT = masked(values_BT - masked_mean(values_BT, mask_BT), mask_BT)
    if num_tokens < 2:
        return np.zeros_like(centered_BT)
    variance = masked_mean(np.square(centered_BT), mask_BT) * num_tokens / (num_tokens - 1)
    whitened_BT: FloatMatrix = centered_BT / np.sqrt(variance + EPSILON)
    return whitened_BT


def mean_and_std(values_BT: FloatMatrix) -> tuple[float, float]:
    """Returns mean and unbiased standard deviation, over the rows, of each row's sum."""
    sums_B = values_BT.sum(-1)
    if not len(sums_B):
        return 0.0, 0.0
    return float(sums_B.mean()), float(sums_B.std(ddof=1)) if len(sums_B) > 1 else 0.0


def clipped_fractions(
    advantages_BT: FloatMatrix, mask_BT: BoolMatrix, kept_BT: BoolMatrix
) -> dict[str, float]:
    """Returns fractions of all tokens, and of those with positive and with negative advantage."""
    dropped_BT = mask_BT & ~kept_BT
    positive_BT, negative_BT = mask_BT & (advantages_BT > 0), mask_BT & (advantages_BT < 0)
    return {
        "frac_clipped": _share(dropped_BT, mask_BT),
        "frac_clipped_pos": _share(dropped_BT & positive_BT, positive_BT),
        "frac_clipped_neg": _share(dropped_BT & negative_BT, negative_BT),
    }


def _share(part_BT: BoolMatrix, whole_BT: BoolMatrix) -> float:
    return float(part_BT.sum() / max(int(whole_BT.sum()), 1))


@dataclass(frozen=True, slots=True)
class Groups:
    """G groups: the group of each of B rows, and the number of rows of each group.

    groups = Groups.from_ids(batch.groups_B)
    advantages_B = scores_B - groups.baselines_B(scores_B)
    """

    index_B: IntVector
    counts_G: IntVector

    @classmethod
    def from_ids(cls, ids_B: IntVector) -> "Groups":
        """Groups rows with equal numbers."""
        _, index_B, counts_G = np.unique(ids_B, return_inverse=True, return_counts=True)
        return cls(index_B, counts_G)

    @property
    def num_groups(self) -> int:
        """G."""
        return len(self.counts_G)

    @property
    def sizes_B(self) -> IntVector:
        """The number of rows in each row's group."""
        return self.counts_G[self.index_B]

    def sums_B(self, values_B: FloatVector) -> FloatVector:
        """Returns the sum over each row's group."""
        weights_B = values_B.astype(np.float64)
        sums_G = np.bincount(self.index_B, weights=weights_B, minlength=self.num_groups)
        return np.asarray(sums_G, np.float64)[self.index_B]

    def means_B(self, values_B: FloatVector) -> FloatVector:
        """Returns the mean of each row's group."""
        means_B: FloatVector = self.sums_B(values_B) / self.sizes_B
        return means_B

    def baselines_B(self, values_B: FloatVector) -> FloatVector:
        """Returns the mean of each row's group; 0 for a single row, which keeps its value."""
        return np.where(self.sizes_B > 1, self.means_B(values_B), 0.0)

    def stds_B(self, values_B: FloatVector) -> FloatVector:
        """Returns the unbiased standard deviation of each row's group; 1 for a single row."""
        squares_B = np.square(values_B - self.means_B(values_B))
        variances_B = self.sums_B(squares_B) / np.maximum(self.sizes_B - 1, 1)
        return np.where(self.sizes_B > 1, np.sqrt(variances_B), 1.0)

    def maxima_B(self, values_B: FloatVector) -> FloatVector:
        """Returns the largest value of each row's group."""
        maxima_G = np.full(self.num_groups, -np.inf)
        np.maximum.at(maxima_G, self.index_B, values_B)
        maxima_B: FloatVector = maxima_G[self.index_B]
        return maxima_B

    def sums_GT(self, values_BT: FloatMatrix) -> FloatMatrix:
        """Returns the sum over each group's rows, position by position."""
        if not self.num_groups:
            return np.zeros((0, values_BT.shape[1]))
        order_B = np.argsort(self.index_B, kind="stable")
        starts_G = np.cumsum(self.counts_G) - self.counts_G
        sums_GT: FloatMatrix = np.add.reduceat(values_BT[order_B], starts_G, axis=0)
        return sums_GT
