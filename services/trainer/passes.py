"""Figures of a batch that is passed over several times, each pass a step of the optimizer."""

from collections.abc import Mapping, Sequence


def averaged(passes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over the passes, as verl reports them; of one pass its very own."""
    return {name: sum(one[name] for one in passes) / len(passes) for name in passes[0]}
