"""Sharded tensors, and their transfer to the rank that writes or hashes them.

split = SplitTensor.of(parameter, ranks)           # without communication
write_files(directory, planned, tensors, ranks, life)  # each rank its pieces, into writers' files
whole = split.gather_to(2, ranks, torch.bfloat16)  # on rank 2; None on the others
MergedTensor(base=split, ...).gather_to(2, ranks)  # with an adapter's change
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed
from torch.distributed.tensor import DTensor, Replicate, Shard

from services.trainer.collectives import Ranks
from trinity.runtime.life import LifeSigns

CHUNK_BYTES = 16 * 2**20
"""Bytes that are converted, sent and written at a time."""
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""As safetensors files call them."""
HEADER_ALIGNMENT = 8
GATE_UP, DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a tensor's elements, and the ranks that hold it alike."""

    ranks: tuple[int, ...]
    start: int
    stop: int

    def source_for(self, writer: int, ranks: Ranks) -> int:
        """Returns the rank that hands the piece to the writer: itself, or one on its host."""
        if writer in self.ranks:
            return writer
        near = (rank for rank in self.ranks if ranks.are_on_one_host(rank, writer))
        return next(near, self.ranks[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTensor:
    """A tensor of which each rank holds a piece. All ranks know who holds what."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]
    own: torch.Tensor
    """The elements of this rank's piece, if it has one, in one dimension; they alias live ones."""

    @classmethod
    def of(cls, tensor: torch.Tensor, ranks: Ranks) -> "SplitTensor":
        """Describes a sharded tensor, or one that all ranks hold whole.

        Collective for one that is sharded in other ways than FSDP's: it is gathered.
        """
        whole = tensor.detach()
        if isinstance(whole, DTensor):
            if (pieces := _pieces_of(whole)) is not None:
                own = next(piece for piece in pieces if ranks.rank in piece.ranks)
                local = whole.to_local().reshape(-1)
                assert local.numel() == own.stop - own.start, "FSDP shards in equal rows"
                return cls(shape=tuple(whole.shape), dtype=whole.dtype, pieces=pieces, own=local)
            whole = whole.full_tensor()
        return cls(
            shape=tuple(whole.shape),
            dtype=whole.dtype,
            pieces=(Piece(tuple(range(ranks.num_ranks)), 0, whole.numel()),),
            own=whole.reshape(-1),
        )

    @property
    def num_elements(self) -> int:
        """Number of elements of the whole tensor."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor, in the type that it is trained in."""
        return self.num_elements * int(self.dtype.itemsize)

    def part(self, start: int, shape: tuple[int, ...]) -> "SplitTensor":
        """Returns the elements from `start` as a separate tensor; they must be contiguous."""
        stop = start + prod(shape)
        (piece,) = (piece for piece in self.pieces if piece.start <= start and stop <= piece.stop)
        return SplitTensor(
            shape=shape,
            dtype=self.dtype,
            pieces=(Piece(piece.ranks, 0, stop - start),),
            own=self.own[start - piece.start : stop - piece.start],
        )

    def chunks(self, dtype: torch.dtype) -> Iterator[torch.Tensor]:
        """Yields this rank's piece as bytes of the given type in the host's memory."""
        if not self.own.numel():
            return
        for chunk in self.own.split(CHUNK_BYTES // dtype.itemsize):
            yield chunk.to(dtype).cpu().contiguous().view(torch.uint8)

    def gather_to(
        self, writer: int, ranks: Ranks, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        """Returns the whole tensor on one rank, and None on the others. Collective."""
        dtype = dtype or self.dtype
        is_writer = writer == ranks.rank
        whole = torch.empty(self.num_elements if is_writer else 0, dtype=dtype)
        into = whole.view(torch.uint8)
        for piece in self.pieces:
            at = piece.start * dtype.itemsize
            for chunk in _carried(self, piece, writer, dtype, ranks):
                into[at : at + len(chunk)] = chunk
                at += len(chunk)
        return whole.view(self.shape) if is_writer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTensor:
    """A weight with an adapter's change, which the rank merges that has it whole."""

    base: SplitTensor
    up: SplitTensor
    down: SplitTensor
    scaling: float
    device: torch.device | int | str
    """Where it is merged: the sums of another kind of device may have other last bits."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor, in the type that it is trained in."""
        return self.base.num_bytes

    def gather_to(
        self, writer: int, ranks: Ranks, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        """Returns the merged tensor on one rank, and None on the others. Collective."""
        base, up, down = (part.gather_to(writer, ranks) for part in (self.base, self.up, self.down))
        if base is None or up is None or down is None:
            return None
        whole = base.to(self.device)
        del base
        merged = merge(whole, up.to(self.device), down.to(self.device), self.scaling)
        return merged.to(dtype or merged.dtype).cpu()


def merge(
    whole: torch.Tensor, up: torch.Tensor, down: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Returns a weight with the change of a LoRA adapter added: B A, scaled."""
    change = (up.float() @ down.float()) * scaling
    return (whole.float() + change).to(whole.dtype)


class GatherableTensor(Protocol):
    """A tensor that any one rank may have whole."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor, in the type that it is trained in."""

    def gather_to(
        self, writer: int, ranks: Ranks, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        """Returns the whole tensor on one rank, and None on the others. Collective."""


NamedSplits = Iterable[tuple[str, GatherableTensor]]


def gathered_to(
    rank: int, tensors: NamedSplits, ranks: Ranks, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Gathers tensors one by one and yields them on one rank only. Collective."""
    for name, tensor in tensors:
        whole = tensor.gather_to(rank, ranks, dtype)
        if whole is not None:
            yield name, whole
        del whole


def _pieces_of(tensor: DTensor) -> tuple[Piece, ...] | None:
    """Returns the pieces of FSDP's shards, with the copies of groups; None for other layouts."""
    sharded = [n for n, placed in enumerate(tensor.placements) if placed == Shard(0)]
    copied = [placed for placed in tensor.placements if isinstance(placed, Replicate)]
    if len(sharded) != 1 or len(sharded) + len(copied) != len(tensor.placements):
        return None
    mesh = tensor.device_mesh.mesh.movedim(sharded[0], 0)
    holders = mesh.reshape(len(mesh), -1)
    num_rows = tensor.shape[0]
    per_rank = -(-num_rows // len(holders))
    bounds = [min(num_rows, number * per_rank) for number in range(len(holders) + 1)]
    row = prod(tensor.shape[1:])
    return tuple(
        Piece(tuple(ranks), start * row, stop * row)
        for ranks, (start, stop) in zip(holders.tolist(), pairwise(bounds), strict=True)
    )


def experts_apart(
    name: str, tensor: SplitTensor, model_type: str
) -> Iterator[tuple[str, SplitTensor]]:
    """Yields fused experts one by one, as verl's export does, and other tensors as they are."""
    is_fused = len(tensor.shape) == 3 and name.endswith((GATE_UP, DOWN))
    if not is_fused or model_type == "gpt_oss":
        yield name, tensor
        return
    num_experts, num_rows, num_columns = tensor.shape
    is_gate_up = name.endswith(GATE_UP)
    base = name.removesuffix(GATE_UP if is_gate_up else DOWN) + ".mlp.experts"
    names = ("gate_proj", "up_proj") if is_gate_up else ("down_proj",)
    shape = (num_rows // len(names), num_columns)
    for expert in range(num_experts):
        for number, own in enumerate(names):
            start = (expert * len(names) + number) * prod(shape)
            yield f"{base}.{expert}.{own}.weight", tensor.part(start, shape)


@dataclass(frozen=True)
class PlannedFile:
    """A safetensors file to come, and the tensors in it; its bytes are those of `save_file`."""

    name: str
    writer: int
    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]]

    @cached_property
    def header(self) -> bytes:
        """The header, with its length before it."""
        described: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start = 0
        for name, shape in sorted(self.shapes.items()):
            stop = start + prod(shape) * self.dtype.itemsize
            described[name] = {
                "dtype": DTYPE_NAMES[self.dtype],
                "shape": list(shape),
                "data_offsets": [start, stop],
            }
            start = stop
        text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The place of each tensor in the file."""
        found, start = {}, len(self.header)
        for name, shape in sorted(self.shapes.items()):
            found[name] = start
            start += prod(shape) * self.dtype.itemsize
        return found

    @cached_property
    def num_bytes(self) -> int:
        """Size of the tensors alone."""
        return sum(map(prod, self.shapes.values())) * int(self.dtype.itemsize)

    def create(self, directory: Path) -> None:
        """Creates the file with its header and its full length."""
        with open(directory / self.name, "wb") as file:
            file.write(self.header)
            file.truncate(len(self.header) + self.num_bytes)


def _carried(
    tensor: SplitTensor, piece: Piece, writer: int, dtype: torch.dtype, ranks: Ranks
) -> Iterator[torch.Tensor]:
    """Yields a piece in chunks of bytes on the rank that needs it, which its holder sends it.

    All ranks call it for the same pieces in the same order, so no two of them wait for each other.
    """
    source = piece.source_for(writer, ranks)
    if source == ranks.rank:
        for chunk in tensor.chunks(dtype):
            if writer == ranks.rank:
                yield chunk
            else:
                torch.distributed.send(chunk, writer, group=ranks.group)
    elif writer == ranks.rank:
        left = (piece.stop - piece.start) * dtype.itemsize
        while left:
            chunk = torch.empty(min(CHUNK_BYTES, left), dtype=torch.uint8)
            torch.distributed.recv(chunk, source, group=ranks.group)
            yield chunk
            left -= len(chunk)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A piece, and its place in the file that it goes into."""

    source: int
    file: PlannedFile
    tensor: SplitTensor
    piece: Piece
    offset: int


def write_files(
    directory: Path,
    files: Sequence[PlannedFile],
    tensors: Mapping[str, SplitTensor],
    ranks: Ranks,
    life: LifeSigns,
) -> None:
    """Writes all ranks' pieces into the files, without waiting for the disk. Collective.

    Ranks on the writer's host write their pieces into its file. Those on other hosts send them to
    the writer, as not every shared file system lets two hosts write into one file. A rank holds
    its shards and a chunk.
    """
    for file in files:
        if file.writer == ranks.rank:
            file.create(directory)
    ranks.barrier()
    transfers = [transfer for file in files for transfer in _transfers(file, tensors, ranks)]
    with ExitStack() as stack:
        opened = _OpenFile(directory, stack)
        for transfer in _written_here(transfers, ranks):
            chunks = transfer.tensor.chunks(transfer.file.dtype)
            _write_chunks(opened, transfer, chunks, life)
        for transfer in transfers:  # in one order on all ranks
            writer, dtype = transfer.file.writer, transfer.file.dtype
            if not ranks.are_on_one_host(transfer.source, writer):
                chunks = _carried(transfer.tensor, transfer.piece, writer, dtype, ranks)
                _write_chunks(opened, transfer, chunks, life)
    ranks.barrier()


def _transfers(
    file: PlannedFile, tensors: Mapping[str, SplitTensor], ranks: Ranks
) -> Iterator[_Transfer]:
    for name, start in file.offsets.items():
        for piece in tensors[name].pieces:
            source = piece.source_for(file.writer, ranks)
            offset = start + piece.start * file.dtype.itemsize
            yield _Transfer(source, file, tensors[name], piece, offset)


def _written_here(transfers: Sequence[_Transfer], ranks: Ranks) -> list[_Transfer]:
    """Returns this rank's pieces of files on its host, its own files first.

    Each rank begins with another file, as the kernel lets one at a time write into it.
    """
    own = [
        transfer
        for transfer in transfers
        if transfer.source == ranks.rank and ranks.are_on_one_host(ranks.rank, transfer.file.writer)
    ]
    return sorted(own, key=lambda transfer: (transfer.file.writer - ranks.rank) % ranks.num_ranks)


class _OpenFile:
    """The file that is written to; one at a time, as a large model has more than may be open."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._name = ""
        self._descriptor = -1

    def write(self, name: str, data: memoryview, offset: int) -> None:
        """Writes at a place in a file that is there.

        Raises: OSError that names the file, such as that of a full disk.
        """
        path = self._directory / name
        if name != self._name:
            self._stack.close()
            self._descriptor = os.open(path, os.O_WRONLY)
            self._stack.callback(os.close, self._descriptor)
            self._name = name
        try:
            write_at(self._descriptor, data, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _write_chunks(
    opened: _OpenFile, transfer: _Transfer, chunks: Iterable[torch.Tensor], life: LifeSigns
) -> None:
    offset = transfer.offset
    for chunk in chunks:
        with life.on_disk(len(chunk)):
            opened.write(transfer.file.name, memoryview(chunk.numpy()), offset)
        offset += len(chunk)
    life.show()


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Writes all of the bytes at a place in a file, in as many calls as the kernel needs."""
    while data:
        num_written = os.pwrite(descriptor, data, offset)
        data, offset = data[num_written:], offset + num_written
