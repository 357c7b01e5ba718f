"""A checkpoint as a value."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A checkpoint on disk."""

    step: int
    incarnation: int
    path: Path
    manifest_sha256: bytes
