"""Tensors that all ranks put together one by one: a rank that needs none of them keeps none."""

from collections import deque
from collections.abc import Callable, Iterable

import torch

from services.trainer.ranks import Ranks

Named = Iterable[tuple[str, torch.Tensor]]


def take_part(tensors: Named) -> None:
    """Help the others to theirs."""
    deque(tensors, maxlen=0)


def hash_on_all(tensors: Named, hash_of: Callable[[Named], bytes], ranks: Ranks) -> bytes:
    """The hash that the first rank comes to. Collective."""
    if ranks.is_first:
        return ranks.bytes_from_first(hash_of(tensors))
    take_part(tensors)
    return ranks.bytes_from_first(b"")
