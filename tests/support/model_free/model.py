"""A model's directory as the services expect one; its weights are a digest, a byte a number."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

DIGEST_BYTES = 32
WEIGHTS_FILE = "model.safetensors"
TENSOR = "digest"


def write_model(directory: Path, name: str = "start") -> Path:
    """The directory of a stage's starting weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "model_free"}))
    save_file({TENSOR: as_array(hashlib.sha256(name.encode()).digest())}, directory / WEIGHTS_FILE)
    return directory


def read_digest(directory: Path) -> bytes:
    """The digest that a directory's weights stand for."""
    return as_digest(load_file(directory / WEIGHTS_FILE)[TENSOR].tolist())


def as_array(digest: bytes) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Small whole numbers, which every type of weights holds exactly."""
    return np.frombuffer(digest, dtype=np.uint8).astype(np.float32)


def as_digest(numbers: Sequence[float]) -> bytes:
    """The inverse of `as_array`."""
    return bytes(int(number) for number in numbers)
