"""The identity of weights: a root over all tensors, each of which is hashed by itself.

So it does not depend on the files, nor on the ranks that wrote them.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

_PURPOSE = b"trinity weights root v1\n"


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
