"""Tensors that all ranks gather together; a rank that needs none of them keeps none."""

from collections import deque
from collections.abc import Callable, Iterable

import torch

from services.trainer.ranks import Ranks

Named = Iterable[tuple[str, torch.Tensor]]


def take_part(tensors: Named) -> None:
    """Iterates over the tensors, so that the other ranks can gather them."""
    deque(tensors, maxlen=0)


def hash_on_all(tensors: Named, hash_of: Callable[[Named], bytes], ranks: Ranks) -> bytes:
    """Returns the first rank's hash, on all ranks. Collective."""
    if ranks.is_first:
        return ranks.bytes_from_first(hash_of(tensors))
    take_part(tensors)
    return ranks.bytes_from_first(b"")
