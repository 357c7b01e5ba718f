"""Peaks that the makers of devices state, and the device of this machine."""

import time
from collections.abc import Callable

import torch

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}
"""Of bfloat16, dense, in FLOP/s as NVIDIA states them, by a part of the name: the first counts."""


def peak_flops(device_name: str, dtype: str) -> float | None:
    """None where it is not known."""
    if dtype != "bfloat16":
        return None
    return next((peak for part, peak in PEAKS.items() if part in device_name), None)


COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
PRODUCT_SIDE = {"cuda": 8192, "cpu": 512}
REPEATS = 10


def measure_device(dtype: str) -> dict[str, float | str]:
    """Rates in bytes and FLOP a second, and the device's name; of a processor, what it has."""
    has_gpu = torch.cuda.is_available()
    kind = "cuda" if has_gpu else "cpu"
    side = PRODUCT_SIDE[kind]
    left = torch.randn(side, side, device=kind).to(getattr(torch, dtype))
    there = torch.empty(COPIED_BYTES[kind], dtype=torch.uint8, device=kind)
    other = torch.empty_like(there)
    name = torch.cuda.get_device_name() if has_gpu else "processor"
    peak = peak_flops(name, dtype)
    return {
        "name": name,
        "copy_bytes_per_second": there.numel() / _seconds(lambda: other.copy_(there)),
        "product_flops": 2.0 * side**3 / _seconds(lambda: left @ left),
        **(_ways(there) if has_gpu else {}),
        **({} if peak is None else {"peak_flops": peak}),
    }


def _ways(there: torch.Tensor) -> dict[str, float]:
    """Between the host and the device."""
    host = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
    return {
        "to_device_bytes_per_second": there.numel() / _seconds(lambda: there.copy_(host)),
        "from_device_bytes_per_second": there.numel() / _seconds(lambda: host.copy_(there)),
    }


def settle() -> None:
    """Wait for what the device still does."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds(work: Callable[[], object]) -> float:
    """Measures one of several calls, after one that is not counted."""
    work()
    settle()
    begun = time.perf_counter()
    for _ in range(REPEATS):
        work()
    settle()
    return (time.perf_counter() - begun) / REPEATS
