"""PPO's clipped objective with dual clipping."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clip_bounds, log_ratio, row_means
from trinity.errors import UserError


def ppo(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_ratio_c: float = 3.0,
    enable_sequence_masking: bool = False,
    delta_sequence_masking: float = 0.1,
    fallback_to_policy_gradient: bool = False,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), for A < 0 at most -A c; r = p / p_old, all [B, T].

    Sequence masking leaves out tokens with A < 0 of rows whose mean of log p_old - log p is above
    delta. The fallback takes r = p / sg(p): a policy gradient that ignores the policy that
    generated the tokens. Schulman et al., https://arxiv.org/abs/1707.06347; the bound c: Ye et al.,
    https://arxiv.org/abs/1912.09729; sequence masking: https://arxiv.org/abs/2512.02556.
    """
    if clip_ratio_c <= 1:
        raise UserError(
            f"`clip_ratio_c` of the policy loss ppo is {clip_ratio_c}: give more than 1"
        )
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    log_ratio_BT = log_ratio(inputs)
    used_BT = log_ratio_BT
    if fallback_to_policy_gradient:
        used_BT = inputs.logprobs_BT - inputs.logprobs_BT.detach()
    loss_BT, metrics = _dual_clipped(used_BT.exp(), inputs.advantages_BT, low, high, clip_ratio_c)
    metrics["ppo_kl"] = -log_ratio_BT
    if enable_sequence_masking:
        divergence_B1 = row_means(-log_ratio_BT.detach(), inputs.mask_BT)
        left_out_BT = (inputs.advantages_BT < 0) & (divergence_B1 > delta_sequence_masking)
        loss_BT = torch.where(left_out_BT, 0.0, loss_BT)
        metrics["seq_mask/masked_tokens"] = left_out_BT
        metrics["seq_mask/mean_sequence_kl"] = divergence_B1.squeeze(-1)
    return PolicyLoss(name="pg_loss", loss_BT=loss_BT, metrics=metrics)


def _dual_clipped(
    ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, low: float, high: float, c: float
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    upper_BT = torch.maximum(plain_BT, clipped_BT)
    bound_BT = -advantages_BT * c
    negative_BT = advantages_BT < 0
    loss_BT = torch.where(negative_BT, torch.minimum(upper_BT, bound_BT), upper_BT)
    return loss_BT, {
        "pg_clipfrac": clipped_BT > plain_BT,
        "pg_clipfrac_lower": (upper_BT > bound_BT) & negative_BT,
    }
