"""Named presets of the rollout correction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trinity.algorithm.rollout_correction.settings import CorrectionSettings

PresetName = Literal["tis", "seq_tis", "icepop", "decoupled_ppo", "seq_mis", "geo_rs", "k3_rs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings, and the mismatch that they correct for."""

    settings: CorrectionSettings
    summary: str
    stands_lag: bool
    """True if anything is left to train on where rollouts are of older weights."""


PRESETS: Mapping[PresetName, Preset] = {
    "tis": Preset(
        settings=CorrectionSettings(rollout_is="token"),
        summary="Truncated importance sampling per token: verl's Token-TIS, "
        "https://fengyao.notion.site/off-policy-rl",
        stands_lag=True,
    ),
    "seq_tis": Preset(
        settings=CorrectionSettings(rollout_is="sequence"),
        summary="One truncated weight for a whole answer: verl's Seq-TIS. The longer the answer, "
        "the further the product of its ratios is from 1",
        stands_lag=True,
    ),
    "icepop": Preset(
        settings=CorrectionSettings(rollout_is="token", rollout_is_threshold="0.5_5.0"),
        summary="Ignores tokens whose ratio is far from 1: https://arxiv.org/abs/2510.18855",
        stands_lag=True,
    ),
    "decoupled_ppo": Preset(
        settings=CorrectionSettings(rollout_is="token", rollout_is_threshold=5.0),
        summary="The proximal policy's ratio to the rollout policy, truncated at a high bound: "
        "https://arxiv.org/abs/2505.24298",
        stands_lag=True,
    ),
    "seq_mis": Preset(
        settings=CorrectionSettings(
            rollout_is="sequence", rollout_rs="seq_sum_k1", rollout_rs_threshold="0.5_2.0"
        ),
        summary="Like seq_tis, and leaves out answers whose weight is out of bounds: verl's "
        "Seq-MIS",
        stands_lag=True,
    ),
    "geo_rs": Preset(
        settings=CorrectionSettings(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001"),
        summary="Leaves out answers whose mean ratio is not within a thousandth of 1: verl's "
        "Geo-RS",
        stands_lag=False,
    ),
    "k3_rs": Preset(
        settings=CorrectionSettings(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01),
        summary="Leaves out answers whose mean divergence (k3) is above a hundredth: verl's K3-RS",
        stands_lag=False,
    ),
}
