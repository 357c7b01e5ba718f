"""Weights as values."""

from dataclasses import dataclass, field
from pathlib import Path

from trinity.transfer.offer import Offer


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PublishedWeights:
    """A version on disk; newer ones are greater."""

    version: int
    incarnation: int
    path: Path
    manifest_sha256: bytes
    weights_sha256: bytes
    parent: int
    """The version it was trained from."""
    offer: Offer | None = field(default=None, compare=False)
    """The place from which it is also sent from memory."""
