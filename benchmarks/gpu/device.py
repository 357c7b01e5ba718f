"""What the device can do at best, measured: copies within it, to and from it, and products."""

import time
from collections.abc import Callable

import torch

COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
PRODUCT_SIDE = {"cuda": 8192, "cpu": 512}
REPEATS = 10
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Of bfloat16, dense, in FLOP/s as NVIDIA states them."""


def measure_device(dtype: str) -> dict[str, float | str]:
    """Rates in bytes and FLOP a second, and the device's name."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    side = PRODUCT_SIDE[kind]
    left = torch.randn(side, side, device=kind).to(getattr(torch, dtype))
    host = torch.empty(COPIED_BYTES[kind], dtype=torch.uint8, pin_memory=kind == "cuda")
    there = torch.empty_like(host, device=kind, pin_memory=False)
    other = torch.empty_like(there)
    size = float(host.numel())
    name = torch.cuda.get_device_name() if kind == "cuda" else "processor"
    products = 2.0 * side**3 / _seconds(lambda: left @ left)
    return {
        "name": name,
        "copy_bytes_per_second": size / _seconds(lambda: other.copy_(there)),
        "to_device_bytes_per_second": size / _seconds(lambda: there.copy_(host)),
        "from_device_bytes_per_second": size / _seconds(lambda: host.copy_(there)),
        "product_flops": products,
        "peak_flops": next((peak for key, peak in PEAKS.items() if key in name), products),
    }


def settle() -> None:
    """Wait for what the device still does."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds(work: Callable[[], object]) -> float:
    """Of one of several, after one that is not counted."""
    work()
    settle()
    begun = time.perf_counter()
    for _ in range(REPEATS):
        work()
    settle()
    return (time.perf_counter() - begun) / REPEATS
