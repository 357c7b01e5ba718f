"""The critic's loss: squared error of its values, clipped to a range around the old values."""

from dataclasses import dataclass

import torch

from trinity.algorithm.policy_loss.inputs import PolicyLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInputs:
    """Part of an optimizer batch: B rows, T tokens."""

    values_BT: torch.Tensor
    """By the critic in training; the only tensor with a gradient."""
    old_values_BT: torch.Tensor
    """By the critic before this step, from which the advantages were computed."""
    returns_BT: torch.Tensor
    """The targets of the values."""
    mask_BT: torch.Tensor
    """Bool: true where the token is trained on."""
    is_expert_B: torch.Tensor | None = None


def value_loss(inputs: ValueInputs, *, cliprange_value: float = 0.5) -> PolicyLoss:
    """max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2 of each token, [B, T].

    Schulman et al., https://arxiv.org/abs/1707.06347; clipped as in PPO's reference implementation.
    """
    old_BT = inputs.old_values_BT
    clipped_BT = inputs.values_BT.clamp(old_BT - cliprange_value, old_BT + cliprange_value)
    plain_error_BT = (inputs.values_BT - inputs.returns_BT).square()
    clipped_error_BT = (clipped_BT - inputs.returns_BT).square()
    return PolicyLoss(
        name="vf_loss",
        loss_BT=0.5 * torch.maximum(plain_error_BT, clipped_error_BT),
        metrics={
            "vf_clipfrac": clipped_error_BT > plain_error_BT,
            "vpred_mean": inputs.values_BT,
        },
    )
