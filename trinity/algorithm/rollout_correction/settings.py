"""Settings of rollout correction: thresholds as users write them (`0.5_5.0`), and presets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
LEAST_RATIO = 1e-8
"""Ratios are computed down to e^-20, about 2e-9."""
_SECTION = "algorithm.rollout_correction"
PresetName = Literal["tis", "seq_tis", "icepop", "decoupled_ppo", "seq_mis", "geo_rs", "k3_rs"]


@dataclass(frozen=True, slots=True)
class RatioBounds:
    """Inclusive bounds; `lower` is None without a lower bound."""

    upper: float
    lower: float | None = None

    @property
    def log(self) -> "RatioBounds":
        """The bounds of the logarithm."""
        lower = None if self.lower is None else math.log(self.lower)
        return RatioBounds(math.log(self.upper), lower)


def weight_bounds(threshold: float | str) -> RatioBounds:
    """Parses the bounds of importance weights.

    Raises: UserError when it is not a threshold.
    """
    return _bounds("rollout_is_threshold", str(threshold))


def rejection_bounds(options: str, threshold: float | str | None) -> dict[str, RatioBounds]:
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


def _rejection_bounds(name: str, text: str) -> RatioBounds:
    """Parses one option's bounds; for k1 the lower bound of the ratio defaults to 1 / upper."""
    bounds = _bounds("rollout_rs_threshold", text)
    if name.endswith("k1"):
        return bounds if bounds.lower is not None else RatioBounds(bounds.upper, 1.0 / bounds.upper)
    if bounds.lower is not None:
        raise UserError(f"`{_SECTION}.rollout_rs_threshold`: {name} takes one number, not {text!r}")
    return bounds


def _bounds(key: str, text: str) -> RatioBounds:
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
    return RatioBounds(numbers[-1], numbers[0] if len(numbers) == 2 else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """Section `algorithm.rollout_correction`, with verl's names.

    CorrectionSettings(rollout_is="token", rollout_is_threshold=2.0).check()
    """

    rollout_is: Literal["token", "sequence", "none"] = "none"
    """Importance weights: per token, or one for a whole row, repeated at all its tokens."""
    rollout_is_threshold: float | str = 2.0
    """A number: larger weights are truncated to it. `lower_upper`: weights outside become 0."""
    rollout_is_batch_normalize: bool = False
    """Divides weights by their mean over the batch."""
    rollout_rs: str = "none"
    """Rejection: {token,seq_sum,seq_mean}_{k1,k2,k3}, seq_max_{k2,k3}, several with commas."""
    rollout_rs_threshold: float | str | None = None
    """For k1 bounds of the ratio, `lower_upper` or the upper one alone; for k2 and k3 the largest
    divergence. One for all of rollout_rs, or one each with commas."""
    rollout_token_veto_threshold: float | None = None
    """Rows with a token whose ratio is below it are rejected."""

    @property
    def is_on(self) -> bool:
        """True if anything is corrected."""
        has_veto = self.rollout_token_veto_threshold is not None
        return has_veto or self.rollout_is != "none" or self.rollout_rs != "none"

    def check(self) -> None:
        """Raises: UserError naming the invalid setting."""
        self.weight_bounds()
        self.rejection_bounds()
        veto = self.rollout_token_veto_threshold
        if veto is not None and not LEAST_RATIO < veto < 1.0:
            raise UserError(
                f"`{_SECTION}.rollout_token_veto_threshold` is {veto:g}: give a ratio between "
                f"{LEAST_RATIO:g} and 1, such as 1e-4"
            )

    def weight_bounds(self) -> RatioBounds | None:
        """Returns the bounds of importance weights; None without weights."""
        return None if self.rollout_is == "none" else weight_bounds(self.rollout_is_threshold)

    def rejection_bounds(self) -> Mapping[str, RatioBounds]:
        """Returns the bounds of each statistic that rows or tokens are rejected by."""
        if self.rollout_rs == "none":
            return {}
        return rejection_bounds(self.rollout_rs, self.rollout_rs_threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings, and the mismatch that they correct for."""

    settings: CorrectionSettings
    summary: str
    tolerates_staleness: bool
    """True if anything is left to train on where rollouts are of older weights."""


PRESETS: Mapping[PresetName, Preset] = {
    "tis": Preset(
        settings=CorrectionSettings(rollout_is="token"),
        summary="Truncated importance sampling per token: verl's Token-TIS, "
        "https://fengyao.notion.site/off-policy-rl",
        tolerates_staleness=True,
    ),
    "seq_tis": Preset(
        settings=CorrectionSettings(rollout_is="sequence"),
        summary="One truncated weight for a whole answer: verl's Seq-TIS. The longer the answer, "
        "the further the product of its ratios is from 1",
        tolerates_staleness=True,
    ),
    "icepop": Preset(
        settings=CorrectionSettings(rollout_is="token", rollout_is_threshold="0.5_5.0"),
        summary="Ignores tokens whose ratio is far from 1: https://arxiv.org/abs/2510.18855",
        tolerates_staleness=True,
    ),
    "decoupled_ppo": Preset(
        settings=CorrectionSettings(rollout_is="token", rollout_is_threshold=5.0),
        summary="The proximal policy's ratio to the rollout policy, truncated at a high bound: "
        "https://arxiv.org/abs/2505.24298",
        tolerates_staleness=True,
    ),
    "seq_mis": Preset(
        settings=CorrectionSettings(
            rollout_is="sequence", rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0"
        ),
        summary="Like seq_tis, and leaves out answers whose weight is out of bounds: verl's "
        "Seq-MIS",
        tolerates_staleness=True,
    ),
    "geo_rs": Preset(
        settings=CorrectionSettings(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001"),
        summary="Leaves out answers whose mean ratio is not within a thousandth of 1: verl's "
        "Geo-RS",
        tolerates_staleness=False,
    ),
    "k3_rs": Preset(
        settings=CorrectionSettings(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01),
        summary="Leaves out answers whose mean divergence (k3) is above a hundredth: verl's K3-RS",
        tolerates_staleness=False,
    ),
}
