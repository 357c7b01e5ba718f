"""The shapes that the weights' way is measured with, and both ends of it on a tiny model."""

from pathlib import Path

import pytest
import torch

from benchmarks import weight_sync
from benchmarks.gpu.sizes import SIZES
from benchmarks.weight_sync import adapter_shapes, made, shapes_of


def test_shapes_are_those_of_the_model() -> None:
    num_weights = sum(torch.Size(shape).numel() for shape in shapes_of(SIZES["0.5b"]).values())
    assert 0.49e9 < num_weights < 0.50e9


def test_an_adapter_fits_its_layers() -> None:
    size = SIZES["tiny"]
    weights = made(shapes_of(size), torch.float32)
    adapter = made(adapter_shapes(size, rank=4), torch.float32)
    downs = [name for name in adapter if ".lora_A." in name]
    assert len(downs) == 7 * size.layers
    for name in downs:
        up = adapter[name.replace(".lora_A.", ".lora_B.")]
        assert (up @ adapter[name]).shape == weights[name.replace(".lora_A", "")].shape


@pytest.mark.timeout(900)
def test_every_way_is_measured(tmp_path: Path) -> None:
    record = weight_sync.measure("tiny", rank=4, runs=1, folder=tmp_path)
    seconds = record["seconds"]
    assert isinstance(seconds, dict)
    assert seconds.keys() >= {weight_sync.MEMORY, weight_sync.FILES, weight_sync.BROADCAST}
    assert all(taken > 0 for taken in seconds.values())
