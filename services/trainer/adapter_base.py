"""What an adapter learns on is known by a hash, kept in each checkpoint beside the adapter.

Merged weights would not do: another processor may round their product otherwise.
"""

import hashlib
from pathlib import Path

from services.trainer.gathered import Named
from trinity.transfer.digest import WeightsDigest

FILE_NAME = "adapter_base.sha256"


def base_hash(parts: Named) -> bytes:
    """SHA-256 over those of the parts in the order of their names; holds one part at a time."""
    digests: dict[str, bytes] = {}
    for name, tensor in parts:
        digest = WeightsDigest()
        digest.add(name, tensor)
        digests[name] = digest.digest()
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).digest()


def record_base(checkpoint: Path, digest: bytes) -> None:
    """Before the checkpoint is sealed."""
    (checkpoint / FILE_NAME).write_text(digest.hex())


def recorded_base(checkpoint: Path) -> bytes | None:
    """None in checkpoints from before there was a record."""
    file = checkpoint / FILE_NAME
    return bytes.fromhex(file.read_text()) if file.exists() else None
