"""Who needs none of the weights that ranks put together holds one tensor at a time."""

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # they import torch
    import torch

    from services.trainer.collectives import Ranks


class Weights:
    """Tensors that come one by one; at most `peak` of them were there at a time."""

    def __init__(self, num_tensors: int) -> None:
        self.peak = 0
        self._num_tensors = num_tensors

    def __iter__(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        import torch

        alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        for index in reversed(range(self._num_tensors)):
            tensor = torch.full((2,), float(index))
            alive.add(tensor)
            self.peak = max(self.peak, len(alive))
            yield f"layer {index}", tensor
            del tensor


@pytest.fixture
def later_rank() -> "Ranks":
    """Of a gang that sends nothing, as tests run in one process."""
    from services.trainer.collectives import Ranks

    return Ranks(rank=1, num_ranks=1)


def test_only_the_first_rank_keeps_what_is_hashed(later_rank: "Ranks") -> None:
    from services.trainer.checkpoints.weights import weights_hash
    from services.trainer.collectives import Ranks, hash_on_rank_0

    there, elsewhere = Weights(5), Weights(5)
    digest = hash_on_rank_0(there, lambda tensors: weights_hash(dict(tensors)), Ranks(0, 1))
    hash_on_rank_0(elsewhere, lambda tensors: weights_hash(dict(tensors)), later_rank)
    assert (there.peak, elsewhere.peak) == (5, 1)
    assert digest == weights_hash(dict(Weights(5)))


def test_what_an_adapter_learns_on_is_hashed_without_being_kept() -> None:
    from services.trainer.checkpoints.checkpoints import base_hash

    weights = Weights(5)
    digest = base_hash(weights)
    assert weights.peak <= 2, "one is read while the next is made"
    assert digest == base_hash(reversed(list(Weights(5)))), "whatever the order"
    assert digest != base_hash(Weights(4))
