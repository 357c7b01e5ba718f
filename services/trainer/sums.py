"""Figures that parts of a batch add up to."""

import torch

from services.trainer.ranks import Ranks


class Sums:
    """Sums by name, in double precision and without gradients.

    sums.add("loss", share)
    sums.over(ranks)            # the whole batch's
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, value: torch.Tensor) -> None:
        """What a part adds."""
        self._sums[name] = self._sums.get(name, torch.zeros(())) + value.detach().double()

    def over(self, ranks: Ranks) -> dict[str, float]:
        """Of all ranks. Those without rows had an empty call, so all have the same names."""
        names = sorted(self._sums)
        sums = ranks.sum([float(self._sums[name]) for name in names])
        return dict(zip(names, sums, strict=True))
