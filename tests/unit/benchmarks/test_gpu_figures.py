"""The GPU benchmark's limits follow from its device; where the device gives none, it says so."""

from collections.abc import Mapping

import pytest

from benchmarks.gpu.figures import NEEDS_GPU, NEEDS_PEAK, Figure, figures_of, peak_flops
from benchmarks.gpu.sizes import SIZES, Size

SIZE = SIZES["0.5b"]
PARAMETERS = 500_000_000
PROCESSOR = {"device_copy_bytes_per_second": 1e9, "device_product_flops": 2e12}
GPU = PROCESSOR | {
    "device_from_device_bytes_per_second": 1e9,
    "device_to_device_bytes_per_second": 2e9,
}
TRAINED = {
    "tokens_per_step": 1000.0,
    "step_seconds": 2.0,
    "export_seconds": 1.0,
    "write_seconds": 2.0,
    "weights_bytes": 1e9,
}
ROLLED_OUT = {"rollout_tokens": 100.0, "rollout_seconds": 4.0, "check_and_load_seconds": 3.0}


def figures(device: Mapping[str, float], size: Size = SIZE) -> dict[tuple[str, str], Figure]:
    """By name and basis."""
    made = figures_of(size, PARAMETERS, {**TRAINED, **device}, ROLLED_OUT)
    return {(one.name, one.basis): one for one in made}


def test_on_a_gpu_each_figure_stands_beside_its_limit() -> None:
    found = figures(GPU | {"device_peak_flops": 4e12})
    flops_per_token = 6 * PARAMETERS + 6 * SIZE.layers * SIZE.hidden * SIZE.max_length
    training = found["training", "peak of the device"]
    assert training.value == 500.0
    assert training.limit == pytest.approx(4e12 / flops_per_token)
    for basis, rate in (("peak of the device", 4e12), ("one large product, measured", 2e12)):
        mfu = found["MFU", basis]
        assert mfu.value == pytest.approx(500.0 * flops_per_token)
        assert mfu.limit == rate
        assert mfu.share == pytest.approx(mfu.value / rate)
    rollout = found["rollout", "reading weights and cache once a token"]
    kept = SIZE.concurrent * SIZE.kv_bytes_per_token * (SIZE.prompt + SIZE.response / 2)
    assert rollout.value == 25.0
    assert rollout.limit == pytest.approx(SIZE.concurrent * 2e9 / (2 * PARAMETERS + kept))
    sync = found["weight sync", "one copy from the device and one to it"]
    assert (sync.value, sync.limit, sync.share) == (6.0, 1.5, 0.25)


def test_without_a_gpu_what_needs_one_has_no_limit() -> None:
    found = figures(PROCESSOR)
    without = {key: one.value for key, one in found.items() if one.limit is None}
    assert without.keys() == {
        ("training", NEEDS_PEAK),
        ("MFU", NEEDS_PEAK),
        ("weight sync", NEEDS_GPU),
    }
    assert without["weight sync", NEEDS_GPU] == 6.0
    assert len(found) == 5


@pytest.mark.parametrize(
    ("device", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "float32", None),
        ("NVIDIA H20", "bfloat16", None),
        ("processor", "bfloat16", None),
    ],
)
def test_a_peak_is_that_of_the_device_and_the_type_or_none(
    device: str, dtype: str, peak: float | None
) -> None:
    assert peak_flops(device, dtype) == peak
