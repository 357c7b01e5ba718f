"""What a policy loss gets and gives; B rows, T tokens of which `mask_BT` says which count.

def reinforce(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="pg_loss", loss_BT=-inputs.advantages_BT * inputs.logprobs_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Part of an optimizer batch."""

    logprobs_BT: torch.Tensor
    """Of the policy that is trained; the only one with a gradient."""
    old_logprobs_BT: torch.Tensor
    """Of the policy that made the tokens."""
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor
    """Bool: true where the policy chose the token; elsewhere all others hold 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Losses of tokens; aggregated elsewhere, so that splitting a batch changes nothing."""

    name: str
    """What the aggregated loss is called among the metrics."""
    loss_BT: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further figures of each token, [B, T]; averaged over the tokens of the whole batch."""


PolicyLossFn = Callable[..., PolicyLoss]
"""Takes `PolicyInputs`, then `policy_loss_fn_args` by keyword."""
