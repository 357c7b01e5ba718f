"""Statistics over the rows of each group, vectorized for groups of any sizes."""

from dataclasses import dataclass

import numpy as np

from trinity.algorithm.token_advantage.token_batch import FloatMatrix, FloatVector, IntVector


@dataclass(frozen=True, slots=True)
class Groups:
    """G groups: the group of each of B rows, and the number of rows of each group.

    groups = Groups.of(batch.groups_B)
    advantages_B = scores_B - groups.baselines_B(scores_B)
    """

    index_B: IntVector
    counts_G: IntVector

    @classmethod
    def of(cls, ids_B: IntVector) -> "Groups":
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
