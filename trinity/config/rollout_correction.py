"""Subsection `algorithm.rollout_correction`: correction for rollouts of other weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from trinity.algorithm.rollout_correction.settings import PRESETS, CorrectionSettings, PresetName
from trinity.config.section import Section
from trinity.config.status import Planned, Renamed


class RolloutCorrectionConfig(Section):
    """Factors and masks from the trainer's log-probabilities over the engine's; verl's names."""

    old_names: ClassVar[Mapping[str, Renamed]] = {
        "bypass_mode": Renamed("/algorithm.bypass_old_logprobs"),
    }

    preset: Literal["none", PresetName] = "none"
    """A usual choice: docs/algorithms.md; the keys beside it are laid over its own."""
    rollout_is: Literal["none", "token", "sequence"] = "none"
    """Weigh each token by the ratio, its own or its sequence's; `none` weighs all alike."""
    rollout_is_threshold: float | str = 2.0
    """Largest weight; as `0.5_5.0`, weights outside of the two become 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Scale the weights to a mean of 1 in each batch."""
    rollout_rs: str = "none"
    """Leave tokens or sequences out: `token_k1`, `seq_mean_k3`..., several with commas."""
    rollout_rs_threshold: float | str | None = None
    """Bounds of what is kept, as `0.5_2.0` for k1, one number for k2 and k3; one each, or one."""
    loss_type: Annotated[
        Literal["ppo_clip", "reinforce"], Planned("the loss is what `policy_loss_fn` says")
    ] = "ppo_clip"
    """verl's choice of the loss that goes with the correction."""

    @property
    def settings(self) -> CorrectionSettings:
        """The preset's settings with the user's laid over them."""
        below = CorrectionSettings() if self.preset == "none" else PRESETS[self.preset].settings
        own = self.model_dump(exclude={"preset"}, exclude_unset=True)
        return replace(below, **own)
