"""GSPO: the clipped ratio of whole sequences."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clipped_by_sequence, mean_log_ratio, row_means


def gspo(
    inputs: PolicyInputs, *, clip_range_low: float = 0.0003, clip_range_high: float = 0.0004
) -> PolicyLoss:
    """max(-A s, -A clip(s, 1 - low, 1 + high)) with s = exp(mean_t(log p - log p_old)), [B].

    s and the advantage A, the mean of its tokens', belong to the row; each of its T tokens carries
    the row's loss, so `seq-mean-token-mean` is the paper's objective. Tokens with advantages of
    their own: gspo_token. Zheng et al., https://arxiv.org/abs/2507.18071.
    """
    mean_B1 = mean_log_ratio(inputs)
    advantages_B1 = row_means(inputs.advantages_BT, inputs.mask_BT)
    return clipped_by_sequence(
        inputs,
        log_ratio_BT=mean_B1.expand_as(inputs.logprobs_BT),
        advantages_BT=advantages_B1.expand_as(inputs.logprobs_BT),
        low=clip_range_low,
        high=clip_range_high,
    )
