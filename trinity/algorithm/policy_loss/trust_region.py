"""Shared by the two DPPO losses: a policy gradient on the tokens inside a trust region."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio


def inside_trust_region(
    inputs: PolicyInputs, inside_BT: torch.Tensor, clip_ratio_c: float
) -> PolicyLoss:
    """-A sg(min(p / p_old, c)) log p where `inside_BT`, else 0; [B, T]."""
    log_ratio_BT = log_ratio(inputs).detach()
    ratio_BT = log_ratio_BT.exp()
    weights_BT = -inputs.advantages_BT * ratio_BT.clamp(max=clip_ratio_c)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(inside_BT, weights_BT * inputs.logprobs_BT, 0.0),
        metrics={
            "pg_clipfrac": ~inside_BT,
            "pg_clipfrac_lower": (ratio_BT > clip_ratio_c) & inside_BT,
            "ppo_kl": -log_ratio_BT,
        },
    )
