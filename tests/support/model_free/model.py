"""A model's directory as the services expect one; its weights are a digest, a byte a number."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

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
    content = (directory / WEIGHTS_FILE).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])[TENSOR]
    first, last = (begin + offset for offset in header["data_offsets"])
    if header["dtype"] == "BF16":  # numpy has no such type: it is the first half of a float32
        halves = np.frombuffer(content[first:last], np.uint16).astype(np.uint32) << 16
        return as_digest(halves.view(np.float32).tolist())
    return as_digest(np.frombuffer(content[first:last], np.float32).tolist())


def as_array(digest: bytes) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """Small whole numbers, which every type of weights holds exactly."""
    return np.frombuffer(digest, dtype=np.uint8).astype(np.float32)


def as_digest(numbers: Sequence[float]) -> bytes:
    """The inverse of `as_array`."""
    return bytes(int(number) for number in numbers)
