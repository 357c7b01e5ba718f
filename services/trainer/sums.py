"""Sums of metrics over the micro-batches of a batch."""

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
        """Adds the value of a micro-batch."""
        self._sums[name] = self._sums.get(name, torch.zeros(())) + value.detach().double()

    def over(self, ranks: Ranks) -> dict[str, float]:
        """Returns sums over all ranks; all have the same names, as ranks without rows had an empty
        call.
        """
        names = sorted(self._sums)
        sums = ranks.sum([float(self._sums[name]) for name in names])
        return dict(zip(names, sums, strict=True))
