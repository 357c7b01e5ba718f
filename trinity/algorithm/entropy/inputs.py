"""The input type of entropy losses; they return a `PolicyLoss`, which the loss subtracts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.inputs import PolicyLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyInputs:
    """Part of an optimizer batch: B rows, T tokens."""

    entropy_BT: torch.Tensor
    """Entropy of the policy's distribution at each token, with a gradient."""
    mask_BT: torch.Tensor
    """Bool: true where the policy generated the token and it is trained on."""
    is_expert_B: torch.Tensor | None = None
    """Bool: true for expert rows among the rollouts; None without expert rows."""
    agg_mode: LossAggMode = "token-mean"
    """The algorithm's `loss_agg_mode`, for a function that aggregates by itself."""


EntropyLossFn = Callable[..., PolicyLoss]
"""Takes `EntropyInputs`, then `entropy_loss_fn_args` by keyword."""
