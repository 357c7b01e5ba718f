"""Tensors cut over ranks, in safetensors files that say where each piece belongs.

<rank>-<number>.safetensors      the pieces of one rank, with their offsets and the tensors' shapes

They are read and written through `torch.distributed.checkpoint`, so that any number of ranks can
load them. Nothing in them runs code when it is read.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.weights.manifest import make_durable

SUFFIX = ".safetensors"
PIECES = "pieces"
"""The key of the files' metadata."""
MAX_FILE_BYTES = 2 * 2**30
"""A rank has no more than this in the host's memory at once while it writes."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The whole of a tensor that ranks hold in pieces."""

    dtype: torch.dtype
    size: torch.Size


def write_shards(
    tensors: Mapping[str, torch.Tensor], directory: Path, rank: int, life: LifeSigns = UNWATCHED
) -> None:
    """Writes this rank's pieces without waiting for the other ranks.

    A piece that several ranks hold is written by the first of them.
    """
    directory.mkdir(exist_ok=True, parents=True)
    own = {name: tensor for name, tensor in tensors.items() if _is_writer(tensor, rank)}
    with _quietly():
        writer = _ShardWriter(directory, rank, life)
        dcp.save(own, storage_writer=writer, planner=_OwnPieces(), no_dist=True)


def read_shards(
    tensors: Mapping[str, torch.Tensor], directory: Path, life: LifeSigns = UNWATCHED
) -> None:
    """Reads into these tensors what of them this rank holds, no matter which ranks wrote it.

    Raises: ValueError if the files lack a tensor, a part of one, or have another shape of it.
    """
    reader = _ShardReader(directory, life)
    known = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        _check(name, tensor, known.get(name))
    with _quietly():
        dcp.load(dict(tensors), storage_reader=reader, no_dist=True)


def shapes_of(directory: Path) -> dict[str, TensorShape]:
    """Returns the tensors that the files of a folder hold, by name."""
    known = _ShardReader(directory).read_metadata().state_dict_metadata
    return {
        name: TensorShape(saved.properties.dtype, saved.size)
        for name, saved in known.items()
        if isinstance(saved, TensorStorageMetadata)
    }


def _check(name: str, tensor: torch.Tensor, saved: object) -> None:
    if not isinstance(saved, TensorStorageMetadata):
        raise ValueError(f"{name} is missing")
    if saved.size != tensor.shape:
        raise ValueError(f"{name} has the shape {list(saved.size)}, not {list(tensor.shape)}")
    if sum(prod(chunk.sizes) for chunk in saved.chunks) != prod(saved.size):
        raise ValueError(f"parts of {name} are missing")


def _is_writer(tensor: torch.Tensor, rank: int) -> bool:
    """Returns True for one of the ranks that hold the same piece of a tensor."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    coordinates = tensor.device_mesh.get_coordinate()
    if coordinates is None:
        return False
    places = zip(tensor.placements, coordinates, strict=True)
    return all(place.is_shard() or coordinate == 0 for place, coordinate in places)


def _quietly() -> "warnings.catch_warnings[None]":
    """Silences torch's remark that ranks do not talk to one another: they need not."""
    return warnings.catch_warnings(action="ignore")


class _OwnPieces(DefaultSavePlanner):  # type: ignore[misc]  # torch gives it no types
    """Plans for one rank; the default one asks every rank for all plans, and pickles them."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Returns the plan as it is: the files' own metadata describe the pieces."""
        return all_plans, Metadata(state_dict_metadata={})


class _ShardWriter(StorageWriter):  # type: ignore[misc]  # torch gives it no types
    """Writes the pieces of one rank into files of a limited size."""

    def __init__(self, directory: Path, rank: int, life: LifeSigns) -> None:
        self._directory = directory
        self._rank = rank
        self._life = life

    def reset(self, checkpoint_id: object = None) -> None:
        """No-op: a writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """No-op: the folder exists."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns the plans."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Writes the pieces, file by file."""
        for number, items in enumerate(_by_files(plan.items)):
            path = self._directory / f"{self._rank}-{number}{SUFFIX}"
            pieces = {item.index.fqn: _on_cpu(planner.resolve_data(item)) for item in items}
            places = {item.index.fqn: _place_of(item) for item in items}
            with self._life.on_disk(sum(_bytes_of(item) for item in items)):
                save_file(pieces, path, metadata={PIECES: json.dumps(places)})
                make_durable(path)
        return _done([])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """No-op: the checkpoint is committed by its manifest, which is written last."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:  # noqa: ARG003  # torch's name
        """Returns False: a writer is given to `save`, not found by a path."""
        return False


class _ShardReader(StorageReader):  # type: ignore[misc]  # torch gives it no types
    """Reads parts of tensors from the files of all ranks."""

    def __init__(self, directory: Path, life: LifeSigns = UNWATCHED) -> None:
        self._directory = directory
        self._life = life
        self._files: dict[MetadataIndex, Path] = {}

    def reset(self, checkpoint_id: object = None) -> None:
        """No-op: a reader reads once."""

    def read_metadata(self) -> Metadata:
        """Returns what all files hold, and where."""
        known: dict[str, TensorStorageMetadata] = {}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            for name, place in _places_in(path):
                chunk = ChunkStorageMetadata(
                    offsets=torch.Size(place["offsets"]), sizes=torch.Size(place["sizes"])
                )
                saved = known.setdefault(name, _whole_of(place))
                saved.chunks.append(chunk)
                self._files[MetadataIndex(name, chunk.offsets)] = path
        return Metadata(state_dict_metadata=dict(known), storage_data=self._files)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """No-op: the metadata come from this reader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Copies the requested slices, opening each file once."""
        by_file: dict[Path, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for path, items in by_file.items():
            # Slices are read by pages of the file, so together they may need all of it.
            with self._life.on_disk(path.stat().st_size), safe_open(path, framework="pt") as file:
                for item in items:
                    _read_slice(file, item, planner)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:  # noqa: ARG003  # torch's name
        """Returns False: a reader is given to `load`, not found by a path."""
        return False


def _by_files(items: Iterable[WriteItem]) -> Iterator[list[WriteItem]]:
    """Splits the pieces into files; pieces without elements are skipped."""
    taken: list[WriteItem] = []
    num_bytes = 0
    for item in items:
        size = _bytes_of(item)
        if size == 0:
            continue
        if taken and num_bytes + size > MAX_FILE_BYTES:
            yield taken
            taken, num_bytes = [], 0
        taken.append(item)
        num_bytes += size
    if taken:
        yield taken


def _bytes_of(item: WriteItem) -> int:
    assert item.tensor_data is not None, "only tensors are written in pieces"
    num_elements: int = prod(item.tensor_data.chunk.sizes)
    return num_elements * int(item.tensor_data.properties.dtype.itemsize)


def _place_of(item: WriteItem) -> dict[str, object]:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return {
        "offsets": list(chunk.offsets),
        "sizes": list(chunk.sizes),
        "shape": list(item.tensor_data.size),
        "dtype": str(item.tensor_data.properties.dtype).removeprefix("torch."),
    }


def _on_cpu(piece: object) -> torch.Tensor:
    assert isinstance(piece, torch.Tensor)
    return piece.detach().cpu().contiguous()


def _places_in(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with safe_open(path, framework="pt") as file:
        described = (file.metadata() or {}).get(PIECES)
        if described is None:
            raise ValueError(f"{path} does not say which pieces it holds")
        yield from json.loads(described).items()


def _whole_of(place: Mapping[str, Any]) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, place["dtype"])),
        size=torch.Size(place["shape"]),
        chunks=[],
    )


def _read_slice(file: Any, item: ReadItem, planner: LoadPlanner) -> None:
    ends = zip(item.storage_offsets, item.lengths, strict=True)
    wanted = tuple(slice(start, start + length) for start, length in ends)
    name = item.storage_index.fqn
    piece = file.get_slice(name)[wanted] if wanted else file.get_tensor(name)
    target = planner.resolve_tensor(item).detach()
    target.copy_(piece)
    planner.commit_tensor(item, target)


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future
