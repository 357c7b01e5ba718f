"""Model FLOPs utilization (MFU) of a step, counted as verl's trainer does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig
from verl.utils.flops_counter import ESTIMATE_FUNC, FlopsCounter

BACKWARD_AND_FORWARD = 3
"""A training pass takes this many times the operations of a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """The policy's utilization; no metrics where verl does not know the model or the GPU."""

    config: PretrainedConfig
    num_ranks: int
    num_passes: int

    def mfu_metrics(self, lengths: Sequence[int], times: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics, from the tokens of each row and the seconds of a step's parts."""
        shares = {
            "perf/mfu/actor": self._share(lengths, times.get("time/update_actor"), self.num_passes),
            "perf/mfu/actor_infer": self._share(
                lengths, times.get("time/old_log_prob"), 1 / BACKWARD_AND_FORWARD
            ),
        }
        return {name: share for name, share in shares.items() if share is not None}

    def _share(
        self, lengths: Sequence[int], seconds: float | None, num_passes: float
    ) -> float | None:
        is_known = torch.cuda.is_available() and self.config.model_type in ESTIMATE_FUNC
        if not seconds or not is_known:
            return None
        try:
            done, peak = FlopsCounter(self.config).estimate_flops(list(lengths), seconds)
        except (AttributeError, TypeError):  # a model type with custom parts
            return None
        return float(done * num_passes / (peak * self.num_ranks)) if math.isfinite(peak) else None
