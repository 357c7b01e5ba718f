"""A hash of what an adapter was trained on, kept in each checkpoint beside the adapter.

Hashing the merged weights would not do: another processor may round their product differently.
"""

import hashlib
from pathlib import Path

from services.trainer.gathered import Named
from trinity.transfer.digest import WeightsDigest

FILE_NAME = "adapter_base.sha256"


def base_hash(parts: Named) -> bytes:
    """Returns the SHA-256 over the parts, ordered by name; holds one part in memory at a time."""
    digests: dict[str, bytes] = {}
    for name, tensor in parts:
        digest = WeightsDigest()
        digest.add(name, tensor)
        digests[name] = digest.digest()
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).digest()


def record_base(checkpoint: Path, digest: bytes) -> None:
    """Writes the hash into a checkpoint; called before the checkpoint is sealed."""
    (checkpoint / FILE_NAME).write_text(digest.hex())


def recorded_base(checkpoint: Path) -> bytes | None:
    """Reads the hash; None in checkpoints older than this record."""
    file = checkpoint / FILE_NAME
    return bytes.fromhex(file.read_text()) if file.exists() else None
