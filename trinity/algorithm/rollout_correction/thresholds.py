"""Parses thresholds as users write them: `2.0`, `0.5_5.0`, `0.5_2.0,0.01`."""

import math
from dataclasses import dataclass

from trinity.errors import UserError

REJECTIONS = (
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
)
"""The statistics for rejection: an aggregation over a row's tokens, and an estimate of the
divergence, k1 = -log r, k2 = log(r)^2 / 2, k3 = r - 1 - log r."""
_SECTION = "algorithm.rollout_correction"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds; `lower` is None if there is none."""

    upper: float
    lower: float | None = None

    @property
    def log(self) -> "Bounds":
        """The bounds of the logarithm."""
        lower = None if self.lower is None else math.log(self.lower)
        return Bounds(math.log(self.upper), lower)


def weight_bounds(threshold: float | str) -> Bounds:
    """Parses the bounds of importance weights.

    Raises: UserError when it is not a threshold.
    """
    return _bounds("rollout_is_threshold", str(threshold))


def rejection_bounds(options: str, threshold: float | str | None) -> dict[str, Bounds]:
    """Parses the bounds of each option, in their order.

    Raises: UserError for an unknown option, or a missing or invalid threshold.
    """
    names = list(dict.fromkeys(part.strip() for part in options.split(",") if part.strip()))
    for name in names or [options]:
        if name not in REJECTIONS:
            raise UserError(f"`{_SECTION}.rollout_rs`: {name!r} is none of {', '.join(REJECTIONS)}")
    if threshold is None:
        raise UserError(f"`{_SECTION}.rollout_rs_threshold` is missing: {options} needs one")
    texts = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(texts) == 1:
        texts = texts * len(names)
    if len(texts) != len(names):
        raise UserError(
            f"`{_SECTION}.rollout_rs_threshold` has {len(texts)} parts for {len(names)} parts of "
            "rollout_rs: give one for all or one each"
        )
    return {name: _rejection_bounds(name, text) for name, text in zip(names, texts, strict=True)}


def _rejection_bounds(name: str, text: str) -> Bounds:
    """Parses one option's bounds; for k1 the lower bound of the ratio defaults to 1 / upper."""
    bounds = _bounds("rollout_rs_threshold", text)
    if name.endswith("k1"):
        return bounds if bounds.lower is not None else Bounds(bounds.upper, 1.0 / bounds.upper)
    if bounds.lower is not None:
        raise UserError(f"`{_SECTION}.rollout_rs_threshold`: {name} takes one number, not {text!r}")
    return bounds


def _bounds(key: str, text: str) -> Bounds:
    parts = text.strip().split("_", 1)
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        raise UserError(
            f"`{_SECTION}.{key}` is {text!r}: give a number, or two as lower_upper, such as 0.5_2.0"
        ) from None
    if not all(0.0 < number < math.inf for number in numbers) or numbers[0] > numbers[-1]:
        raise UserError(
            f"`{_SECTION}.{key}` is {text!r}: give numbers above 0, the lower one first"
        )
    return Bounds(numbers[-1], numbers[0] if len(numbers) == 2 else None)
