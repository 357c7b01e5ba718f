"""Tensors cut over ranks are read by any number of ranks, or a sentence says why they are not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from trinity.weights import shards
from trinity.weights.shards import read_shards, shapes_of, write_shards

WHOLE = {
    "embed": torch.arange(20.0).reshape(5, 4),
    "norm": torch.arange(4.0, dtype=torch.float64) / 3,
    "one": torch.arange(4.0).reshape(1, 4) + 7,
    "short": torch.arange(6).to(torch.bfloat16).reshape(3, 2),
}
SCALAR = torch.tensor(3.5)


@contextmanager
def pieces_of(rank: int, ranks: int, copies: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    """What one rank holds, as FSDP2 cuts it, or HSDP where there are copies."""
    dist.init_process_group("fake", rank=rank, world_size=ranks * copies, store=FakeStore())
    if copies == 1:
        mesh, places = init_device_mesh("cpu", (ranks,)), [Shard(0)]
    else:
        mesh, places = init_device_mesh("cpu", (copies, ranks)), [Replicate(), Shard(0)]
    found = {
        name: _piece(whole, rank % ranks, ranks, mesh, places) for name, whole in WHOLE.items()
    }
    yield {**found, "scalar": SCALAR.clone()}
    dist.destroy_process_group()


def _piece(
    whole: torch.Tensor, rank: int, ranks: int, mesh: object, places: list[Placement]
) -> DTensor:
    rows = [*torch.chunk(whole, ranks), *[whole[:0]] * ranks]
    return DTensor.from_local(
        rows[rank].clone(),
        mesh,
        places,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def write(directory: Path, ranks: int, copies: int = 1) -> Path:
    for rank in range(ranks * copies):
        with pieces_of(rank, ranks, copies) as pieces:
            write_shards(pieces, directory, rank)
    return directory


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2), (2, 3), (3, 2), (4, 4), (8, 5)])
def test_any_number_of_ranks_reads_what_another_number_wrote(
    before: int, now: int, tmp_path: Path
) -> None:
    directory = write(tmp_path, before)
    for rank in range(now):
        with pieces_of(rank, now) as pieces:
            expected = {name: local(piece).clone() for name, piece in pieces.items()}
            for piece in pieces.values():
                local(piece).zero_()
            read_shards(pieces, directory)
            for name, piece in pieces.items():
                assert torch.equal(local(piece), expected[name]), (rank, name)


def test_copies_are_written_once(tmp_path: Path) -> None:
    once, twice = write(tmp_path / "once", 2), write(tmp_path / "twice", 2, copies=2)
    names = [sorted(file.name for file in folder.iterdir()) for folder in (once, twice)]
    assert names[0] == names[1] == ["0-0.safetensors", "1-0.safetensors"]
    for name in names[0]:
        assert (once / name).read_bytes() == (twice / name).read_bytes()


def test_shapes_are_those_of_the_whole_tensors(tmp_path: Path) -> None:
    found = shapes_of(write(tmp_path, 3))
    assert found.keys() == {*WHOLE, "scalar"}
    for name, whole in {**WHOLE, "scalar": SCALAR}.items():
        assert (found[name].dtype, found[name].size) == (whole.dtype, whole.shape)


def test_large_pieces_are_spread_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_FILE_BYTES", 40)
    write(tmp_path, 2)
    assert len(list(tmp_path.glob("0-*.safetensors"))) > 1
    found = {name: torch.zeros_like(whole) for name, whole in WHOLE.items()}
    read_shards(found, tmp_path)
    assert all(torch.equal(found[name], whole) for name, whole in WHOLE.items())


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (tmp_path / "1-0.safetensors").unlink()
    with pytest.raises(ValueError, match="parts of embed are missing"):
        read_shards({"embed": torch.zeros(5, 4)}, tmp_path)


def test_tensors_of_another_model_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with pytest.raises(ValueError, match="head is missing"):
        read_shards({"head": torch.zeros(2)}, tmp_path)
    with pytest.raises(ValueError, match=r"embed has the shape \[5, 4\], not \[5, 8\]"):
        read_shards({"embed": torch.zeros(5, 8)}, tmp_path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not say which pieces"):
        shapes_of(tmp_path)
