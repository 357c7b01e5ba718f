"""GSPO's token variant: the sequence's ratio, with advantages and gradients of single tokens."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clipped_by_sequence, mean_log_ratio


def gspo_token(
    inputs: PolicyInputs, *, clip_range_low: float = 0.0003, clip_range_high: float = 0.0004
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) with r = sg(s) p / sg(p), all [B, T].

    s = exp(mean_t(log p - log p_old)) of the row. Where all tokens of a row have one advantage,
    value and gradient are gspo's. Zheng et al., https://arxiv.org/abs/2507.18071; verl calls
    this one gspo.
    """
    own_BT = inputs.logprobs_BT - inputs.logprobs_BT.detach()
    return clipped_by_sequence(
        inputs,
        log_ratio_BT=own_BT + mean_log_ratio(inputs).detach(),
        advantages_BT=inputs.advantages_BT,
        low=clip_range_low,
        high=clip_range_high,
    )
