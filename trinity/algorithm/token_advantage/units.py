"""Compares runs instead of rows: a run has its rows' mean score, and they share its result."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups
from trinity.algorithm.token_advantage.token_batch import FloatVector, IntVector, TokenBatch
from trinity.algorithm.units import Unit, check_unit


@dataclass(frozen=True, slots=True)
class Units:
    """U runs, or rows, that groups are made of.

    units = Units.of_batch(batch, "run")
    scores_U = units.means_U(batch.scores_B)
    advantages_B = units.spread_B(scores_U - units.groups.baselines_B(scores_U))
    """

    groups: Groups
    """The group of each unit; its vectors have U entries."""
    number_B: IntVector
    """The unit of each row."""
    first_U: IntVector
    """A row of each unit."""

    @classmethod
    def of_batch(cls, batch: TokenBatch, unit: Unit) -> "Units":
        """Returns the runs of a batch, or its rows with `sample`."""
        check_unit(unit)
        rows_B = np.arange(len(batch.groups_B), dtype=np.int64)
        by_run = unit == "run" and batch.runs_B is not None
        ids_B = batch.runs_B if by_run and batch.runs_B is not None else rows_B
        _, first_U, number_B = np.unique(ids_B, return_index=True, return_inverse=True)
        return cls(Groups.from_ids(batch.groups_B[first_U]), number_B, first_U)

    @property
    def sizes_U(self) -> IntVector:
        """Number of rows of each unit."""
        return np.bincount(self.number_B, minlength=len(self.first_U)).astype(np.int64)

    def sums_U(self, values_B: FloatVector | IntVector) -> FloatVector:
        """Returns the sum over each unit's rows."""
        weights_B = np.asarray(values_B, np.float64)
        sums_U = np.bincount(self.number_B, weights=weights_B, minlength=len(self.first_U))
        return np.asarray(sums_U, np.float64)

    def means_U(self, values_B: FloatVector) -> FloatVector:
        """Returns the mean over each unit's rows; exact where they are all equal."""
        first_U = np.asarray(values_B, np.float64)[self.first_U]
        differences_U = self.sums_U(values_B - first_U[self.number_B])
        means_U: FloatVector = first_U + differences_U / np.maximum(self.sizes_U, 1)
        return means_U

    def spread_B(self, values_U: FloatVector) -> FloatVector:
        """Gives each row the value of its unit."""
        return values_U[self.number_B]


def compare_scores(
    batch: TokenBatch, unit: Unit, compare: Callable[[FloatVector, Groups], FloatVector]
) -> FloatVector:
    """Returns what `compare` makes of the units' scores and groups, for each row, [B]."""
    units = Units.of_batch(batch, unit)
    return units.spread_B(compare(units.means_U(batch.scores_B), units.groups))
