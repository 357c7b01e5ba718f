"""What a policy loss gets and gives; B rows, T tokens of which `mask_BT` says which count.

def reinforce(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="pg_loss", loss_BT=-inputs.advantages_BT * inputs.logprobs_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from trinity.algorithm.aggregation import LossAggMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Part of an optimizer batch; where the mask is false all others hold 0."""

    logprobs_BT: torch.Tensor
    """Of the policy that is trained; the only one with a gradient."""
    old_logprobs_BT: torch.Tensor
    """Of the policy that the ratio is taken to: the one that made the tokens, or the proximal."""
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor
    """Bool: true where the policy chose the token and it is trained on."""
    reference_logprobs_BT: torch.Tensor | None = None
    """Of the stage's starting weights; None where the algorithm has no reference."""
    is_expert_B: torch.Tensor | None = None
    """Bool: true for rows of training data among rollouts; None where there are none."""
    chosen_BT: torch.Tensor | None = None
    """Bool: the tokens that the loss treats apart, where it has a choice made beforehand."""
    step: int = 1
    """Train step of the stage, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Losses of tokens or of rows; aggregated elsewhere, so that splitting a batch changes nothing.

    Exactly one of `loss_BT` and `loss_B` is given. A row's loss is averaged over the rows that have
    tokens to train on; a pair is two neighbouring rows, chosen first, and both carry its loss.
    """

    name: str
    """What the aggregated loss is called among the metrics."""
    loss_BT: torch.Tensor | None = None
    loss_B: torch.Tensor | None = None
    agg_mode: LossAggMode | None = None
    """How tokens become one number, where the user's `loss_agg_mode` does not decide."""
    expert_agg_mode: LossAggMode | None = None
    """The same for expert rows, which are then normalised among themselves, as the others are."""
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further figures of each token, [B, T], or row, [B]; averaged over the whole batch's tokens or
    rows. One whose name begins with `expert/` or `usual/` is averaged over such rows alone."""


PolicyLossFn = Callable[..., PolicyLoss]
"""Takes `PolicyInputs`, then `policy_loss_fn_args` by keyword."""
