"""Splits a batch into micro-batches over the ranks, and gathers their outputs."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from services.trainer.collectives import Ranks
from services.trainer.learner.prepared_batch import MicroBatch, ResponseLayout, RowUnit
from services.trainer.types import TrainRow
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSplitter:
    """Splits batches for one rank.

    Every rank gets the same number of micro-batches, as calls are collective.
    """

    ranks: Ranks
    max_tokens: int
    keep_order: bool

    def parts(
        self, rows: Sequence[TrainRow], mask_BT: BoolMatrix
    ) -> Iterator[tuple[MicroBatch, bool]]:
        """Yields micro-batches of the units that the mask leaves tokens in, and if each is the
        last.

        Empty ones are added up to the busiest rank's number, which is at least 1.
        """
        has_tokens_B = np.asarray(mask_BT.any(-1))
        share = units_of_rank(row_units(rows), self.ranks.rank, self.ranks.num_ranks)
        trained = [unit for unit in share if has_tokens_B[list(unit)].any()]
        batches = micro_batches(rows, trained, self.max_tokens, keep_order=self.keep_order)
        num_parts = max(1, int(self.ranks.all_reduce_max(len(batches))))
        logger.debug(
            "the batch is split",
            extra={
                "rows": len(rows),
                "of_rank": len(share),
                "trained": len(trained),
                "micro_batches": num_parts,
                "max_tokens": self.max_tokens,
            },
        )
        for index in range(num_parts):
            yield batches[index] if index < len(batches) else (), index == num_parts - 1


def row_units(rows: Sequence[TrainRow]) -> list[RowUnit]:
    """Returns the units of all rows, in order."""
    return [
        (number, number + 1) if row.side == "chosen" else (number,)
        for number, row in enumerate(rows)
        if row.side != "rejected"
    ]


def units_of_rank(units: Sequence[RowUnit], rank: int, num_ranks: int) -> Sequence[RowUnit]:
    """Returns the rank's contiguous share of units; shares differ by one unit at most."""
    return units[len(units) * rank // num_ranks : len(units) * (rank + 1) // num_ranks]


def micro_batches(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], max_tokens: int, *, keep_order: bool = False
) -> list[MicroBatch]:
    """Groups units of similar length, so that a padded micro-batch has at most `max_tokens` tokens.

    A unit longer than that is on its own. With `keep_order` neighbours stay neighbours.
    """

    def longest(part: MicroBatch) -> int:
        return max(rows[number].length for number in part)

    parts: list[list[int]] = []
    ordered = units if keep_order else sorted(units, key=lambda unit: (longest(unit), unit))
    for unit in ordered:
        grown = [*parts[-1], *unit] if parts else []
        if grown and len(grown) * longest(grown) <= max_tokens:
            parts[-1] = grown
        else:
            parts.append(list(unit))
    return list(parts)


class OutputGatherer:
    """Collects the outputs of one batch.

    gatherer = OutputGatherer(layout, ranks)
    gatherer.add_micro_batch("values", part, values_NC)
    values_BT = gatherer.reduce("values")
    """

    def __init__(self, layout: ResponseLayout, ranks: Ranks) -> None:
        self._layout = layout
        self._ranks = ranks
        self._outputs: dict[str, FloatMatrix] = {}

    def add_micro_batch(self, name: str, part: MicroBatch, values_NC: FloatMatrix) -> None:
        """Adds the output of one of this rank's micro-batches."""
        matrix_BT = self._outputs.setdefault(name, self._layout.zeros())
        self._layout.scatter_part(values_NC, part, into=matrix_BT)

    def reduce(self, name: str) -> FloatMatrix:
        """Returns the output over all ranks; 0 for rows that were in no micro-batch. Collective."""
        return self._ranks.all_reduce_matrix(self._outputs.pop(name, self._layout.zeros()))
