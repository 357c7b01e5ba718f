"""Collects per-token outputs of micro-batches and sums them over ranks."""

from services.trainer.layout import Layout
from services.trainer.parts_types import Part
from services.trainer.ranks import Ranks
from trinity.algorithm.token_advantage.token_batch import FloatMatrix


class Gatherer:
    """Collects the outputs of one batch.

    gatherer = Gatherer(layout, ranks)
    gatherer.add("values", part, values_NC)
    values_BT = gatherer.gather("values")
    """

    def __init__(self, layout: Layout, ranks: Ranks) -> None:
        self._layout = layout
        self._ranks = ranks
        self._found: dict[str, FloatMatrix] = {}

    def add(self, name: str, part: Part, values_NC: FloatMatrix) -> None:
        """Adds the output of one of this rank's micro-batches."""
        matrix_BT = self._found.setdefault(name, self._layout.zeros())
        self._layout.put_back(values_NC, part, into=matrix_BT)

    def gather(self, name: str) -> FloatMatrix:
        """Returns the output over all ranks; 0 for rows that were in no micro-batch. Collective."""
        return self._ranks.sum_matrix(self._found.pop(name, self._layout.zeros()))
