"""Weights that a trainer offers, without a trainer."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from trinity.weights.offer import Limits, Offer
from trinity.weights.sending import WeightsOffer


@contextmanager
def offering(weights: Mapping[str, torch.Tensor], limits: Limits) -> Iterator[Offer]:
    """On loopback; withdrawn at the block's end."""
    offer = WeightsOffer(
        weights, host="127.0.0.1", name="weights", limits=limits, turn=threading.Lock()
    )
    yield offer.offer
    offer.withdraw(60.0)
