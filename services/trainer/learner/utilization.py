"""Model FLOPs utilization (MFU) of a step, counted as verl's trainer does.

The vision tower is counted by its shape: verl takes all towers for Qwen3-VL's, and computes their
mergers for each patch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig
from verl.utils.flops_counter import ESTIMATE_FUNC, FlopsCounter

from trinity.config.sizing.model_shape import tower_of

BACKWARD_AND_FORWARD = 3
"""A training pass takes this many times the operations of a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """The policy's utilization; no metrics where verl does not know the model or the GPU."""

    config: PretrainedConfig
    num_ranks: int
    num_passes: int

    def mfu_metrics(
        self, lengths: Sequence[int], times: Mapping[str, float], image_tokens: Sequence[int] = ()
    ) -> dict[str, float]:
        """Returns the metrics, from the tokens of each row and the seconds of a step's parts.

        `image_tokens` are those among them that a vision tower computes too.
        """
        update, infer = times.get("time/update_actor"), times.get("time/old_log_prob")
        passes = {
            "perf/mfu/actor": (update, self.num_passes),
            "perf/mfu/actor_infer": (infer, 1 / BACKWARD_AND_FORWARD),
        }
        shares = {
            name: self._share(lengths, image_tokens, seconds, num_passes)
            for name, (seconds, num_passes) in passes.items()
        }
        return {name: share for name, share in shares.items() if share is not None}

    def _share(
        self,
        lengths: Sequence[int],
        image_tokens: Sequence[int],
        seconds: float | None,
        num_passes: float,
    ) -> float | None:
        is_known = torch.cuda.is_available() and self.config.model_type in ESTIMATE_FUNC
        if not seconds or not is_known:
            return None
        try:
            done, peak = FlopsCounter(self.config).estimate_flops(list(lengths), seconds)
        except (AttributeError, TypeError):  # a model type with custom parts
            return None
        done += self._tower_tera_flops(image_tokens) / seconds
        return float(done * num_passes / (peak * self.num_ranks)) if math.isfinite(peak) else None

    def _tower_tera_flops(self, image_tokens: Sequence[int]) -> float:
        """Returns those of a pass over the images of rows; verl counts other towers than these."""
        if not any(image_tokens):
            return 0.0
        tower = tower_of(self.config.to_dict(), self.config.text_config.hidden_size)
        assert tower is not None, "rows have images"
        images = [count * tower.merged for count in image_tokens if count]
        return BACKWARD_AND_FORWARD * tower.operations(images) / 1e12
