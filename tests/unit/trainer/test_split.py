"""Ranks that hold pieces of tensors write, file by file, the bytes that one process would."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from services.trainer.checkpoints.dealt import DealtPart
from services.trainer.checkpoints.split import (
    Piece,
    SplitTensor,
    experts_apart,
    write_at,
)
from services.trainer.collectives import Ranks

NUM_RANKS = 4
SHAPES = {"zero": (0, 3), "embed": (64, 8), "b": (3,), "ä": (9, 4), "a": (9, 2, 3), "head": (64, 8)}
BUCKET = 1024


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """Ranks that are threads of this process."""

    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(NUM_RANKS))

    def barrier(self) -> None:
        self.meeting.wait(60)


def tensors_of() -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=draws) for name, shape in SHAPES.items()}


def split_for(rank: int, tensor: torch.Tensor) -> SplitTensor:
    """As FSDP shards: in rows, of which the last ranks may have fewer or none."""
    row = tensor[0].numel() if len(tensor) else 0
    per_rank = -(-len(tensor) // NUM_RANKS)
    bounds = [min(len(tensor), number * per_rank) for number in range(NUM_RANKS + 1)]
    pieces = tuple(
        Piece((number,), bounds[number] * row, bounds[number + 1] * row)
        for number in range(NUM_RANKS)
    )
    own = tensor[bounds[rank] : bounds[rank + 1]].reshape(-1).clone()
    return SplitTensor(shape=tuple(tensor.shape), dtype=tensor.dtype, pieces=pieces, own=own)


def written(directory: Path, dtype: torch.dtype) -> dict[str, bytes]:
    """The files that the ranks write together."""
    directory.mkdir()
    meeting = threading.Barrier(NUM_RANKS)

    def write(rank: int) -> list[str]:
        ranks = ThreadRanks(rank, NUM_RANKS, meeting=meeting)
        part = DealtPart(directory, ranks, dtype=dtype, max_bytes=BUCKET)
        part.write_split((name, split_for(rank, t)) for name, t in tensors_of().items())
        return [file.name for file in part.finish_files()]

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        found = [name for names in threads.map(write, range(NUM_RANKS)) for name in names]
    return {name: (directory / name).read_bytes() for name in found}


def written_whole(directory: Path, dtype: torch.dtype) -> dict[str, bytes]:
    """The files of ranks that have each tensor whole."""
    directory.mkdir()
    for rank in range(NUM_RANKS):
        part = DealtPart(directory, Ranks(rank, NUM_RANKS), dtype=dtype, max_bytes=BUCKET)
        part.write_tensors(tensors_of().items())
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_files_are_those_of_whole_tensors_byte_by_byte(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.checkpoints.split.CHUNK_BYTES", 64)
    found = written(tmp_path / "split", dtype)
    assert found == written_whole(tmp_path / "whole", dtype)
    assert len(found) > NUM_RANKS, "buckets are limited"


def test_a_bit_of_one_ranks_piece_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written_whole(tmp_path / "whole", torch.float32)
    original = split_for

    def wrong(rank: int, tensor: torch.Tensor) -> SplitTensor:
        found = original(rank, tensor)
        if rank == 2 and found.own.numel():
            found.own[0] += 1
        return found

    monkeypatch.setattr("tests.unit.trainer.test_split.split_for", wrong)
    assert written(tmp_path / "split", torch.float32) != whole


def test_fused_experts_are_taken_apart_where_they_lie() -> None:
    draws = torch.Generator().manual_seed(2)
    gate_up, down = (torch.randn(shape, generator=draws) for shape in ((8, 6, 5), (8, 5, 3)))
    expected: dict[str, torch.Tensor] = {}
    for expert in range(8):
        gate, up = gate_up[expert].chunk(2)
        expected |= {f"l.mlp.experts.{expert}.gate_proj.weight": gate}
        expected |= {f"l.mlp.experts.{expert}.up_proj.weight": up}
    expected |= {f"l.mlp.experts.{expert}.down_proj.weight": down[expert] for expert in range(8)}
    names = []
    for name, tensor in (("gate_up_proj", gate_up), ("down_proj", down)):
        parts = [
            dict(experts_apart(f"l.mlp.experts.{name}", split_for(rank, tensor), "qwen3_moe"))
            for rank in range(NUM_RANKS)
        ]
        for own_name, part in parts[0].items():
            (piece,) = part.pieces
            (holder,) = piece.ranks
            own = parts[holder][own_name].own.view(part.shape)
            assert torch.equal(own, expected[own_name])
            names.append(own_name)
    assert names == list(expected), "in the order of verl's export"


def test_other_tensors_stay_as_they_are() -> None:
    for name, shape, kind in (
        ("l.mlp.experts.gate_up_proj", (8, 6, 5), "gpt_oss"),
        ("l.mlp.gate_up_proj", (8, 6), "phi3"),
    ):
        split = split_for(0, torch.zeros(shape))
        assert list(experts_apart(name, split, kind)) == [(name, split)]


def test_the_writer_takes_a_copy_of_its_own_host() -> None:
    ranks = Ranks(0, 8, num_per_host=4)
    piece = Piece((1, 5), 0, 10)
    assert [piece.source_for(writer, ranks) for writer in (0, 1, 4, 5)] == [1, 1, 5, 5]
    assert Piece((1,), 0, 10).source_for(7, ranks) == 1, "or what another host sends"


def test_the_kernel_may_take_fewer_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    path = tmp_path / "file"
    with path.open("wb") as file:
        write_at(file.fileno(), memoryview(b"0123456789"), 2)
    assert path.read_bytes() == b"\0\x000123456789"


def test_a_full_disk_is_told_of_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    split = SplitTensor.of(torch.ones(3), Ranks(0, 1))
    part = DealtPart(tmp_path, Ranks(0, 1), dtype=torch.float32)
    with pytest.raises(OSError, match=r"No space left on device: '.*00000-00000\.safetensors'"):
        part.write_split([("a", split)])


def test_a_rank_has_one_file_open_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open: list[int] = []
    most = 0
    do_open, do_close = os.open, os.close

    def opens(path: str, flags: int) -> int:
        nonlocal most
        is_open.append(do_open(path, flags))
        most = max(most, len(is_open))
        return is_open[-1]

    def closes(descriptor: int) -> None:
        is_open.remove(descriptor)
        do_close(descriptor)

    tensors = [(f"{n}", SplitTensor.of(torch.ones(3), Ranks(0, 1))) for n in range(20)]
    part = DealtPart(tmp_path, Ranks(0, 1), dtype=torch.float32, max_bytes=12)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opens)
        patched.setattr(os, "close", closes)
        part.write_split(tensors)
    assert (len(part.finish_files()), most, is_open) == (20, 1, [])
