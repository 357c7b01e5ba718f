"""Figures of tokens that ranks found part by part, put together on all of them alike."""

from services.trainer.layout import Layout
from services.trainer.parts import Part
from services.trainer.ranks import Ranks
from trinity.algorithm.token_advantage.token_batch import FloatMatrix


class Gatherer:
    """Of one batch.

    gatherer = Gatherer(layout, ranks)
    gatherer.add("values", part, values_NC)
    values_BT = gatherer.gather("values")
    """

    def __init__(self, layout: Layout, ranks: Ranks) -> None:
        self._layout = layout
        self._ranks = ranks
        self._found: dict[str, FloatMatrix] = {}

    def add(self, name: str, part: Part, values_NC: FloatMatrix) -> None:
        """What a part of this rank's gave."""
        matrix_BT = self._found.setdefault(name, self._layout.zeros())
        self._layout.put_back(values_NC, part, into=matrix_BT)

    def gather(self, name: str) -> FloatMatrix:
        """Of all ranks' parts; 0 for rows that were in none. Collective."""
        return self._ranks.sum_matrix(self._found.pop(name, self._layout.zeros()))
