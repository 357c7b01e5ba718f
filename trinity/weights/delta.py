"""Versions as differences: the bits in which their files differ from those of a whole version.

v7-1/  manifest.json                  over all that is here
       delta.json                     the whole version that it builds on, and each tensor's hash
       model.safetensors.xor.zst      that version's file XOR this version's, by zstandard; in each
                                      4 MiB the first bytes of all numbers, then the second ones
       config.json, ...               as in whole versions

A trainer lays out the files of its versions alike, so a tensor has the same place in both. What an
engine loads is compared with the hashes of all tensors, so a damaged base is found too.
"""

import errno
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity.errors import ManifestError
from trinity.weights.identity import HasRoots, TensorHash, roots_of, same_weights
from trinity.weights.manifest import MANIFEST_NAME, link_or_copy, read_regular_file
from trinity.weights.stored import DELTA_NAME

SUFFIX = ".xor.zst"
LARGEST_SHARE = 0.5
"""Share of the whole file; a larger difference is not worth its application."""
LEVEL = 1
BLOCK_BYTES = 4 << 20
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Names in the header of a safetensors file, and torch's."""


class DeltaRecord(BaseModel):
    """The content of `delta.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_version: int = Field(ge=0)
    base_incarnation: int = Field(ge=1)
    num_bytes: int = Field(ge=0)
    """Size of the files once they are whole."""
    tensors: tuple[TensorHash, ...]

    def base_in(self, folder: Path) -> Path:
        """Returns the directory of the base, or of a copy that was written in its place."""
        name = f"v{self.base_version}-{self.base_incarnation}"
        copies = [path.name.rpartition("-")[2] for path in folder.glob(f"{name}-*")]
        newest = max((int(copy) for copy in copies if copy.isdecimal()), default=0)
        return folder / (f"{name}-{newest}" if newest else name)


def base_of(directory: Path) -> tuple[int, int]:
    """Returns version and incarnation of a directory of weights."""
    version, incarnation, *_ = directory.name.removeprefix("v").split("-")
    return int(version), int(incarnation)


def write_difference(file: Path, base: Path) -> Path | None:
    """Writes the bits that differ next to the file; None where that is not worth it, or the base
    cannot be read.
    """
    target = file.with_name(file.name + SUFFIX)
    try:
        is_worth_it = base.is_file() and _write_difference(file, base, target)
    except (OSError, ValueError):
        is_worth_it = False
    if not is_worth_it:
        target.unlink(missing_ok=True)
    return target if is_worth_it else None


def _write_difference(file: Path, base: Path, target: Path) -> bool:
    num_bytes = file.stat().st_size
    if base.stat().st_size != num_bytes:
        return False
    with (
        file.open("rb") as new,
        base.open("rb") as old,
        target.open("wb") as out,
        zstandard.ZstdCompressor(level=LEVEL).stream_writer(out, closefd=False) as writer,
    ):
        while block := new.read(BLOCK_BYTES):
            writer.write(_apart(_xor(block, old.read(BLOCK_BYTES))))
            if out.tell() > LARGEST_SHARE * num_bytes:
                break
    return target.stat().st_size <= LARGEST_SHARE * num_bytes


def _xor(first: bytes, second: bytes) -> bytes:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} bytes do not belong together")
    return np.bitwise_xor(np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)).tobytes()


def _apart(block: bytes) -> bytes:
    """Puts the first bytes of all numbers before the second ones, which change less often."""
    return block if len(block) % 2 else np.frombuffer(block, "u1").reshape(-1, 2).T.tobytes()


def read_record(directory: Path) -> DeltaRecord:
    """Reads the description of a delta.

    Raises: ManifestError.
    """
    path = directory / DELTA_NAME
    try:
        return DeltaRecord.model_validate_json(read_regular_file(path))
    except (OSError, ValidationError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error


def apply_delta(directory: Path, target: Path) -> None:
    """Writes the whole version into `target`, which is not verified by that.

    Raises: ManifestError if the base is not there, or does not fit; OSError without room.
    """
    base = read_record(directory).base_in(directory.parent)
    try:
        for path in sorted(directory.iterdir()):
            if path.name.endswith(SUFFIX):
                name = path.name.removesuffix(SUFFIX)
                _apply(path, base / name, target / name)
            elif path.name not in (DELTA_NAME, MANIFEST_NAME):
                link_or_copy(path, target / path.name)
    except (OSError, ValueError, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ManifestError(
            f"{directory} cannot be applied to {base}, the version that it builds on: {error}"
        ) from error


def _apply(difference: Path, base: Path, target: Path) -> None:
    with base.open("rb") as old, difference.open("rb") as changed, target.open("wb") as out:
        reader = zstandard.ZstdDecompressor().stream_reader(changed)
        while block := bytearray(old.read(BLOCK_BYTES)):
            _flip(np.frombuffer(block, np.uint8), reader.read(len(block)))
            out.write(block)
        _flip(np.empty(0, np.uint8), reader.read(1))


def flip_bits(target: Path, *differences: Path) -> None:
    """Applies differences in a file's own bytes; a second time takes one back.

    Raises: ValueError if they do not belong together, zstandard.ZstdError, OSError.
    """
    content = np.memmap(target, np.uint8, "r+")
    with ExitStack() as opened:
        packed = [opened.enter_context(path.open("rb")) for path in differences]
        readers = [zstandard.ZstdDecompressor().stream_reader(file) for file in packed]
        for begin in range(0, len(content), BLOCK_BYTES):
            block = content[begin : begin + BLOCK_BYTES]
            _flip(block, *(reader.read(len(block)) for reader in readers))
        _flip(np.empty(0, np.uint8), *(reader.read(1) for reader in readers))


def _flip(block: npt.NDArray[np.uint8], *packed: bytes) -> None:
    """Changes the bits that are set in what `_apart` has made, in one of them or the other."""
    for given in packed:
        if len(given) != len(block):
            raise ValueError(f"{len(given)} and {len(block)} bytes do not belong together")
    changed = np.bitwise_xor.reduce([np.frombuffer(given, np.uint8) for given in packed])
    num_parts = 1 if len(block) % 2 else 2
    for first, part in enumerate(changed.reshape(num_parts, -1)):
        if part.any():
            block[first::num_parts] ^= part


def check_applied(directory: Path, target: Path, weights: HasRoots) -> None:
    """Compares each tensor in `target` with its hash in the delta, and all of them with the root.

    Raises: ManifestError, naming the tensor.
    """
    expected = read_record(directory).tensors
    found = {
        hashed.name: hashed
        for file in sorted(target.glob("*.safetensors"))
        for hashed in _hashes_in(file)
    }
    for tensor in expected:
        if found.get(tensor.name) != TensorHash(
            tensor.name, tensor.dtype, tensor.shape, blake3=tensor.blake3
        ):
            raise ManifestError(f"{directory} gives another {tensor.name} than was written")
    if not same_weights(roots_of(found.values()), weights):
        raise ManifestError(f"{directory} gives other weights than were announced")


def _hashes_in(file: Path) -> Iterator[TensorHash]:
    try:
        content = np.memmap(file, np.uint8, "r")
        begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:begin].tobytes())
        for name, tensor in header.items():
            if name != "__metadata__":
                first, last = tensor["data_offsets"]
                digest = blake3(content[begin + first : begin + last].data).hexdigest()
                dtype = DTYPES.get(tensor["dtype"], tensor["dtype"])
                yield TensorHash(name, dtype, tuple(tensor["shape"]), blake3=digest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{file.name} is no safetensors file once it is applied") from error
