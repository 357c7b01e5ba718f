"""Figures that were measured, beside what the device allows."""

from dataclasses import asdict, dataclass

from benchmarks.gpu.sizes import DTYPE_BYTES, Size

NEEDS_PEAK = "needs a GPU whose peak is known"
NEEDS_GPU = "needs a GPU: nothing is copied to or from one"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and the limit beside it; `share` is how much of the limit was reached."""

    name: str
    value: float
    limit: float | None
    unit: str
    basis: str
    """What the limit follows from, or what is missing for one."""
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
    """Each token of all responses takes a look at every weight and at what is kept of the text."""
    reached = rolled_out["rollout_tokens"] / rolled_out["rollout_seconds"]
    kept = size.concurrent * size.kv_bytes_per_token * (size.prompt + size.response / 2)
    looked_at = parameters * DTYPE_BYTES[size.dtype] + kept
    read_rate = 2 * device["device_copy_bytes_per_second"]  # a copy reads and writes
    limit = size.concurrent * read_rate / looked_at
    basis = "reading weights and cache once a token"
    return Figure("rollout", reached, limit, "tokens/s", basis, reached / limit)


def _training(size: Size, parameters: int, trained: dict[str, float]) -> list[Figure]:
    """Six operations a weight and token; what is computed twice to save memory counts once."""
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
