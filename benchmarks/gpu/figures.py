"""The device of this machine, and figures with its limits."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from benchmarks.gpu.sizes import DTYPE_BYTES, Size

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}
"""Of bfloat16, dense, in FLOP/s as NVIDIA states them, by a part of the name: the first counts."""
COPIED_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
PRODUCT_SIDE = {"cuda": 8192, "cpu": 512}
REPEATS = 10
NEEDS_PEAK = "needs a GPU whose peak is known"
NEEDS_GPU = "needs a GPU: nothing is copied to or from one"


def peak_flops(device_name: str, dtype: str) -> float | None:
    """None where it is not known."""
    if dtype != "bfloat16":
        return None
    return next((peak for part, peak in PEAKS.items() if part in device_name), None)


def measure_device(dtype: str) -> dict[str, float | str]:
    """Rates in bytes and FLOP a second, and the device's name; a CPU has fewer of them."""
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
    """Wait until the device is idle."""
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


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its limit; `share` is how much of the limit was reached."""

    name: str
    value: float
    limit: float | None
    unit: str
    basis: str
    """The source of the limit, or the reason why there is none."""
    share: float | None

    def as_json(self) -> dict[str, object]:
        """Returns the figures for the committed results."""
        return asdict(self)


def figures_of(
    size: Size, parameters: int, trained: dict[str, float], rolled_out: dict[str, float]
) -> list[Figure]:
    """Rollout, training and the way of the weights."""
    return [
        _rollout(size, parameters, trained, rolled_out),
        *_training(size, parameters, trained),
        _sync(trained, rolled_out),
    ]


def _rollout(
    size: Size, parameters: int, device: dict[str, float], rolled_out: dict[str, float]
) -> Figure:
    """Each token of all responses takes a look at every weight and at the cache of the text."""
    reached = rolled_out["rollout_tokens"] / rolled_out["rollout_seconds"]
    kept = size.concurrent * size.kv_bytes_per_token * (size.prompt + size.response / 2)
    looked_at = parameters * DTYPE_BYTES[size.dtype] + kept
    read_rate = 2 * device["device_copy_bytes_per_second"]  # a copy reads and writes
    limit = size.concurrent * read_rate / looked_at
    basis = "reading weights and cache once a token"
    return Figure("rollout", reached, limit, "tokens/s", basis, reached / limit)


def _training(size: Size, parameters: int, trained: dict[str, float]) -> list[Figure]:
    """Six operations a weight and token; recomputation to save memory does not count."""
    tokens, seconds = trained["tokens_per_step"], trained["step_seconds"]
    flops = 6.0 * parameters * tokens + size.attention_flops(int(tokens), size.max_length)
    rate, reached = flops / seconds, tokens / seconds
    measured = trained["device_product_flops"]
    return [
        *_beside_peak(rate, reached, trained.get("device_peak_flops")),
        Figure("MFU", rate, measured, "FLOP/s", "one large product, measured", rate / measured),
    ]


def _beside_peak(rate: float, reached: float, peak: float | None) -> list[Figure]:
    if peak is None:
        return [
            Figure("training", reached, None, "tokens/s", NEEDS_PEAK, None),
            Figure("MFU", rate, None, "FLOP/s", NEEDS_PEAK, None),
        ]
    basis, share = "peak of the device", rate / peak
    return [
        Figure("training", reached, reached / share, "tokens/s", basis, share),
        Figure("MFU", rate, peak, "FLOP/s", basis, share),
    ]


def _sync(trained: dict[str, float], rolled_out: dict[str, float]) -> Figure:
    """Returns the figure of a transfer from the trainer through a file to the engine."""
    parts = (
        trained["export_seconds"],
        trained["write_seconds"],
        rolled_out["check_and_load_seconds"],
    )
    if "device_from_device_bytes_per_second" not in trained:
        return Figure("weight sync", sum(parts), None, "s", NEEDS_GPU, None)
    size = trained["weights_bytes"]
    limit = size / trained["device_from_device_bytes_per_second"]
    limit += size / trained["device_to_device_bytes_per_second"]
    basis = "one copy from the device and one to it"
    return Figure("weight sync", sum(parts), limit, "s", basis, limit / sum(parts))
