"""Writes the files of a version's weights: each rank writes its share of the tensors.

part = DealtPart(directory, ranks, dtype=torch.bfloat16)
part.write_tensors(learner.weights())              # on all ranks
files = gather_files(part.finish_files(), ranks)   # on the first rank; empty on the others
index = name_files(directory, files)
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file

from services.trainer.checkpoints.split import NamedSplits, PlannedFile, SplitTensor, write_files
from services.trainer.collectives import NamedTensors, Ranks
from services.trainer.types import StageLearner
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.delta import SUFFIX, write_difference
from trinity.weights.identity import HashName, TensorHash, WeightsRoots, roots_of
from trinity.weights.manifest import ManifestFile, describe, make_durable
from trinity.weights.tensors import RootDigest

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_BUCKET_BYTES = 2 * 2**30
"""Tensors that a rank keeps until it writes them as a file; a larger tensor has its own file."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """A safetensors file, durable on disk."""

    name: str
    description: ManifestFile
    tensors: tuple[TensorHash, ...]
    num_bytes: int
    """Of the tensors alone."""

    @property
    def is_difference(self) -> bool:
        """True if it is the difference to a base's file."""
        return self.name.endswith(SUFFIX)


_FILES: TypeAdapter[tuple[WeightsFile, ...]] = TypeAdapter(tuple[WeightsFile, ...])
_HASHES: TypeAdapter[tuple[TensorHash, ...]] = TypeAdapter(tuple[TensorHash, ...])


def dealt_to(ranks: Ranks, tensors: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of this rank: each is dealt to the rank with the fewest bytes so far.

    All ranks see all tensors in the same order, so they agree without communication.
    """
    deal = Deal(ranks.num_ranks)
    for name, tensor in tensors:
        if deal.next_rank(tensor.nbytes) == ranks.rank:
            yield name, tensor
        del tensor  # or two whole tensors would be there while the next one is gathered


def _gathered(
    ranks: Ranks, tensors: NamedSplits, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of this rank, which the others send to it in pieces. Collective."""
    deal = Deal(ranks.num_ranks)
    for name, tensor in tensors:
        whole = tensor.gather_to(deal.next_rank(tensor.num_bytes), ranks, dtype)
        if whole is not None:
            yield name, whole
        del whole


class Deal:
    """Deals tensors to ranks by their bytes."""

    def __init__(self, num_ranks: int) -> None:
        self._num_bytes = [0] * num_ranks

    def next_rank(self, num_bytes: int) -> int:
        """Returns the rank with the fewest bytes so far, which gets the next tensor."""
        chosen = self._num_bytes.index(min(self._num_bytes))
        self._num_bytes[chosen] += num_bytes
        return chosen


class DealtPart:
    """One rank's files of a version. It holds one bucket of tensors at a time."""

    def __init__(
        self,
        directory: Path,
        ranks: Ranks,
        *,
        dtype: torch.dtype,
        hashes: Sequence[HashName] = (),
        max_bytes: int | None = None,
        life: LifeSigns = UNWATCHED,
    ) -> None:
        """Also computes these `hashes` of each tensor."""
        self._directory = directory
        self._ranks = ranks
        self._dtype = dtype
        self._hashes = tuple(hashes)
        self._life = life
        self._max_bytes = MAX_BUCKET_BYTES if max_bytes is None else max_bytes
        self._bucket: dict[str, torch.Tensor] = {}
        self._num_bytes = 0
        self._written: list[tuple[str, int]] = []

    def write_tensors(self, tensors: NamedTensors) -> None:
        """Writes this rank's tensors, without waiting for the disk. Collective."""
        self._write_own(dealt_to(self._ranks, tensors))

    def _write_own(self, tensors: NamedTensors) -> None:
        for name, tensor in tensors:
            own = tensor.to(self._dtype).contiguous()
            del tensor
            self._life.show()
            if self._bucket and self._num_bytes + own.nbytes > self._max_bytes:
                self._write_bucket()
            self._bucket[name] = own
            self._num_bytes += own.nbytes
            del own
        if self._bucket:
            self._write_bucket()

    def write_split(self, tensors: NamedSplits) -> None:
        """Writes tensors that ranks hold in pieces: the same files. Collective.

        Pieces go straight into the files. Where tensors must be whole before they are written, each
        is put together by the rank that writes it.
        """
        found = dict(tensors)
        split = {name: part for name, part in found.items() if isinstance(part, SplitTensor)}
        if len(split) < len(found):
            self._write_own(_gathered(self._ranks, found.items()))
            return
        files = plan_files(split, self._ranks.num_ranks, self._dtype, self._max_bytes)
        write_files(self._directory, files, split, self._ranks, self._life)
        own = (file for file in files if file.writer == self._ranks.rank)
        self._written += [(file.name, file.num_bytes) for file in own]

    def _write_bucket(self) -> None:
        name = _file_name(self._ranks.rank, len(self._written))
        with self._life.on_disk(self._num_bytes):
            save_file(self._bucket, self._directory / name, metadata={"format": "pt"})
        self._written.append((name, self._num_bytes))
        self._bucket, self._num_bytes = {}, 0

    def finish_files(self, base: Path | None = None) -> tuple[WeightsFile, ...]:
        """Makes the files durable, and hashes them and their tensors.

        Files become their differences to those of a `base` where these are small.
        """
        return tuple(self._finish(name, num_bytes, base) for name, num_bytes in self._written)

    def _finish(self, name: str, num_bytes: int, base: Path | None) -> WeightsFile:
        """Syncs the file and computes both of its hashes in parallel."""
        path = self._directory / name
        with self._life.on_disk(num_bytes), ThreadPoolExecutor(2, "hash") as threads:
            tensors = threads.submit(tensor_hashes_in, path, *self._hashes)
            if base is not None and (difference := _difference_to(base, path)) is not None:
                tensors.result()
                path.unlink()
                path = difference
            description = threads.submit(describe, path, "blake3")
            make_durable(path)
            return WeightsFile(path.name, description.result(), tensors.result(), num_bytes)


def _difference_to(base: Path, file: Path) -> Path | None:
    """Writes the difference to the file of the base that has the same tensors, if that is small."""
    name = WEIGHTS_NAME
    if (index := base / INDEX_NAME).is_file():
        with safe_open(file, framework="pt") as opened:
            name = json.loads(index.read_text())["weight_map"].get(next(iter(opened.keys())), "")
    return write_difference(file, base / name)


def _file_name(rank: int, number: int) -> str:
    return f"{rank:05d}-{number:05d}.safetensors"


def plan_files(
    tensors: Mapping[str, SplitTensor], num_ranks: int, dtype: torch.dtype, max_bytes: int
) -> list[PlannedFile]:
    """Returns all ranks' files, of the tensors that `dealt_to` gives them, a bucket each."""
    deal = Deal(num_ranks)
    buckets: list[list[dict[str, tuple[int, ...]]]] = [[] for _ in range(num_ranks)]
    room = [0] * num_ranks
    for name, tensor in tensors.items():
        writer = deal.next_rank(tensor.num_bytes)
        size = tensor.num_elements * dtype.itemsize
        if not buckets[writer] or size > room[writer]:
            buckets[writer].append({})
            room[writer] = max_bytes
        buckets[writer][-1][name] = tensor.shape
        room[writer] -= size
    return [
        PlannedFile(_file_name(writer, number), writer, dtype, shapes)
        for writer, own in enumerate(buckets)
        for number, shapes in enumerate(own)
    ]


def tensor_hashes_in(path: Path, *hashes: HashName) -> tuple[TensorHash, ...]:
    """Returns the hashes of the tensors in a safetensors file."""
    digest = RootDigest(*hashes)
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            digest.add_tensor(name, file.get_tensor(name))
    return tuple(digest.hashes)


def gather_files(own: tuple[WeightsFile, ...], ranks: Ranks) -> tuple[WeightsFile, ...]:
    """Returns the files of all ranks on the first one, in their order. Collective."""
    found = ranks.gather_bytes(_FILES.dump_json(own))
    return tuple(file for part in found for file in _FILES.validate_json(part))


def roots_of_files(files: Iterable[WeightsFile]) -> WeightsRoots:
    """Returns the identity of the weights in the files."""
    return roots_of(tensor for file in files for tensor in file.tensors)


def name_files(directory: Path, files: tuple[WeightsFile, ...]) -> tuple[WeightsFile, ...]:
    """Gives the files the names that Hugging Face's libraries expect; several get an index."""
    total = len(files)
    named = []
    for number, file in enumerate(files, start=1):
        name = WEIGHTS_NAME if total == 1 else f"model-{number:05d}-of-{total:05d}.safetensors"
        name += SUFFIX if file.is_difference else ""
        (directory / file.name).rename(directory / name)
        named.append(replace(file, name=name))
    if total > 1:
        (directory / INDEX_NAME).write_text(_index_of(named))
    return tuple(named)


def _index_of(files: list[WeightsFile]) -> str:
    places = {
        tensor.name: file.name.removesuffix(SUFFIX) for file in files for tensor in file.tensors
    }
    total_size = sum(file.num_bytes for file in files)
    index = {"metadata": {"total_size": total_size}, "weight_map": places}
    return json.dumps(index, indent=2, sort_keys=True)


def root_of_learner(
    learner: StageLearner,
    ranks: Ranks,
    life: LifeSigns = UNWATCHED,
    dtype: torch.dtype | None = None,
    hash_name: HashName = "sha256",
) -> bytes:
    """Returns the root over the learner's weights, in a type or in their own. Collective.

    Each rank hashes its share of the tensors.
    """
    split = learner.split_weights()
    if split is not None:
        return _root_of_dealt(_gathered(ranks, split, dtype), ranks, life, hash_name)
    return root_on_all_ranks(_in_type(learner.weights(), dtype), ranks, life, hash_name)


def _in_type(tensors: NamedTensors, dtype: torch.dtype | None) -> NamedTensors:
    for name, tensor in tensors:
        yield name, tensor if dtype is None else tensor.to(dtype)
        del tensor


def root_on_all_ranks(
    tensors: NamedTensors,
    ranks: Ranks,
    life: LifeSigns = UNWATCHED,
    hash_name: HashName = "blake3",
) -> bytes:
    """Returns the root over the weights; each rank hashes its share. Collective."""
    return _root_of_dealt(dealt_to(ranks, tensors), ranks, life, hash_name)


def _root_of_dealt(
    tensors: NamedTensors, ranks: Ranks, life: LifeSigns, hash_name: HashName
) -> bytes:
    digest = RootDigest(hash_name)
    for name, tensor in tensors:
        digest.add_tensor(name, tensor)
        del tensor
        life.show()
    found = ranks.gather_bytes(_HASHES.dump_json(tuple(digest.hashes)))
    roots = roots_of(hash_ for part in found for hash_ in _HASHES.validate_json(part))
    return ranks.broadcast_bytes(
        roots.weights_blake3 if hash_name == "blake3" else roots.weights_sha256
    )
