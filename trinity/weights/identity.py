"""The identity of weights: a root over all tensors, each of which is hashed by itself.

So it does not depend on the files, nor on the ranks that wrote them. Published weights have a root
by BLAKE3; those of release 0.1, and checkpoints, have one by SHA-256.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from blake3 import blake3

HashName = Literal["sha256", "blake3"]
HASHES: dict[HashName, Callable[..., "Hasher"]] = {"sha256": hashlib.sha256, "blake3": blake3}
_PURPOSES = {"sha256": b"trinity weights root v1\n", "blake3": b"trinity weights root v2\n"}


class Hasher(Protocol):
    """A hash that takes its content in parts."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Adds a part."""
        ...

    def digest(self) -> bytes:
        """Returns the hash of all parts."""
        ...

    def hexdigest(self) -> str:
        """Returns it as text."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class TensorHash:
    """A tensor's metadata and the hashes of its bytes; empty are those that were not asked for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str = ""
    blake3: str = ""


class HasRoots(Protocol):
    """Weights with one root or both."""

    @property
    def weights_sha256(self) -> bytes:
        """The root by SHA-256, or nothing."""
        ...

    @property
    def weights_blake3(self) -> bytes:
        """The root by BLAKE3, or nothing."""
        ...


@dataclass(frozen=True, slots=True)
class WeightsRoots:
    """The roots over all tensors; empty is one that was not asked for."""

    weights_sha256: bytes = b""
    weights_blake3: bytes = b""


def same_weights(first: HasRoots, second: HasRoots) -> bool:
    """Returns True if the roots are equal by the newest hash that both have."""
    if first.weights_blake3 and second.weights_blake3:
        return first.weights_blake3 == second.weights_blake3
    return first.weights_sha256 == second.weights_sha256 != b""


def roots_of(tensors: Iterable[TensorHash]) -> WeightsRoots:
    """Returns the roots over the tensors, in any order, by the hashes that all of them have."""
    ordered = sorted(tensors)
    return WeightsRoots(_root_of(ordered, "sha256"), _root_of(ordered, "blake3"))


def _root_of(ordered: list[TensorHash], name: HashName) -> bytes:
    root = HASHES[name]()
    root.update(_PURPOSES[name])
    for tensor in ordered:
        if not (own := asdict(tensor)[name]):
            return b""
        line = json.dumps([tensor.name, tensor.dtype, list(tensor.shape), own])
        root.update(f"{line}\n".encode())
    return root.digest()
