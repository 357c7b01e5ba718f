"""What the makers of devices state."""

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
