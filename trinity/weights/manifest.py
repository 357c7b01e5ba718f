"""Manifests: a directory is valid only if its manifest, written last, matches every file.

manifest_sha256 = seal(temporary, ManifestHead(kind="weights", stage="rft", ...))
move_into_place(temporary, final)
manifest = verify(final, manifest_sha256)      # ManifestError if a single bit differs
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity.errors import ManifestError
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.identity import HASHES, HashName, WeightsRoots

MANIFEST_NAME = "manifest.json"
NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
"""How file systems say that they make no hard link."""
MAX_MANIFEST_BYTES = 64 * 2**20
MOST_HASHED_AT_ONCE = 4
READ_BYTES = 1 << 20
FileSignature: TypeAlias = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size and times of each file."""
Sha256Hex = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
HashHex = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
"""Of SHA-256 or BLAKE3; empty where the other one was computed."""


class ManifestHead(BaseModel):
    """The description of a directory's content."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["weights", "checkpoint"]
    stage: str
    step: int = Field(ge=0)
    """The train step after which it was taken; for weights, their version."""
    incarnation: int = Field(ge=1)
    """The incarnation of the trainer that wrote it."""
    weights_sha256: HashHex = ""
    """Root over all tensors; of checkpoints, and of weights that release 0.1 knows."""
    weights_blake3: HashHex = ""
    """The same of published weights."""
    num_ranks: int = Field(default=1, ge=1)
    """The number of ranks that a checkpoint is split over."""

    @property
    def roots(self) -> WeightsRoots:
        """The identity of its weights."""
        return WeightsRoots(bytes.fromhex(self.weights_sha256), bytes.fromhex(self.weights_blake3))


class ManifestFile(BaseModel):
    """One file of the directory."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    sha256: HashHex = ""
    blake3: HashHex = ""
    size: int = Field(ge=0)

    @property
    def hash_name(self) -> HashName:
        """The hash that it has: BLAKE3 for published weights, SHA-256 for checkpoints."""
        return "blake3" if self.blake3 else "sha256"


class Manifest(ManifestHead):
    """The head and every file but the manifest itself, by its path from the directory."""

    files: dict[str, ManifestFile]


def seal(
    directory: Path,
    head: ManifestHead,
    durable: frozenset[str] = frozenset(),
    described: Mapping[str, ManifestFile] = MappingProxyType({}),
    *,
    life: LifeSigns = UNWATCHED,
) -> bytes:
    """Makes all files durable, writes the manifest after them and returns its SHA-256.

    `durable` names files that are so already, such as links to durable ones; `described` files are
    so too, and were hashed by the ranks that wrote them.
    """
    hash_name: HashName = "blake3" if head.kind == "weights" else "sha256"
    files = {}
    for path in _files_of(directory):
        name = path.relative_to(directory).as_posix()
        if name in described:
            files[name] = described[name]
            continue
        with life.on_disk(path.stat().st_size):
            if name not in durable:
                make_durable(path)
            files[name] = describe(path, hash_name)
    manifest = Manifest(**head.model_dump(), files=files)
    content = manifest.model_dump_json(indent=1, exclude_defaults=True).encode()
    target = directory / MANIFEST_NAME
    target.write_bytes(content)
    make_durable(target)
    for folder in sorted({path.parent for path in _files_of(directory)} | {directory}):
        make_durable(folder)
    return hashlib.sha256(content).digest()


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file a second name; on a file system without hard links, a durable copy."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copyfile(source, target)
        make_durable(target)


def move_into_place(temporary: Path, final: Path) -> None:
    """Renames a sealed directory to its final name, durably."""
    temporary.rename(final)
    make_durable(final.parent)


def read(directory: Path, manifest_sha256: bytes) -> Manifest:
    """Returns the manifest alone, without checking the files.

    Raises: ManifestError if it is missing, is another one or cannot be understood.
    """
    path = directory / MANIFEST_NAME
    try:
        content = read_regular_file(path)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).digest() != manifest_sha256:
        raise ManifestError(f"{path} is not the manifest that was announced: its hash differs")
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ManifestError(f"{path} is not a manifest: {error.errors()[0]['msg']}") from error


def read_regular_file(path: Path, max_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
    """Returns the content of a file of limited size.

    Raises: OSError, also if the path is not a regular file: reading a pipe would block forever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
    return content


def file_signature(directory: Path) -> FileSignature:
    """Returns what changes with any ordinary change of the files, without reading them."""
    found = []
    for path in [directory, *sorted(directory.rglob("*"))]:
        try:
            state = path.lstat()
        except OSError:
            found.append((str(path), 0, -1, 0, 0))
        else:
            times = state.st_mtime_ns, state.st_ctime_ns
            found.append((str(path), state.st_ino, state.st_size, *times))
    return tuple(found)


def verify(directory: Path, manifest_sha256: bytes, *, life: LifeSigns = UNWATCHED) -> Manifest:
    """Returns the manifest if the directory holds exactly the files it names, bit for bit.

    Raises: ManifestError, naming the first thing that differs.
    """
    manifest = read(directory, manifest_sha256)
    try:
        _compare(directory, manifest, life)
    except OSError as error:  # a damaged disk, or files that are removed at this moment
        raise ManifestError(
            f"{error.filename or directory} cannot be read: {error.strerror}"
        ) from error
    return manifest


def _compare(directory: Path, manifest: Manifest, life: LifeSigns) -> None:
    present = {path.relative_to(directory).as_posix() for path in _files_of(directory)}
    for name in sorted(present ^ manifest.files.keys()):
        state = "is missing" if name in manifest.files else "is not in the manifest"
        raise ManifestError(f"{directory / name} {state}")
    with ThreadPoolExecutor(_num_hashed_at_once(), "verify") as threads:
        found = {
            name: threads.submit(describe, directory / name, file.hash_name)
            for name, file in manifest.files.items()
        }
        try:
            for name, expected in manifest.files.items():
                path = directory / name
                with life.on_disk(path.stat().st_size):
                    if found[name].result() != expected:
                        raise ManifestError(f"{path} has changed: it does not match its manifest")
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _num_hashed_at_once() -> int:
    """Returns how many files are hashed in parallel: each needs a CPU core, all share one disk."""
    return min(MOST_HASHED_AT_ONCE, len(os.sched_getaffinity(0)))


def make_durable(path: Path) -> None:
    """Returns once a file's content, or a directory's entries, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_of(directory: Path) -> list[Path]:
    paths = directory.rglob("*")
    return sorted(path for path in paths if path.is_file() and path != directory / MANIFEST_NAME)


def bytes_below(directory: Path) -> int:
    """Returns the size of all files of a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def describe(path: Path, hash_name: HashName) -> ManifestFile:
    """Returns size and hash of a file."""
    digest, buffer = HASHES[hash_name](), memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while num_bytes := file.readinto(buffer):
            digest.update(buffer[:num_bytes])
    return ManifestFile(**{hash_name: digest.hexdigest()}, size=path.stat().st_size)
