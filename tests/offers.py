"""Weights that a trainer offers, without a trainer."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from trinity.weights.offer import OfferAddress, TransferTimeouts
from trinity.weights.sending import WeightsSender


@contextmanager
def offering(
    weights: Mapping[str, torch.Tensor], limits: TransferTimeouts
) -> Iterator[OfferAddress]:
    """On loopback; withdrawn at the block's end."""
    offer = WeightsSender(
        weights, host="127.0.0.1", name="weights", limits=limits, transfer_lock=threading.Lock()
    )
    yield offer.offer
    offer.withdraw(60.0)
