"""The identity of weights: a root over all tensors, or the hash of a release before there was one.

A root is independent of the files and of the ranks that wrote them: each tensor is hashed by
itself. Earlier releases hashed all tensors as one stream in the order of their names.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_PURPOSE = b"trinity weights root v1\n"


class IdentifiedWeights(Protocol):
    """Weights with their hashes."""

    @property
    def weights_sha256(self) -> bytes:
        """The root again, or the hash of the stream."""

    @property
    def weights_root(self) -> bytes:
        """The root; empty for weights that an earlier release wrote."""


@dataclass(frozen=True, slots=True, order=True)
class TensorHash:
    """A tensor's metadata and the SHA-256 of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str


def root_of(tensors: Iterable[TensorHash]) -> bytes:
    """Returns the root over the tensors, in any order."""
    root = hashlib.sha256(_PURPOSE)
    for tensor in sorted(tensors):
        line = json.dumps([tensor.name, tensor.dtype, list(tensor.shape), tensor.sha256])
        root.update(f"{line}\n".encode())
    return root.digest()


def compare_weights(new: IdentifiedWeights, old: IdentifiedWeights) -> bool | None:
    """Returns True for the same weights; None where the two have no kind of hash in common."""
    if bool(new.weights_root) == bool(old.weights_root):
        return identity_of(new) == identity_of(old)
    if new.weights_sha256 == old.weights_sha256:
        return True
    has_stream = all(weights.weights_sha256 != weights.weights_root for weights in (new, old))
    return False if has_stream else None


def identity_of(weights: IdentifiedWeights) -> bytes:
    """Returns the root where there is one, else the hash of the stream."""
    return weights.weights_root or weights.weights_sha256
