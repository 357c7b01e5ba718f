"""The hash that identifies weights."""

import hashlib

import torch


class WeightsDigest:
    """SHA-256 over names, types, shapes and bytes; tensors are added in the order of their names.

    digest = WeightsDigest()
    for name in sorted(tensors):
        digest.add(name, tensors[name])
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Adds the next tensor; one on a device is copied to the CPU."""
        whole = tensor.detach().cpu().contiguous()
        self._sha256.update(f"{name} {whole.dtype} {list(whole.shape)}\n".encode())
        self._sha256.update(whole.reshape(-1).view(torch.uint8).numpy())

    def digest(self) -> bytes:
        """Returns the hash of all that was added."""
        return self._sha256.digest()
