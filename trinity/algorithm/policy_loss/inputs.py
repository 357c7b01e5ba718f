"""Input and output types of policy losses; B rows, T tokens, `mask_BT` marks those that count.

def reinforce(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="pg_loss", loss_BT=-inputs.advantages_BT * inputs.logprobs_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from trinity.algorithm.aggregation import LossAggMode


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Part of an optimizer batch; all other tensors hold 0 where the mask is false."""

    logprobs_BT: torch.Tensor
    """By the policy in training; the only tensor with a gradient."""
    old_logprobs_BT: torch.Tensor
    """By the policy in the ratio's denominator: the rollout policy or the proximal one."""
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor
    """Bool: true where the policy generated the token and it is trained on."""
    reference_logprobs_BT: torch.Tensor | None = None
    """By the stage's starting weights; None where the algorithm has no reference."""
    is_expert_B: torch.Tensor | None = None
    """Bool: true for rows of training data among rollouts; None where there are none."""
    chosen_BT: torch.Tensor | None = None
    """Bool: tokens that the loss treats differently, if it has a token selection."""
    step: int = 1
    """Train step of the stage, from 1."""


Share = Literal["tokens", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Losses of tokens or rows; the aggregation is elsewhere, so splitting a batch changes nothing.

    Exactly one of `loss_BT`, `loss_B` and `loss` is given. A row's loss is averaged over the rows
    that have tokens to train on; a pair is two neighbouring rows, chosen first, and both carry its
    loss.
    """

    name: str
    """Name of the aggregated loss among the metrics."""
    loss_BT: torch.Tensor | None = None
    loss_B: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    """One number for these rows, which the function aggregates itself, as Trinity-RFT's do."""
    share: Share = "rows"
    """The part of the whole batch by which `loss` counts: of its tokens or of its rows."""
    agg_mode: LossAggMode | None = None
    """Overrides the user's `loss_agg_mode`."""
    expert_agg_mode: LossAggMode | None = None
    """The mode for expert rows, which are then normalised separately, as the others are."""
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further metrics of each token, [B, T], or row, [B]; averaged over the whole batch's tokens or
    rows. Names with the prefix `expert/` or `usual/` are averaged over such rows alone."""


PolicyLossFn = Callable[..., PolicyLoss]
"""Takes `PolicyInputs`, then `policy_loss_fn_args` by keyword."""
